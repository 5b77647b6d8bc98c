-- How much of the behaviour do circuits of each size explain, and how sure is that?
-- explained is a ratio of means over prompts, mean(metric - m_none) / mean(m_all - m_none), and null where the
-- whole model and the ablated one do equally well; stderr is its standard error, by linearisation: from the mean over
-- each prompt's rankings of what is left of it. Of cross-fitted curves (a fold is twice the halving, plus the half) it is
-- at least what the two halves of a halving tell: they share no prompt that ranks and none that is measured, so half the
-- difference of their means spreads as much as their mean does. low and high are the 95 % interval, by Student's t, of
-- whose quantile with one degree of freedom less than prompts these are the first terms.
with
measured as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        prompt_id,
        fold,
        kept,
        metric - m_none as kept_effect,
        m_all - m_none as effect,
        avg(metric - m_none) over (partition by run, level, ranking, ablation, requested)
        / nullif(avg(m_all - m_none) over (partition by run, level, ranking, ablation, requested), 0) as explained
    from effects
),

residuals as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        prompt_id,
        fold,
        kept,
        effect,
        explained,
        kept_effect - explained * effect as residual
    from measured
),

-- the means of each prompt, and of each half less the other, beside every row that they are of: a prompt has as many
-- rows as any other, and so has a halving
means as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        prompt_id,
        kept,
        effect,
        explained,
        avg(residual) over (partition by run, level, ranking, ablation, requested, prompt_id) as of_prompt,
        avg(case when fold % 2 = 0 then residual end)
            over (partition by run, level, ranking, ablation, requested, floor(fold / 2))
        - avg(case when fold % 2 = 1 then residual end)
            over (partition by run, level, ranking, ablation, requested, floor(fold / 2)) as of_halves
    from residuals
),

spreads as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        avg(kept) as kept,
        max(explained) as explained,
        nullif(abs(avg(effect)), 0) as effect,
        nullif(count(distinct prompt_id) - 1, 0) as freedom,
        sqrt(var_pop(of_prompt) / nullif(count(distinct prompt_id) - 1, 0)) as over_prompts,
        sqrt(avg(power(of_halves, 2))) / 2 as over_halves
    from means
    group by run, level, ranking, ablation, requested
),

errors as (
    select
        run,
        level,
        ranking,
        ablation,
        requested,
        kept,
        explained,
        case when over_halves > over_prompts then over_halves else over_prompts end / effect as stderr,
        1.959964 + 2.372271 / freedom + 2.822497 / power(freedom, 2) + 2.555850 / power(freedom, 3) as t
    from spreads
)

select
    run,
    level,
    ranking,
    ablation,
    requested,
    kept,
    explained,
    stderr,
    explained - t * stderr as low,
    explained + t * stderr as high
from errors
