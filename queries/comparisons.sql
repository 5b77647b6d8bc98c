-- How many times fewer units does a run need than another, and how sure is that?
-- Curves are compared where level, ranking and ablation are the same. The multiplier is dense_k / sparse_k, null where
-- either curve does not stay at the threshold; low and high are its 95 % interval, from those of both k on log k by
-- MOVER: the distances to the multiplier are the roots of the sums of the squares of those that move it that way. An end
-- is null, and the interval open there, where that of a k is. What begins with first_ is by where both get there first.
select
    sparse.run as sparse_run,
    dense.run as dense_run,
    sparse.level,
    sparse.ranking,
    sparse.ablation,
    sparse.threshold,
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
    ) as first_high,
    sparse.ragged or dense.ragged as ragged
from crossings as sparse
join crossings as dense
    on
        dense.level = sparse.level
        and dense.ranking = sparse.ranking
        and dense.ablation = sparse.ablation
        and dense.threshold = sparse.threshold
