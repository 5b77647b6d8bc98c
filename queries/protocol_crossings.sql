-- Which ablation has the smaller circuit of each model, of those that its protocol has a run for?
-- Runs of one call under a protocol share a stem; place orders them by the k of their own curves (see crossings), and
-- 1 is the one that counts: the smaller, the only one that gets there, or zero where none does. A curve whose effect is
-- negative or within two standard errors of zero explains nothing, and has no k. Where two runs with the same
-- stem and ablation have a curve, that of the run called STEM-ABLATION is taken, else that of the first by name.
with
measured as (
    select
        runs.protocol,
        runs.stem,
        crossings.run,
        crossings.level,
        crossings.ranking,
        crossings.ablation,
        crossings.threshold,
        crossings.k,
        crossings.low,
        crossings.high,
        crossings.first_k,
        crossings.first_low,
        crossings.first_high,
        crossings.ragged,
        crossings.may_jump,
        curve_effects.effect > 2 * coalesce(curve_effects.effect_stderr, 0) as explains,
        row_number() over (
            partition by
                runs.protocol,
                runs.stem,
                crossings.level,
                crossings.ranking,
                crossings.ablation,
                crossings.threshold
            order by case when runs.run = concat(runs.stem, '-', runs.ablation) then 0 else 1 end, runs.run
        ) as choice
    from runs
    join crossings on crossings.run = runs.run and crossings.ablation = runs.ablation
    join curve_effects
        on
            curve_effects.run = crossings.run
            and curve_effects.level = crossings.level
            and curve_effects.ablation = crossings.ablation
    where runs.protocol is not null
),

found as (
    select
        protocol,
        stem,
        run,
        level,
        ranking,
        ablation,
        threshold,
        case when explains then k end as k,
        case when explains then low end as low,
        case when explains then high end as high,
        case when explains then first_k end as first_k,
        case when explains then first_low end as first_low,
        case when explains then first_high end as first_high,
        explains and ragged as ragged,
        explains and may_jump as may_jump
    from measured
    where choice = 1
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
    first_low,
    first_high,
    ragged,
    may_jump,
    cast(row_number() over (
        partition by protocol, stem, level, ranking, threshold
        order by case when k is null then 1 else 0 end, k, case ablation when 'zero' then 0 else 1 end, run
    ) as bigint) as place
from found
