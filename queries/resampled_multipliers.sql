-- How many times fewer units does each sparse run need than its dense twin, in each draw of prompts?
-- A sparse run is paired with the runs of the model that it came from, where task, method, level, ranking and
-- ablation are the same, those of the scores and the split of the prompts included. The multiplier is null where
-- either curve does not reach the threshold.
with
reached as (
    select
        run,
        level,
        ranking,
        ablation,
        draw,
        threshold,
        k
    from crossings
)

select
    sparse.level,
    sparse.ranking,
    sparse.ablation,
    sparse_runs.task,
    sparse.run as sparse_run,
    dense.run as dense_run,
    sparse.draw,
    sparse.threshold,
    sparse.k as sparse_k,
    dense.k as dense_k,
    dense.k / sparse.k as multiplier
from reached as sparse
join runs as sparse_runs on sparse_runs.run = sparse.run
join runs as dense_runs
    on
        dense_runs.model = sparse_runs.base_model
        and dense_runs.task = sparse_runs.task
        and coalesce(dense_runs.method, '') = coalesce(sparse_runs.method, '')
        and coalesce(dense_runs.ablation, '') = coalesce(sparse_runs.ablation, '')
        and coalesce(dense_runs.split, 0) = coalesce(sparse_runs.split, 0)
join reached as dense
    on
        dense.run = dense_runs.run
        and dense.level = sparse.level
        and dense.ranking = sparse.ranking
        and dense.ablation = sparse.ablation
        and dense.draw = sparse.draw
        and dense.threshold = sparse.threshold
