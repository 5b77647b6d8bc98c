-- From how many units on does each curve stay at or above each threshold, and how sure is that?
-- k is interpolated on log k between the last size below the threshold and the next one, and null for a curve that is
-- below at its last size; first_k is where the curve gets there first, whether it stays or not, and null if it never
-- does. low and high are a 95 % interval of k: where the upper and the lower end of the curve's 95 % band do likewise.
-- high is null, and the interval open, where the lower one does not; low is null too where there is no band. A curve is
-- ragged if it falls below the threshold again, so that k is larger than first_k by more than a tenth, or there is no k.
-- Where the curve or an end of its band is ragged, k may jump (may_jump): on other prompts, the curve may stay from
-- another way up on. Sizes at which explained is null are left out.
with
bands as (
    select
        curves.run,
        curves.level,
        curves.ranking,
        curves.ablation,
        curves.requested,
        ends.part,
        case
            when ends.part = 'low' then curves.high
            when ends.part = 'high' then curves.low
            else curves.explained
        end as explained
    from curves
    cross join (values ('k'), ('low'), ('high')) as ends (part)
    where curves.requested > 0
),

steps as (
    select
        run,
        level,
        ranking,
        ablation,
        part,
        requested,
        explained,
        lag(requested) over (
            partition by run, level, ranking, ablation, part, explained is null
            order by requested
        ) as requested_before,
        lag(explained) over (
            partition by run, level, ranking, ablation, part, explained is null
            order by requested
        ) as explained_before,
        lead(requested) over (
            partition by run, level, ranking, ablation, part, explained is null
            order by requested
        ) as requested_after
    from bands
),

-- every way up through a threshold: the first one and the last one are what is asked for
ways_up as (
    select
        steps.run,
        steps.level,
        steps.ranking,
        steps.ablation,
        steps.part,
        thresholds.threshold,
        case when steps.requested_after is null then steps.explained end as explained_last,
        case
            when steps.explained >= thresholds.threshold and steps.requested_before is null
                then cast(steps.requested as double)
            when steps.explained >= thresholds.threshold and steps.explained_before < thresholds.threshold
                then exp(
                    ln(steps.requested_before)
                    + (ln(steps.requested) - ln(steps.requested_before))
                    * (thresholds.threshold - steps.explained_before)
                    / (steps.explained - steps.explained_before)
                )
        end as k
    from steps
    cross join thresholds
),

ends as (
    select
        run,
        level,
        ranking,
        ablation,
        part,
        threshold,
        case when max(explained_last) >= threshold then max(k) end as k,
        min(k) as first_k
    from ways_up
    group by run, level, ranking, ablation, part, threshold
),

found as (
    select
        run,
        level,
        ranking,
        ablation,
        threshold,
        max(case when part = 'k' then k end) as k,
        max(case when part = 'low' then k end) as low,
        max(case when part = 'high' then k end) as high,
        max(case when part = 'k' then first_k end) as first_k,
        max(case when part = 'low' then first_k end) as first_low,
        max(case when part = 'high' then first_k end) as first_high
    from ends
    group by run, level, ranking, ablation, threshold
)

select
    run,
    level,
    ranking,
    ablation,
    threshold,
    k,
    low,
    high,
    first_k,
    first_low,
    first_high,
    coalesce(k > 1.1 * first_k, first_k is not null) as ragged,
    coalesce(k > 1.1 * first_k, first_k is not null)
    or coalesce(low > 1.1 * first_low, first_low is not null)
    or coalesce(high > 1.1 * first_high, first_high is not null) as may_jump
from found
