-- What does each head score on average over the prompts that rank, and how much does it vary?
-- As edge_means, for the runs that have the level head.
select
    means.run,
    means.node_id,
    nodes.name,
    nodes.layer,
    nodes.head,
    means.score,
    means.mean_abs,
    means.std,
    nullif(means.std, 0) / sqrt(means.prompts) as stderr,
    means.score / nullif(means.std, 0) * sqrt(means.prompts) as t,
    means.prompts
from (
    select
        run,
        node_id,
        score,
        mean_abs,
        -- sums of equal numbers, taken in parts, may vary in the last digit of a double
        case when std <= 1e-12 * mean_abs then cast(0 as double) else std end as std,
        prompts
    from (
        select
            head_scores.run,
            head_scores.node_id,
            cast(avg(head_scores.score) as real) as score,
            avg(abs(head_scores.score)) as mean_abs,
            stddev_samp(head_scores.score) as std,
            count(*) as prompts
        from head_scores
        anti join held_out on held_out.run = head_scores.run and held_out.prompt_id = head_scores.prompt_id
        group by head_scores.run, head_scores.node_id
    ) as sums
) as means
join nodes on nodes.run = means.run and nodes.node_id = means.node_id
