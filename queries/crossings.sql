-- From how many units on does each curve, in each draw, stay at or above each threshold?
-- k is interpolated on log k between the last size below the threshold and the next one, and null for a curve that is
-- below at its last size; first_k is where the curve gets there first, whether it stays or not, and null if it never
-- does. Sizes at which nothing is defined are passed over.
with
steps as (
    select
        run,
        level,
        ranking,
        ablation,
        draw,
        requested,
        explained,
        lag(requested) over (
            partition by run, level, ranking, ablation, draw, explained is null
            order by requested
        ) as requested_before,
        lag(explained) over (
            partition by run, level, ranking, ablation, draw, explained is null
            order by requested
        ) as explained_before,
        lead(requested) over (
            partition by run, level, ranking, ablation, draw, explained is null
            order by requested
        ) as requested_after
    from resampled_curves
),

-- every way up through a threshold: the first one and the last one are what is asked for
ways_up as (
    select
        steps.run,
        steps.level,
        steps.ranking,
        steps.ablation,
        steps.draw,
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
)

select
    run,
    level,
    ranking,
    ablation,
    draw,
    threshold,
    case when max(explained_last) >= threshold then max(k) end as k,
    min(k) as first_k
from ways_up
group by run, level, ranking, ablation, draw, threshold
