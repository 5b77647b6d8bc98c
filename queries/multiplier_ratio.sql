-- How do two multipliers compare: by how many times is the first one larger, and how sure is that?
-- Each is of a sparse run and a dense one (run and other) at a level, by a ranking, with an ablation; what is not said of
-- the second one is as of the first. The 95 % interval is from those of the four crossings, as that of a multiplier is (see
-- comparisons). A crossing that both have in common, such as that of one dense model that two sparse ones are compared
-- with, cancels out and adds nothing. The ratio is null where a multiplier is, an end of its interval where it is open.
with
crossed as (
    select
        run,
        level,
        ranking,
        ablation,
        may_jump,
        case when $crossing = 'first' then ln(first_k) else ln(k) end as place,
        case when $crossing = 'first' then ln(first_k / first_low) else ln(k / low) end as below,
        case when $crossing = 'first' then ln(first_high / first_k) else ln(high / k) end as above
    from crossings
    where run in ($run, $other, coalesce($second_run, $run), coalesce($second_other, $other))
),

four as (
    select
        dense.place - sparse.place as multiplier,
        second_dense.place - second_sparse.place as second_multiplier,
        sparse.run = second_sparse.run
        and sparse.level = second_sparse.level
        and sparse.ranking = second_sparse.ranking
        and sparse.ablation = second_sparse.ablation as same_sparse,
        dense.run = second_dense.run
        and dense.level = second_dense.level
        and dense.ranking = second_dense.ranking
        and dense.ablation = second_dense.ablation as same_dense,
        sparse.may_jump or second_sparse.may_jump as sparse_may_jump,
        dense.may_jump or second_dense.may_jump as dense_may_jump,
        sparse.above as sparse_down,
        second_sparse.below as second_sparse_down,
        dense.below as dense_down,
        second_dense.above as second_dense_down,
        sparse.below as sparse_up,
        second_sparse.above as second_sparse_up,
        dense.above as dense_up,
        second_dense.below as second_dense_up
    from crossed as sparse
    cross join crossed as dense
    cross join crossed as second_sparse
    cross join crossed as second_dense
    where
        sparse.run = $run
        and sparse.level = $level
        and sparse.ranking = $ranking
        and sparse.ablation = $ablation
        and dense.run = $other
        and dense.level = $level
        and dense.ranking = $ranking
        and dense.ablation = $ablation
        and second_sparse.run = coalesce($second_run, $run)
        and second_sparse.level = coalesce($second_level, $level)
        and second_sparse.ranking = coalesce($second_ranking, $ranking)
        and second_sparse.ablation = coalesce($second_ablation, $ablation)
        and second_dense.run = coalesce($second_other, $other)
        and second_dense.level = coalesce($second_level, $level)
        and second_dense.ranking = coalesce($second_ranking, $ranking)
        and second_dense.ablation = coalesce($second_ablation, $ablation)
),

-- sums of the distances downwards and upwards, and of their squares
sums as (
    select
        multiplier,
        second_multiplier,
        (sparse_may_jump and not same_sparse) or (dense_may_jump and not same_dense) as may_jump,
        case when same_sparse then 0 else sparse_down + second_sparse_down end
        + case when same_dense then 0 else dense_down + second_dense_down end as below,
        case when same_sparse then 0 else sparse_up + second_sparse_up end
        + case when same_dense then 0 else dense_up + second_dense_up end as above,
        case when same_sparse then 0 else power(sparse_down, 2) + power(second_sparse_down, 2) end
        + case when same_dense then 0 else power(dense_down, 2) + power(second_dense_down, 2) end as squares_below,
        case when same_sparse then 0 else power(sparse_up, 2) + power(second_sparse_up, 2) end
        + case when same_dense then 0 else power(dense_up, 2) + power(second_dense_up, 2) end as squares_above
    from four
)

select
    exp(multiplier) as multiplier,
    exp(second_multiplier) as second_multiplier,
    exp(multiplier - second_multiplier) as ratio,
    exp(multiplier - second_multiplier - case when may_jump then below else sqrt(squares_below) end) as low,
    exp(multiplier - second_multiplier + case when may_jump then above else sqrt(squares_above) end) as high
from sums
