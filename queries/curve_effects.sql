-- How large is the effect that the curves of each run explain, at each level and with each ablation?
-- effect is the mean of m_all - m_none over the prompts that were measured (of kl, the other way round), effect_stderr its
-- standard error.
select
    run,
    level,
    ablation,
    count(*) as prompts,
    avg(effect) as effect,
    stddev_samp(effect) / sqrt(count(*)) as effect_stderr
from (
    select
        effects.run,
        effects.level,
        effects.ablation,
        effects.prompt_id,
        case when runs.metric = 'kl' then -1 else 1 end
        * avg(cast(effects.m_all as double) - effects.m_none) as effect
    from effects
    join runs on runs.run = effects.run
    group by effects.run, effects.level, effects.ablation, effects.prompt_id, runs.metric
) as each_prompt
group by run, level, ablation
