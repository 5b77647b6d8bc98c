-- Which k heads of a run have the largest |mean score|, over the prompts that rank or for one prompt?
-- prompt is the number of a prompt, or null for those that rank: all, or with a split those that it ranks by.
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
        anti join (
            select prompt_id
            from held_out
            where run = $run and cast($prompt as integer) is null
        ) as others
            on others.prompt_id = head_scores.prompt_id
        where run = $run and (cast($prompt as integer) is null or head_scores.prompt_id = $prompt)
        group by node_id
    ) as means
) as ranked
join nodes on nodes.run = $run and nodes.node_id = ranked.node_id
where ranked.position <= $k
order by ranked.position
