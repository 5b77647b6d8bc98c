-- How good is each curve as a whole: the area under it (CPR) and between it and 1 (CMD)?
-- By the trapezoid rule over the share of units requested, from the smallest size measured to all units.
with
shares as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        explained,
        requested * 1.0 / max(requested) over (partition by run, level, ranking, ablation) as share
    from curves
),

steps as (
    select
        run,
        level,
        ranking,
        ablation,
        explained,
        share - lag(share) over (partition by run, level, ranking, ablation order by requested) as step,
        lag(explained) over (partition by run, level, ranking, ablation order by requested) as explained_before
    from shares
)

select
    run,
    level,
    ranking,
    ablation,
    sum(step * (explained + explained_before) / 2) as cpr,
    sum(step * (abs(1 - explained) + abs(1 - explained_before)) / 2) as cmd
from steps
group by run, level, ranking, ablation
order by run, level, ranking, ablation
