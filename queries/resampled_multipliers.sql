-- How many times fewer units does each sparse run need than its dense twin, in each draw of prompts?
-- Curves are compared where level, ranking and ablation are the same. The multiplier is null where either curve does
-- not stay at the threshold; first_multiplier is by where both get there first.
select
    sparse.level,
    sparse.ranking,
    sparse.ablation,
    run_pairs.task,
    sparse.run as sparse_run,
    dense.run as dense_run,
    sparse.draw,
    sparse.threshold,
    sparse.k as sparse_k,
    dense.k as dense_k,
    dense.k / sparse.k as multiplier,
    sparse.first_k as sparse_first_k,
    dense.first_k as dense_first_k,
    dense.first_k / sparse.first_k as first_multiplier
from run_pairs
join crossings as sparse on sparse.run = run_pairs.sparse_run
join crossings as dense
    on
        dense.run = run_pairs.dense_run
        and dense.level = sparse.level
        and dense.ranking = sparse.ranking
        and dense.ablation = sparse.ablation
        and dense.draw = sparse.draw
        and dense.threshold = sparse.threshold
