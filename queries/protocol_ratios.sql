-- How many times fewer units does one model need than another under their protocol, and how sure is that?
-- Each model is taken by the ablation that has its smaller circuit.
-- The ends of the interval of a model's k are the least of those of its ablations, as its k is; null, which is open,
-- where all are. From these, those of the ratio are combined as in comparisons. What begins with first_, and ragged (see
-- multipliers), is of the same ablations alone: which count is by the k from which on curves stay.
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
        max(case when place = 1 then first_high end) as first_high,
        max(case when place = 1 and ragged then 1 else 0 end) as ragged,
        max(case when may_jump then 1 else 0 end) as may_jump
    from protocol_crossings
    group by protocol, stem, level, ranking, threshold
),

distances as (
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
        sparse.first_k as sparse_first_k,
        dense.first_k as dense_first_k,
        sparse.ragged + dense.ragged > 0 as ragged,
        case
            when sparse.stem = dense.stem then 'the same'
            when sparse.may_jump + dense.may_jump > 0 then 'may jump'
        end as how,
        ln(dense.k / dense.low) as dense_below,
        ln(dense.high / dense.k) as dense_above,
        ln(sparse.k / sparse.low) as sparse_below,
        ln(sparse.high / sparse.k) as sparse_above,
        ln(dense.first_k / dense.first_low) as dense_first_below,
        ln(dense.first_high / dense.first_k) as dense_first_above,
        ln(sparse.first_k / sparse.first_low) as sparse_first_below,
        ln(sparse.first_high / sparse.first_k) as sparse_first_above
    from sides as sparse
    join sides as dense
        on
            dense.protocol = sparse.protocol
            and dense.level = sparse.level
            and dense.ranking = sparse.ranking
            and dense.threshold = sparse.threshold
)

select
    protocol,
    level,
    ranking,
    threshold,
    sparse_stem,
    dense_stem,
    sparse_run,
    dense_run,
    sparse_ablation,
    dense_ablation,
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
