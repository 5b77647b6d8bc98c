-- What does each edge score on average over a run's prompts, and how much does it vary?
-- score is the mean, mean_abs the mean of |score|, std the sample standard deviation (null for one prompt).
select
    means.run,
    means.edge_id,
    edges.name,
    means.score,
    means.mean_abs,
    means.std,
    means.prompts
from (
    select
        run,
        edge_id,
        cast(avg(score) as real) as score,
        avg(abs(score)) as mean_abs,
        stddev_samp(score) as std,
        count(*) as prompts
    from edge_scores
    group by run, edge_id
) as means
join edges on edges.run = means.run and edges.edge_id = means.edge_id
