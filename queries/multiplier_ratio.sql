-- How do two multipliers compare: by how many times is the first one larger, and how sure is that?
-- Each is of a sparse run and a dense one (run and other) at a level, by a ranking, with an ablation; what is not said of
-- the second one is as of the first. The 95 % interval is from those of the four crossings, as that of a multiplier is
-- (see comparisons). Where two of the four are the same one, its distance counts as often as its logarithm does in that
-- of the ratio: not at all where it cancels out, as that of one dense run of both pairs; twice where it is dense in one
-- pair and sparse in the other. The ratio is null where a multiplier is, an end of its interval where it is open.
with
roles as (
    select 'sparse' as role, -1 as times, $run as run, $level as level, $ranking as ranking, $ablation as ablation
    union all
    select 'dense', 1, $other, $level, $ranking, $ablation
    union all
    select
        'second sparse',
        1,
        coalesce($second_run, $run),
        coalesce($second_level, $level),
        coalesce($second_ranking, $ranking),
        coalesce($second_ablation, $ablation)
    union all
    select
        'second dense',
        -1,
        coalesce($second_other, $other),
        coalesce($second_level, $level),
        coalesce($second_ranking, $ranking),
        coalesce($second_ablation, $ablation)
),

crossed as (
    select
        roles.role,
        roles.times,
        crossings.run,
        crossings.level,
        crossings.ranking,
        crossings.ablation,
        crossings.may_jump,
        case when $crossing = 'first' then ln(first_k) else ln(k) end as place,
        case when $crossing = 'first' then ln(first_k / first_low) else ln(k / low) end as below,
        case when $crossing = 'first' then ln(first_high / first_k) else ln(high / k) end as above
    from roles
    join crossings
        on
            crossings.run = roles.run
            and crossings.level = roles.level
            and crossings.ranking = roles.ranking
            and crossings.ablation = roles.ablation
    where crossings.run in ($run, $other, coalesce($second_run, $run), coalesce($second_other, $other))
),

two as (
    select
        max(case when role = 'dense' then place end) - max(case when role = 'sparse' then place end) as multiplier,
        max(case when role = 'second dense' then place end)
        - max(case when role = 'second sparse' then place end) as second_multiplier
    from crossed
    having count(*) = 4
),

-- each crossing once: how far off it may move the ratio downwards and upwards
moves as (
    select
        max(case when may_jump then 1 else 0 end) as may_jump,
        abs(sum(times)) * case when sum(times) > 0 then max(below) else max(above) end as down,
        abs(sum(times)) * case when sum(times) > 0 then max(above) else max(below) end as up
    from crossed
    group by run, level, ranking, ablation
    having sum(times) <> 0
),

-- all together: 0 where all cancel out, null where one is
distances as (
    select
        case
            when count(*) = 0 then 0
            when count(down) < count(*) then null
            when max(may_jump) = 1 then sum(down)
            else sqrt(sum(power(down, 2)))
        end as down,
        case
            when count(*) = 0 then 0
            when count(up) < count(*) then null
            when max(may_jump) = 1 then sum(up)
            else sqrt(sum(power(up, 2)))
        end as up
    from moves
)

select
    exp(multiplier) as multiplier,
    exp(second_multiplier) as second_multiplier,
    exp(multiplier - second_multiplier) as ratio,
    exp(multiplier - second_multiplier - down) as low,
    exp(multiplier - second_multiplier + up) as high
from two
cross join distances
