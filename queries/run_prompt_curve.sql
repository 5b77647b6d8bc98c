-- How much do circuits of each size explain of what the model does with one prompt?
-- explained is null where the whole model and the ablated one do equally well.
select
    requested,
    kept,
    (cast(metric as double) - m_none) / nullif(cast(m_all as double) - m_none, 0) as explained
from effects
where
    run = $run and prompt_id = $prompt and level = $level and ranking = $ranking and ablation = $ablation
order by requested
