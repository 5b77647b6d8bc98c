-- At how many units does each curve, in each draw, first reach each threshold?
-- k is interpolated on log k between the last size below and the first size at or above the threshold, and
-- null for a curve that never gets there.
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
            partition by run, level, ranking, ablation, draw
            order by requested
        ) as requested_before,
        lag(explained) over (
            partition by run, level, ranking, ablation, draw
            order by requested
        ) as explained_before
    from resampled_curves
),

reached as (
    select
        steps.run,
        steps.level,
        steps.ranking,
        steps.ablation,
        steps.draw,
        thresholds.threshold,
        case
            when steps.requested_before is null then cast(steps.requested as double)
            else exp(
                ln(steps.requested_before)
                + (ln(steps.requested) - ln(steps.requested_before))
                * (thresholds.threshold - steps.explained_before)
                / nullif(steps.explained - steps.explained_before, 0)
            )
        end as k,
        row_number() over (
            partition by
                steps.run, steps.level, steps.ranking, steps.ablation, steps.draw, thresholds.threshold
            order by steps.requested
        ) as position
    from steps
    cross join thresholds
    where steps.explained >= thresholds.threshold
),

asked as (
    select
        steps.run,
        steps.level,
        steps.ranking,
        steps.ablation,
        steps.draw,
        thresholds.threshold
    from steps
    cross join thresholds
    group by steps.run, steps.level, steps.ranking, steps.ablation, steps.draw, thresholds.threshold
)

select
    asked.run,
    asked.level,
    asked.ranking,
    asked.ablation,
    asked.draw,
    asked.threshold,
    reached.k
from asked
left join reached
    on
        reached.run = asked.run
        and reached.level = asked.level
        and reached.ranking = asked.ranking
        and reached.ablation = asked.ablation
        and reached.draw = asked.draw
        and reached.threshold = asked.threshold
        and reached.position = 1
