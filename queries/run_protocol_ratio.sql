-- How many times fewer units does one model need than another under a protocol?
-- crossing is 'sustained' or 'first', as for multiplier_intervals; which ablation counts is by the sustained k.
select
    case when $crossing = 'first' then sparse_first_k else sparse_k end as sparse_k,
    case when $crossing = 'first' then dense_first_k else dense_k end as dense_k,
    case when $crossing = 'first' then dense_first_k / sparse_first_k else multiplier end as multiplier,
    case when $crossing = 'first' then null else low end as low,
    case when $crossing = 'first' then null else high end as high,
    sparse_first_k,
    dense_first_k
from protocol_ratios
where
    protocol = $protocol
    and sparse_stem = $sparse
    and dense_stem = $dense
    and level = $level
    and ranking = $ranking
