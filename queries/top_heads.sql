-- Which k heads of a run have the largest |mean score|, over all its prompts or for one of them?
-- prompt is the number of a prompt, or null for all.
select
    ranked.position,
    ranked.node_id,
    nodes.name,
    ranked.score
from (
    select
        node_id,
        score,
        row_number() over (order by abs(score) desc, node_id) as position
    from (
        select
            node_id,
            cast(avg(score) as real) as score
        from head_scores
        where run = $run and (cast($prompt as integer) is null or prompt_id = $prompt)
        group by node_id
    ) as means
) as ranked
join nodes on nodes.run = $run and nodes.node_id = ranked.node_id
where ranked.position <= $k
order by ranked.position
