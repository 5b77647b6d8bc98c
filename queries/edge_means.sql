-- What does each edge score on average over the prompts that rank, and how much does it vary?
-- These are all prompts or, in a run with a split, those that it ranks by (ranking_prompts): the k largest |score| are
-- the edges that a circuit of k requests. score is the mean, mean_abs the mean of |score|, std the sample standard
-- deviation (null for one prompt), stderr the standard error of the mean and t the score in these; both are null
-- where nothing varies.
select
    means.run,
    means.edge_id,
    edges.name,
    means.score,
    means.mean_abs,
    means.std,
    means.prompts,
    nullif(means.std, 0) / sqrt(means.prompts) as stderr,
    means.score / nullif(means.std, 0) * sqrt(means.prompts) as t
from (
    select
        run,
        edge_id,
        score,
        mean_abs,
        -- sums of equal numbers, taken in parts, may vary in the last digit of a double
        case when std <= 1e-12 * mean_abs then cast(0 as double) else std end as std,
        prompts
    from (
        select
            edge_scores.run,
            edge_scores.edge_id,
            cast(avg(edge_scores.score) as real) as score,
            avg(abs(edge_scores.score)) as mean_abs,
            stddev_samp(edge_scores.score) as std,
            count(*) as prompts
        from edge_scores
        anti join held_out on held_out.run = edge_scores.run and held_out.prompt_id = edge_scores.prompt_id
        group by edge_scores.run, edge_scores.edge_id
    ) as sums
) as means
join edges on edges.run = means.run and edges.edge_id = means.edge_id
