-- What does each edge of a run score, on average over its prompts or for one of them?
-- prompt is the number of a prompt, or null for all.
select
    edge_id,
    cast(avg(score) as real) as score
from edge_scores
where run = $run and (cast($prompt as integer) is null or prompt_id = $prompt)
group by edge_id
order by edge_id
