-- Which ablation has the smaller circuit of each model, of those that its protocol has a run for?
-- Runs of one call under a protocol share a stem; place orders them by the k of their own curves (see crossings), and 1 is
-- the one that counts: the only one that gets there, or zero where none does. A curve whose effect is negative or within
-- two standard errors of zero explains nothing, and has no k.
with
measured as (
    select
        runs.protocol,
        runs.stem,
        runs.run,
        crossings.level,
        crossings.ranking,
        crossings.ablation,
        crossings.threshold,
        case when curve_effects.effect > 2 * coalesce(curve_effects.effect_stderr, 0) then crossings.k end as k,
        case when curve_effects.effect > 2 * coalesce(curve_effects.effect_stderr, 0) then crossings.low end as low,
        case when curve_effects.effect > 2 * coalesce(curve_effects.effect_stderr, 0) then crossings.high end as high,
        case when curve_effects.effect > 2 * coalesce(curve_effects.effect_stderr, 0) then crossings.first_k end
        as first_k
    from runs
    join (
        select
            run,
            level,
            ranking,
            ablation,
            threshold,
            k,
            cast(null as double) as low,
            cast(null as double) as high,
            first_k
        from crossings
        where draw = 0
    ) as crossings on crossings.run = runs.run and crossings.ablation = runs.ablation
    join curve_effects
        on
            curve_effects.run = crossings.run
            and curve_effects.level = crossings.level
            and curve_effects.ablation = crossings.ablation
    where runs.protocol is not null
)

select
    protocol,
    stem,
    run,
    level,
    ranking,
    ablation,
    threshold,
    k,
    low,
    high,
    first_k,
    row_number() over (
        partition by protocol, stem, level, ranking, threshold
        order by case when k is null then 1 else 0 end, k, case ablation when 'zero' then 0 else 1 end, run
    ) as place
from measured
