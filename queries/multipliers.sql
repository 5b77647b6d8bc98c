-- How many times fewer units does each sparse run need than its dense twin?
-- Below 1 where it needs more; null where either curve does not stay at the threshold. A pair is ragged if either
-- curve falls below the threshold again, so that where it first gets there (sparse_first_k, dense_first_k) is another
-- size by more than a tenth.
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
    multiplier,
    sparse_first_k,
    dense_first_k,
    first_multiplier,
    coalesce(sparse_k > 1.1 * sparse_first_k, sparse_first_k is not null)
    or coalesce(dense_k > 1.1 * dense_first_k, dense_first_k is not null) as ragged
from resampled_multipliers
where draw = 0
