-- How many of their top k edges, by |mean score|, do two runs share?
-- Edges are matched by name, so the runs may be of different models.
with
ranked as (
    select
        run,
        name,
        row_number() over (partition by run order by abs(score) desc, edge_id) as position
    from edge_means
    where run = $run or run = $other
),

shared as (
    select count(*) as n
    from ranked as mine
    join ranked as theirs on theirs.name = mine.name
    where mine.run = $run and theirs.run = $other and mine.position <= $k and theirs.position <= $k
),

either as (
    select count(distinct name) as n
    from ranked
    where position <= $k
)

select
    shared.n as shared,
    either.n as either,
    cast(shared.n as double) / nullif(either.n, 0) as jaccard
from shared
cross join either
