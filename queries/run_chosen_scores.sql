-- What does each edge of a run score, on average over some of its prompts?
-- chosen holds the numbers of these prompts.
select
    edge_scores.edge_id,
    cast(avg(edge_scores.score) as real) as score
from edge_scores
join chosen on chosen.prompt_id = edge_scores.prompt_id
where edge_scores.run = $run
group by edge_scores.edge_id
order by edge_scores.edge_id
