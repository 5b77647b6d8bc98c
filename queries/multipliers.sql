-- How many times fewer units does each sparse run need than its dense twin, and how sure is that?
-- Below 1 where it needs more; null where either curve does not stay at the threshold. low and high are a 95 %
-- interval, an end of it null where it is open (see crossings). A pair is ragged if either curve falls below the
-- threshold again, so that where it first gets there (sparse_first_k, dense_first_k) is another size by more than a
-- tenth.
select
    comparisons.level,
    comparisons.ranking,
    comparisons.ablation,
    run_pairs.task,
    comparisons.sparse_run,
    comparisons.dense_run,
    comparisons.threshold,
    comparisons.sparse_k,
    comparisons.dense_k,
    comparisons.multiplier,
    comparisons.low,
    comparisons.high,
    comparisons.sparse_first_k,
    comparisons.dense_first_k,
    comparisons.first_multiplier,
    comparisons.first_low,
    comparisons.first_high,
    comparisons.ragged
from run_pairs
join comparisons
    on comparisons.sparse_run = run_pairs.sparse_run and comparisons.dense_run = run_pairs.dense_run
