-- Which sparse runs have a dense twin to be compared with?
-- A sparse run is paired with the runs of the model that it came from, where task, method, metric, the ablation of the
-- scores, the split of the prompts, their cross-fitting and the inputs that edges run to are the same, and the protocol
-- where both have one.
select
    sparse.run as sparse_run,
    dense.run as dense_run,
    sparse.task
from runs as sparse
join runs as dense
    on
        dense.model = sparse.base_model
        and dense.task = sparse.task
        and coalesce(dense.method, '') = coalesce(sparse.method, '')
        and coalesce(dense.metric, '') = coalesce(sparse.metric, '')
        and dense.inputs = sparse.inputs
        and coalesce(dense.ablation, '') = coalesce(sparse.ablation, '')
        and coalesce(dense.split, 0) = coalesce(sparse.split, 0)
        and coalesce(dense.cross_fit, 0) = coalesce(sparse.cross_fit, 0)
        and coalesce(dense.protocol, sparse.protocol, '') = coalesce(sparse.protocol, dense.protocol, '')
