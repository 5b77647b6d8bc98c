-- How much do circuits of each size explain when every prompt counts as often as a draw says?
-- resamples holds draws of prompts: draw 0 has each prompt once, the others are for the bootstrap.
select
    effects.run,
    effects.level,
    effects.ranking,
    effects.ablation,
    effects.requested,
    resamples.draw,
    sum(resamples.weight * (effects.metric - effects.m_none))
    / nullif(sum(resamples.weight * (effects.m_all - effects.m_none)), 0) as explained
from effects
join resamples on resamples.prompt_id = effects.prompt_id
where effects.requested > 0
group by
    effects.run,
    effects.level,
    effects.ranking,
    effects.ablation,
    effects.requested,
    resamples.draw
