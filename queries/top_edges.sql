-- Which k edges of a run have the largest |mean score|, over all its prompts or for one of them?
-- prompt is the number of a prompt, or null for all.
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
        where run = $run and (cast($prompt as integer) is null or prompt_id = $prompt)
        group by edge_id
    ) as means
) as ranked
join edges on edges.run = $run and edges.edge_id = ranked.edge_id
where ranked.position <= $k
order by ranked.position
