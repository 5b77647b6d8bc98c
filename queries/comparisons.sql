-- How many times fewer units does a run need than another, and how sure is that?
-- Curves are compared where level, ranking and ablation are the same. The multiplier is dense_k / sparse_k, null where
-- either curve does not stay at the threshold; low and high are its 95 % interval, from those of both k on log k by
-- MOVER: the distance to an end is the root of the sum of the squares of the distances that move the multiplier that
-- way. Where a k may jump from one way up to another (see crossings), it may be off by the whole distance to an end of
-- its interval, and the distances are added, not their squares. Of a run and itself the interval is 1 to 1. An end is
-- null, and the interval open, where that of a k is. What begins with first_ is by where both get there first.
with
distances as (
    select
        sparse.run as sparse_run,
        dense.run as dense_run,
        sparse.level,
        sparse.ranking,
        sparse.ablation,
        sparse.threshold,
        sparse.k as sparse_k,
        dense.k as dense_k,
        sparse.first_k as sparse_first_k,
        dense.first_k as dense_first_k,
        sparse.ragged or dense.ragged as ragged,
        case
            when sparse.run = dense.run then 'the same'
            when sparse.may_jump or dense.may_jump then 'may jump'
        end as how,
        ln(dense.k / dense.low) as dense_below,
        ln(dense.high / dense.k) as dense_above,
        ln(sparse.k / sparse.low) as sparse_below,
        ln(sparse.high / sparse.k) as sparse_above,
        ln(dense.first_k / dense.first_low) as dense_first_below,
        ln(dense.first_high / dense.first_k) as dense_first_above,
        ln(sparse.first_k / sparse.first_low) as sparse_first_below,
        ln(sparse.first_high / sparse.first_k) as sparse_first_above
    from crossings as sparse
    join crossings as dense
        on
            dense.level = sparse.level
            and dense.ranking = sparse.ranking
            and dense.ablation = sparse.ablation
            and dense.threshold = sparse.threshold
)

select
    sparse_run,
    dense_run,
    level,
    ranking,
    ablation,
    threshold,
    sparse_k,
    dense_k,
    dense_k / sparse_k as multiplier,
    dense_k / sparse_k * exp(
        case
            when how = 'the same' then 0
            when how = 'may jump' then -(dense_below + sparse_above)
            else -sqrt(power(dense_below, 2) + power(sparse_above, 2))
        end
    ) as low,
    dense_k / sparse_k * exp(
        case
            when how = 'the same' then 0
            when how = 'may jump' then dense_above + sparse_below
            else sqrt(power(dense_above, 2) + power(sparse_below, 2))
        end
    ) as high,
    sparse_first_k,
    dense_first_k,
    dense_first_k / sparse_first_k as first_multiplier,
    dense_first_k / sparse_first_k * exp(
        case
            when how = 'the same' then 0
            when how = 'may jump' then -(dense_first_below + sparse_first_above)
            else -sqrt(power(dense_first_below, 2) + power(sparse_first_above, 2))
        end
    ) as first_low,
    dense_first_k / sparse_first_k * exp(
        case
            when how = 'the same' then 0
            when how = 'may jump' then dense_first_above + sparse_first_below
            else sqrt(power(dense_first_above, 2) + power(sparse_first_below, 2))
        end
    ) as first_high,
    ragged
from distances
