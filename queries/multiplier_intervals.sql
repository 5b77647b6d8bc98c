-- How sure are the multipliers: their 95 % interval over bootstrap draws of the prompts?
-- crossing is 'sustained' (the sizes from which both curves stay at the threshold) or 'first' (where they first get
-- there). defined is the share of draws in which both do; the interval is over these.
select
    level,
    ranking,
    ablation,
    task,
    sparse_run,
    dense_run,
    threshold,
    max(case when draw = 0 then sparse_k end) as sparse_k,
    max(case when draw = 0 then dense_k end) as dense_k,
    max(case when draw = 0 then multiplier end) as multiplier,
    percentile_cont(0.025) within group (order by case when draw > 0 then multiplier end) as low,
    percentile_cont(0.975) within group (order by case when draw > 0 then multiplier end) as high,
    cast(count(case when draw > 0 then multiplier end) as double)
    / nullif(count(case when draw > 0 then 1 end), 0) as defined
from (
    select
        level,
        ranking,
        ablation,
        task,
        sparse_run,
        dense_run,
        draw,
        threshold,
        case when $crossing = 'first' then sparse_first_k else sparse_k end as sparse_k,
        case when $crossing = 'first' then dense_first_k else dense_k end as dense_k,
        case when $crossing = 'first' then first_multiplier else multiplier end as multiplier
    from resampled_multipliers
) as multipliers
group by level, ranking, ablation, task, sparse_run, dense_run, threshold
order by task, level, ranking, ablation, threshold, sparse_run, dense_run
