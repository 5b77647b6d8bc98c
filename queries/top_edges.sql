-- Which k edges of a run have the largest |mean score|, over the prompts that rank or for one prompt?
-- prompt is the number of a prompt, or null for those that rank: all, or with a split those that it ranks by.
select
    ranked.position,
    ranked.edge_id,
    edges.name,
    ranked.score
from (
    select
        edge_id,
        score,
        row_number() over (order by abs(score) desc, edge_id) as position
    from (
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
    ) as means
) as ranked
join edges on edges.run = $run and edges.edge_id = ranked.edge_id
where ranked.position <= $k
order by ranked.position
