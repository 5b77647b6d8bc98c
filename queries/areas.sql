-- How good is each curve as a whole: the area under it (CPR) and between it and 1 (CMD)?
-- By the trapezoid rule over the share of units requested, from the smallest size measured to all units; null for
-- a curve that was not measured up to all units. Attention edges: all means the largest size measured.
with
shares as (
    select
        curves.run,
        curves.level,
        curves.ranking,
        curves.ablation,
        curves.requested,
        curves.explained,
        cast(curves.requested as double) / case curves.level
            when 'edge' then runs.edges
            when 'head' then runs.layers * runs.heads
            else max(curves.requested) over (
                partition by curves.run, curves.level, curves.ranking, curves.ablation
            )
        end as share
    from curves
    join runs on runs.run = curves.run
),

steps as (
    select
        run,
        level,
        ranking,
        ablation,
        share,
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
    case when max(share) >= 1 then sum(step * (explained + explained_before) / 2) end as cpr,
    case when max(share) >= 1 then sum(step * (abs(1 - explained) + abs(1 - explained_before)) / 2) end as cmd
from steps
group by run, level, ranking, ablation
order by run, level, ranking, ablation
