-- How many times fewer units does one model need than another under their protocol, each with the ablation of its own
-- that has the smaller circuit?
-- The bounds of a model are the least of those of its ablations, as its k is. Those of the ratio are combined from them on
-- log k (MOVER): where a bound of a model is open, so is the one that depends on it.
with
sides as (
    select
        protocol,
        stem,
        level,
        ranking,
        threshold,
        max(case when place = 1 then run end) as run,
        max(case when place = 1 then ablation end) as ablation,
        max(case when place = 1 then k end) as k,
        min(low) as low,
        min(high) as high,
        max(case when place = 1 then first_k end) as first_k
    from protocol_crossings
    group by protocol, stem, level, ranking, threshold
)

select
    sparse.protocol,
    sparse.level,
    sparse.ranking,
    sparse.threshold,
    sparse.stem as sparse_stem,
    dense.stem as dense_stem,
    sparse.run as sparse_run,
    dense.run as dense_run,
    sparse.ablation as sparse_ablation,
    dense.ablation as dense_ablation,
    sparse.k as sparse_k,
    dense.k as dense_k,
    dense.k / sparse.k as multiplier,
    exp(
        ln(dense.k / sparse.k)
        - sqrt(power(ln(dense.k / dense.low), 2) + power(ln(sparse.high / sparse.k), 2))
    ) as low,
    exp(
        ln(dense.k / sparse.k)
        + sqrt(power(ln(dense.high / dense.k), 2) + power(ln(sparse.k / sparse.low), 2))
    ) as high,
    sparse.first_k as sparse_first_k,
    dense.first_k as dense_first_k
from sides as sparse
join sides as dense
    on
        dense.protocol = sparse.protocol
        and dense.level = sparse.level
        and dense.ranking = sparse.ranking
        and dense.threshold = sparse.threshold
