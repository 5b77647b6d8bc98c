-- How many times fewer units does each sparse run need than its dense twin?
-- Below 1 where it needs more; null where either curve does not reach the threshold.
select
    level,
    ranking,
    ablation,
    task,
    sparse_run,
    dense_run,
    threshold,
    sparse_k,
    dense_k,
    multiplier
from resampled_multipliers
where draw = 0
