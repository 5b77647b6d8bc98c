-- How well does the model of each run do its task?
-- accuracy is the share of the prompts on which it is right, top1 of those whose likeliest next token is a correct
-- answer, effect the mean of metric_clean - metric_corrupted (of kl, which grows as the behaviour is lost, the other way
-- round), effect_stderr its standard error over prompts. Runs of an older schema do not say who is right: where the
-- metric is a difference, its sign does. All of it is null for imported circuits.
with
judged as (
    select
        prompts.run,
        cast(prompts.metric_clean as double) as metric_clean,
        cast(prompts.metric_corrupted as double) as metric_corrupted,
        case when runs.metric = 'kl' then -1 else 1 end as direction,
        prompts.answer_rank,
        coalesce(
            prompts.is_right,
            case when runs.metric in ('logit_diff', 'prob_diff') then prompts.metric_clean > 0 end
        ) as is_right
    from prompts
    join runs on runs.run = prompts.run
),

summed as (
    select
        run,
        avg(cast(case when is_right then 1 when not is_right then 0 end as double)) as accuracy,
        avg(cast(case when answer_rank = 1 then 1 when answer_rank > 1 then 0 end as double)) as top1,
        avg(metric_clean) as metric_clean,
        avg(metric_corrupted) as metric_corrupted,
        avg(direction * (metric_clean - metric_corrupted)) as effect,
        stddev_samp(direction * (metric_clean - metric_corrupted))
        / sqrt(count(metric_clean - metric_corrupted)) as effect_stderr
    from judged
    group by run
)

select
    runs.run,
    runs.model,
    runs.task,
    runs.metric,
    runs.prompts,
    runs.prompts_tried,
    runs.only_correct,
    summed.accuracy,
    summed.top1,
    summed.metric_clean,
    summed.metric_corrupted,
    summed.effect,
    summed.effect_stderr
from runs
left join summed on summed.run = runs.run
