-- How many of their top k edges, by |mean score|, do two runs share?
-- Edges are matched by name, so the runs may be of different models.
with
means as (
    select
        run,
        edge_id,
        avg(score) as score
    from edge_scores
    where run = $run or run = $other
    group by run, edge_id
),

ranked as (
    select
        run,
        edge_id,
        row_number() over (partition by run order by abs(score) desc, edge_id) as position
    from means
),

top_edges as (
    select
        ranked.run,
        edges.name
    from ranked
    join edges on edges.run = ranked.run and edges.edge_id = ranked.edge_id
    where ranked.position <= $k
),

shared as (
    select count(*) as n
    from top_edges as mine
    join top_edges as theirs on theirs.name = mine.name
    where mine.run = $run and theirs.run = $other
),

either as (
    select count(distinct name) as n
    from top_edges
)

select
    shared.n as shared,
    either.n as either,
    shared.n * 1.0 / either.n as jaccard
from shared
cross join either
