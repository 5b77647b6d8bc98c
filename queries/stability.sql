-- How alike are the rankings of a run's prompts: the mean Jaccard index of the top k edges of two prompts?
-- Null for a single prompt.
with
-- the k-th largest of a 32nd of a prompt's edges, if it has so many, is at most the k-th largest of all: what is
-- below it need not be sorted
bounds as (
    select
        prompt_id,
        strength
    from (
        select
            prompt_id,
            abs(score) as strength,
            row_number() over (partition by prompt_id order by abs(score) desc) as position
        from edge_scores
        where run = $run and edge_id % 32 = 0
    ) as sample
    where position = $k
),

ranked as (
    select
        edge_scores.prompt_id,
        edge_scores.edge_id,
        row_number() over (
            partition by edge_scores.prompt_id
            order by abs(edge_scores.score) desc, edge_scores.edge_id
        ) as position
    from edge_scores
    left join bounds on bounds.prompt_id = edge_scores.prompt_id
    where edge_scores.run = $run and (bounds.strength is null or abs(edge_scores.score) >= bounds.strength)
),

top_edges as (
    select
        prompt_id,
        edge_id
    from ranked
    where position <= $k
),

sizes as (
    select
        count(distinct prompt_id) as prompts,
        cast(count(*) as double) / nullif(count(distinct prompt_id), 0) as size
    from top_edges
),

shared as (
    select
        mine.prompt_id as first_prompt,
        theirs.prompt_id as second_prompt,
        count(*) as n
    from top_edges as mine
    join top_edges as theirs on theirs.edge_id = mine.edge_id and theirs.prompt_id > mine.prompt_id
    group by mine.prompt_id, theirs.prompt_id
),

-- pairs that share nothing have no row here: they count as 0 in the mean
alike as (
    select coalesce(sum(shared.n / (2 * sizes.size - shared.n)), 0) as total
    from shared
    cross join sizes
)

select
    sizes.prompts,
    alike.total / nullif(cast(sizes.prompts * (sizes.prompts - 1) as double) / 2, 0) as mean_jaccard
from alike
cross join sizes
