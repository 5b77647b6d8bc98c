-- How many times fewer units does one run need than another, and how sure is that?
-- crossing is 'sustained' or 'first', as for multiplier_intervals. low and high are a 95 % interval over bootstrap
-- draws of the prompts, of those draws in which both curves reach the threshold: defined is their share.
select
    max(case when draw = 0 then sparse_k end) as sparse_k,
    max(case when draw = 0 then dense_k end) as dense_k,
    max(case when draw = 0 then multiplier end) as multiplier,
    percentile_cont(0.025) within group (order by case when draw > 0 then multiplier end) as low,
    percentile_cont(0.975) within group (order by case when draw > 0 then multiplier end) as high,
    cast(count(case when draw > 0 then multiplier end) as double)
    / nullif(count(case when draw > 0 then 1 end), 0) as defined,
    max(case when draw = 0 then sparse_first_k end) as sparse_first_k,
    max(case when draw = 0 then dense_first_k end) as dense_first_k
from (
    select
        sparse.draw,
        case when $crossing = 'first' then sparse.first_k else sparse.k end as sparse_k,
        case when $crossing = 'first' then dense.first_k else dense.k end as dense_k,
        case when $crossing = 'first' then dense.first_k / sparse.first_k else dense.k / sparse.k end as multiplier,
        sparse.first_k as sparse_first_k,
        dense.first_k as dense_first_k
    from crossings as sparse
    join crossings as dense
        on
            dense.level = sparse.level
            and dense.ranking = sparse.ranking
            and dense.ablation = sparse.ablation
            and dense.draw = sparse.draw
            and dense.threshold = sparse.threshold
    where
        sparse.run = $run
        and dense.run = $other
        and sparse.level = $level
        and sparse.ranking = $ranking
        and sparse.ablation = $ablation
) as multipliers
