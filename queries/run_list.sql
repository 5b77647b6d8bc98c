-- Which runs are in the store?
select
    run,
    model,
    task,
    levels,
    prompts,
    edges,
    method,
    metric,
    ablation,
    finished
from runs
order by run
