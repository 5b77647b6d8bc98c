-- How many times fewer units does one model need than another under their protocol, each by the ablation that has its
-- smaller circuit, and how sure is that?
-- The ends of the interval of a model's k are the least of those of its ablations, as its k is; null, which is open, where
-- all are. From these, those of the ratio are combined as in comparisons. What begins with first_ is of the same
-- ablations alone: which count is by the k from which on curves stay.
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
        max(case when place = 1 then first_k end) as first_k,
        max(case when place = 1 then first_low end) as first_low,
        max(case when place = 1 then first_high end) as first_high
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
    dense.k / sparse.k
    * exp(-sqrt(power(ln(dense.k / dense.low), 2) + power(ln(sparse.high / sparse.k), 2))) as low,
    dense.k / sparse.k
    * exp(sqrt(power(ln(dense.high / dense.k), 2) + power(ln(sparse.k / sparse.low), 2))) as high,
    sparse.first_k as sparse_first_k,
    dense.first_k as dense_first_k,
    dense.first_k / sparse.first_k as first_multiplier,
    dense.first_k / sparse.first_k
    * exp(
        -sqrt(
            power(ln(dense.first_k / dense.first_low), 2) + power(ln(sparse.first_high / sparse.first_k), 2)
        )
    ) as first_low,
    dense.first_k / sparse.first_k
    * exp(
        sqrt(
            power(ln(dense.first_high / dense.first_k), 2) + power(ln(sparse.first_k / sparse.first_low), 2)
        )
    ) as first_high
from sides as sparse
join sides as dense
    on
        dense.protocol = sparse.protocol
        and dense.level = sparse.level
        and dense.ranking = sparse.ranking
        and dense.threshold = sparse.threshold
