-- What does each edge of a run score, on average over the prompts that rank or for one prompt?
-- prompt is the number of a prompt, or null for those that rank: all, or with a split those that it ranks by.
select
    edge_id,
    cast(avg(score) as real) as score
from edge_scores
anti join (
    select prompt_id
    from held_out
    where run = $run and cast($prompt as integer) is null
) as others
    on others.prompt_id = edge_scores.prompt_id
where run = $run and (cast($prompt as integer) is null or edge_scores.prompt_id = $prompt)
group by edge_id
order by edge_id
