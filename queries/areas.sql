-- How good is each curve as a whole: the area under it (CPR) and between it and 1 (CMD)?
-- By the trapezoid rule over the share of units requested, from the smallest size measured to all units; null for
-- a curve that was not measured up to all units. Attention edges: all means the largest size measured.
-- MIB's CPR is that of the ranking signed, its CMD that of the ranking task, both at ten sizes, int(p n) of n units:
-- for a curve of these ten alone (--sizes mib, of 1,000 units or more) the shares are MIB's p, and the areas its own.
with
sized as (
    select
        curves.run,
        curves.level,
        curves.ranking,
        curves.ablation,
        curves.requested,
        curves.explained,
        cast(
            case curves.level
                when 'edge' then runs.edges
                when 'head' then runs.layers * runs.heads
                else max(curves.requested) over (
                    partition by curves.run, curves.level, curves.ranking, curves.ablation
                )
            end as double
        ) as units
    from curves
    join runs on runs.run = curves.run
),

mib as (
    select p
    from (values (1e-3), (2e-3), (5e-3), (1e-2), (2e-2), (5e-2), (1e-1), (2e-1), (5e-1), (1e0)) as shares (p)
),

-- of few units, several of MIB's shares come to one size, and then these are not its ten
published as (
    select
        sized.run,
        sized.level,
        sized.ranking,
        sized.ablation,
        sized.requested,
        sized.explained,
        sized.units,
        max(mib.p) as p
    from sized
    left join mib on floor(mib.p * sized.units) = sized.requested
    group by
        sized.run,
        sized.level,
        sized.ranking,
        sized.ablation,
        sized.requested,
        sized.explained,
        sized.units
),

shares as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        explained,
        case
            when count(p) over (partition by run, level, ranking, ablation) = 10
                and count(*) over (partition by run, level, ranking, ablation) = 10
                then p
            else requested / units
        end as share
    from published
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
