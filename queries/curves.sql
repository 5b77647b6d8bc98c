-- How much of the behaviour do circuits of each size explain?
-- explained is a ratio of means over prompts, mean(metric - m_none) / mean(m_all - m_none), and null where the
-- whole model and the ablated one do equally well; stderr is its standard error over prompts.
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
        avg(m_all - m_none) as effect,
        count(*) as prompts
    from effects
    group by run, level, ranking, ablation, requested
)

select
    totals.run,
    totals.level,
    totals.ranking,
    totals.ablation,
    totals.requested,
    totals.kept,
    totals.explained,
    stddev_samp(effects.metric - effects.m_none - totals.explained * (effects.m_all - effects.m_none))
    / sqrt(totals.prompts) / nullif(abs(totals.effect), 0) as stderr
from totals
join effects
    on
        effects.run = totals.run
        and effects.level = totals.level
        and effects.ranking = totals.ranking
        and effects.ablation = totals.ablation
        and effects.requested = totals.requested
group by
    totals.run,
    totals.level,
    totals.ranking,
    totals.ablation,
    totals.requested,
    totals.kept,
    totals.explained,
    totals.effect,
    totals.prompts
