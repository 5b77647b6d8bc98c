-- Which sparse models were measured under a protocol, and their dense twins too?
-- By the stems of their runs.
select distinct
    sparse.protocol,
    run_pairs.task,
    sparse.stem as sparse_stem,
    dense.stem as dense_stem
from run_pairs
join runs as sparse on sparse.run = run_pairs.sparse_run
join runs as dense on dense.run = run_pairs.dense_run and dense.protocol = sparse.protocol
