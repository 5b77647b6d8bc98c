-- Which runs are in the store, and how well does each model do its task?
select
    runs.run,
    runs.model,
    runs.task,
    runs.prompts,
    runs.levels,
    runs.method,
    round(run_summary.accuracy, 3) as accuracy,
    round(run_summary.effect, 4) as effect,
    round(run_summary.effect_stderr, 4) as effect_stderr,
    runs.finished,
    runs.metric,
    runs.ablation,
    runs.protocol,
    runs.edges
from runs
join run_summary on run_summary.run = runs.run
order by runs.run
