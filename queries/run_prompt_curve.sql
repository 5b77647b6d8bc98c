-- How much do circuits of each size explain of what the model does with one prompt?
-- explained is null where the whole model and the ablated one do equally well. A prompt that was measured by several
-- rankings of the same kind (cross-fitting) has the mean over them.
select
    requested,
    avg(kept) as kept,
    avg((cast(metric as double) - m_none) / nullif(cast(m_all as double) - m_none, 0)) as explained
from effects
where
    run = $run and prompt_id = $prompt and level = $level and ranking = $ranking and ablation = $ablation
group by requested
order by requested
