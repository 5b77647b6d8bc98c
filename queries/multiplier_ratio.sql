-- How do two multipliers compare: by how many times is the first one larger, and how sure is that?
-- Each is of a sparse and a dense run at a level, by a ranking, with an ablation; what is not said of the second one is as
-- of the first. The interval (95 %) is by MOVER from those of the four crossings on log k; a crossing that both have in
-- common, such as that of one dense model that two sparse ones are compared with, cancels out and adds nothing to it.
-- The ratio is null where a multiplier is, an end of its interval where it is open.
with
ends as (
    select
        run,
        level,
        ranking,
        ablation,
        case when $crossing = 'first' then first_k else k end as k,
        case when $crossing = 'first' then first_low else low end as low,
        case when $crossing = 'first' then first_high else high end as high
    from crossings
    where run in ($run, $other, coalesce($second_run, $run), coalesce($second_other, $other))
),

four as (
    select
        sparse.k as sparse_k,
        dense.k as dense_k,
        other_sparse.k as other_sparse_k,
        other_dense.k as other_dense_k,
        case
            when
                other_sparse.run = sparse.run
                and other_sparse.level = sparse.level
                and other_sparse.ranking = sparse.ranking
                and other_sparse.ablation = sparse.ablation
                then 0
            else 1
        end as sparse_counts,
        case
            when
                other_dense.run = dense.run
                and other_dense.level = dense.level
                and other_dense.ranking = dense.ranking
                and other_dense.ablation = dense.ablation
                then 0
            else 1
        end as dense_counts,
        ln(sparse.k / sparse.low) as sparse_below,
        ln(sparse.high / sparse.k) as sparse_above,
        ln(dense.k / dense.low) as dense_below,
        ln(dense.high / dense.k) as dense_above,
        ln(other_sparse.k / other_sparse.low) as other_sparse_below,
        ln(other_sparse.high / other_sparse.k) as other_sparse_above,
        ln(other_dense.k / other_dense.low) as other_dense_below,
        ln(other_dense.high / other_dense.k) as other_dense_above
    from ends as sparse
    cross join ends as dense
    cross join ends as other_sparse
    cross join ends as other_dense
    where
        sparse.run = $run
        and sparse.level = $level
        and sparse.ranking = $ranking
        and sparse.ablation = $ablation
        and dense.run = $other
        and dense.level = $level
        and dense.ranking = $ranking
        and dense.ablation = $ablation
        and other_sparse.run = coalesce($second_run, $run)
        and other_sparse.level = coalesce($second_level, $level)
        and other_sparse.ranking = coalesce($second_ranking, $ranking)
        and other_sparse.ablation = coalesce($second_ablation, $ablation)
        and other_dense.run = coalesce($second_other, $other)
        and other_dense.level = coalesce($second_level, $level)
        and other_dense.ranking = coalesce($second_ranking, $ranking)
        and other_dense.ablation = coalesce($second_ablation, $ablation)
),

squares as (
    select
        dense_k / sparse_k as multiplier,
        other_dense_k / other_sparse_k as second_multiplier,
        case when dense_counts = 0 then 0 else power(dense_below, 2) + power(other_dense_above, 2) end
        + case when sparse_counts = 0 then 0 else power(sparse_above, 2) + power(other_sparse_below, 2) end
        as below,
        case when dense_counts = 0 then 0 else power(dense_above, 2) + power(other_dense_below, 2) end
        + case when sparse_counts = 0 then 0 else power(sparse_below, 2) + power(other_sparse_above, 2) end
        as above
    from four
)

select
    multiplier,
    second_multiplier,
    multiplier / second_multiplier as ratio,
    multiplier / second_multiplier * exp(-sqrt(below)) as low,
    multiplier / second_multiplier * exp(sqrt(above)) as high
from squares
