-- What share of the total |score| do the top k units hold, at the sizes at which a curve was measured?
-- chosen holds the prompts that count. Ranked by prompt, the mean over prompts of each one's share; a prompt that has
-- fewer units than k has them all. In another ranking, of the units' mean scores over these prompts: by task those with
-- the largest |score| first, by signed those that help most.
with
scored as (
    select
        edge_scores.prompt_id,
        cast(edge_scores.edge_id as bigint) as unit,
        edge_scores.score
    from edge_scores
    join chosen on chosen.prompt_id = edge_scores.prompt_id
    where edge_scores.run = $run and $level = 'edge'
    union all
    select
        head_scores.prompt_id,
        cast(head_scores.node_id as bigint) as unit,
        head_scores.score
    from head_scores
    join chosen on chosen.prompt_id = head_scores.prompt_id
    where head_scores.run = $run and $level = 'head'
    union all
    select
        attention_scores.prompt_id,
        cast(null as bigint) as unit, -- each is of one prompt
        attention_scores.score
    from attention_scores
    join chosen on chosen.prompt_id = attention_scores.prompt_id
    where attention_scores.run = $run and $level = 'attention'
),

helpful as (
    select helpful_sign
    from runs
    where run = $run
),

means as (
    select
        prompt_id,
        score
    from scored
    where $ranking = 'prompt'
    union all
    select
        -1 as prompt_id,
        cast(avg(score) as real) as score
    from scored
    where $ranking <> 'prompt'
    group by unit
),

strengths as (
    select
        means.prompt_id,
        cast(abs(means.score) as double) as strength,
        case
            when $ranking = 'signed' then cast(helpful.helpful_sign * means.score as double)
            else cast(abs(means.score) as double)
        end as place
    from means
    cross join helpful
),

totals as (
    select
        prompt_id,
        count(*) as units,
        sum(strength) as strength
    from strengths
    group by prompt_id
),

-- one sort for both; as strong is as good, so it does not matter which of two comes first
ranked as (
    select
        prompt_id,
        row_number() over (partition by prompt_id order by place desc) as k,
        sum(strength) over (
            partition by prompt_id
            order by place desc rows between unbounded preceding and current row
        ) as strength
    from strengths
),

sizes as (
    select distinct requested
    from effects
    where run = $run and level = $level and ranking = $ranking
)

select
    sizes.requested,
    avg(ranked.strength / nullif(totals.strength, 0)) as share
from sizes
cross join totals
join ranked
    on
        ranked.prompt_id = totals.prompt_id
        and ranked.k = case when sizes.requested < totals.units then sizes.requested else totals.units end
where sizes.requested > 0
group by sizes.requested
order by sizes.requested
