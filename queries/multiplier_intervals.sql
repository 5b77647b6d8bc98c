-- How sure are the multipliers of all pairs, at this threshold and crossing: their 95 % intervals?
-- crossing is 'sustained' (the sizes from which both curves stay at the threshold) or 'first' (where they first get
-- there). An end of an interval is null where it is open, and both are where there is no multiplier.
select
    level,
    ranking,
    ablation,
    task,
    sparse_run,
    dense_run,
    threshold,
    case when $crossing = 'first' then sparse_first_k else sparse_k end as sparse_k,
    case when $crossing = 'first' then dense_first_k else dense_k end as dense_k,
    case when $crossing = 'first' then first_multiplier else multiplier end as multiplier,
    case when $crossing = 'first' then first_low else low end as low,
    case when $crossing = 'first' then first_high else high end as high,
    ragged
from multipliers
order by task, level, ranking, ablation, threshold, sparse_run, dense_run
