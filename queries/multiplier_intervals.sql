-- How sure are the multipliers: their 95 % interval over bootstrap draws of the prompts?
-- defined is the share of draws in which both curves reach the threshold; the interval is over these.
select
    plain.level,
    plain.ranking,
    plain.ablation,
    plain.task,
    plain.sparse_run,
    plain.dense_run,
    plain.threshold,
    plain.sparse_k,
    plain.dense_k,
    plain.multiplier,
    percentile_cont(0.025) within group (order by drawn.multiplier) as low,
    percentile_cont(0.975) within group (order by drawn.multiplier) as high,
    count(drawn.multiplier) * 1.0 / count(*) as defined
from resampled_multipliers as plain
join resampled_multipliers as drawn
    on
        drawn.level = plain.level
        and drawn.ranking = plain.ranking
        and drawn.ablation = plain.ablation
        and drawn.sparse_run = plain.sparse_run
        and drawn.dense_run = plain.dense_run
        and drawn.threshold = plain.threshold
        and drawn.draw > 0
where plain.draw = 0
group by
    plain.level,
    plain.ranking,
    plain.ablation,
    plain.task,
    plain.sparse_run,
    plain.dense_run,
    plain.threshold,
    plain.sparse_k,
    plain.dense_k,
    plain.multiplier
order by plain.task, plain.level, plain.ranking, plain.ablation, plain.threshold, plain.sparse_run, plain.dense_run
