-- How much |mean score| enters and leaves each head of a run?
with
strengths as (
    select
        edges.src,
        edges.dst,
        abs(means.score) as strength
    from edge_means as means
    join edges on edges.run = means.run and edges.edge_id = means.edge_id
    where means.run = $run
),

entering as (
    select
        dst as node_id,
        sum(strength) as strength
    from strengths
    group by dst
),

leaving as (
    select
        src as node_id,
        sum(strength) as strength
    from strengths
    group by src
)

select
    nodes.name,
    nodes.layer,
    nodes.head,
    entering.strength as in_strength,
    leaving.strength as out_strength
from nodes
left join entering on entering.node_id = nodes.node_id
left join leaving on leaving.node_id = nodes.node_id
where nodes.run = $run and nodes.kind = 'head'
order by leaving.strength desc, nodes.node_id
