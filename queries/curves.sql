-- How much of the behaviour do circuits of each size explain, and how sure is that?
-- explained is a ratio of means over prompts, mean(metric - m_none) / mean(m_all - m_none), and null where the
-- whole model and the ablated one do equally well; stderr is its standard error, by linearisation: of the means of
-- what is left of each prompt. Of cross-fitted curves (a fold is twice the halving, plus the half) it is at least the one
-- that the two halves of a halving tell: they share no prompt that ranks and none that is measured, so half the
-- difference of their means spreads as much as their mean does. low and high are the 95 % interval, by Student's t.
with
totals as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        avg(kept) as kept,
        avg(metric - m_none) / nullif(avg(m_all - m_none), 0) as explained,
        nullif(abs(avg(m_all - m_none)), 0) as effect
    from effects
    group by run, level, ranking, ablation, requested
),

residuals as (
    select
        effects.run,
        effects.level,
        effects.ranking,
        effects.ablation,
        effects.requested,
        effects.prompt_id,
        effects.fold,
        effects.metric - effects.m_none - totals.explained * (effects.m_all - effects.m_none) as residual
    from totals
    join effects
        on
            effects.run = totals.run
            and effects.level = totals.level
            and effects.ranking = totals.ranking
            and effects.ablation = totals.ablation
            and effects.requested = totals.requested
),

over_prompts as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        count(*) as prompts,
        stddev_samp(residual) / sqrt(count(*)) as stderr
    from (
        select
            run,
            level,
            ranking,
            ablation,
            requested,
            avg(residual) as residual
        from residuals
        group by run, level, ranking, ablation, requested, prompt_id
    ) as each_prompt
    group by run, level, ranking, ablation, requested
),

over_halves as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        sqrt(avg(power(first_half - second_half, 2))) / 2 as stderr
    from (
        select
            run,
            level,
            ranking,
            ablation,
            requested,
            avg(case when fold % 2 = 0 then residual end) as first_half,
            avg(case when fold % 2 = 1 then residual end) as second_half
        from residuals
        where fold is not null
        group by run, level, ranking, ablation, requested, floor(fold / 2)
    ) as each_halving
    group by run, level, ranking, ablation, requested
),

spreads as (
    select
        over_prompts.run,
        over_prompts.level,
        over_prompts.ranking,
        over_prompts.ablation,
        over_prompts.requested,
        case
            when over_halves.stderr > over_prompts.stderr then over_halves.stderr
            else over_prompts.stderr
        end as stderr,
        -- the quantile of Student's t with a degree of freedom less than prompts, as a series
        1.959964
        + 2.372271 / nullif(over_prompts.prompts - 1, 0)
        + 2.822497 / nullif(power(over_prompts.prompts - 1, 2), 0)
        + 2.555850 / nullif(power(over_prompts.prompts - 1, 3), 0) as t
    from over_prompts
    left join over_halves
        on
            over_halves.run = over_prompts.run
            and over_halves.level = over_prompts.level
            and over_halves.ranking = over_prompts.ranking
            and over_halves.ablation = over_prompts.ablation
            and over_halves.requested = over_prompts.requested
)

select
    totals.run,
    totals.level,
    totals.ranking,
    totals.ablation,
    totals.requested,
    totals.kept,
    totals.explained,
    spreads.stderr / totals.effect as stderr,
    totals.explained - spreads.t * spreads.stderr / totals.effect as low,
    totals.explained + spreads.t * spreads.stderr / totals.effect as high
from totals
join spreads
    on
        spreads.run = totals.run
        and spreads.level = totals.level
        and spreads.ranking = totals.ranking
        and spreads.ablation = totals.ablation
        and spreads.requested = totals.requested
