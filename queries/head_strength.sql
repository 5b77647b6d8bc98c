-- How much |mean score| enters and leaves each head of a run?
with
means as (
    select
        edges.src,
        edges.dst,
        abs(scores.score) as strength
    from (
        select
            edge_id,
            avg(score) as score
        from edge_scores
        where run = $run
        group by edge_id
    ) as scores
    join edges on edges.run = $run and edges.edge_id = scores.edge_id
),

entering as (
    select
        dst as node_id,
        sum(strength) as strength
    from means
    group by dst
),

leaving as (
    select
        src as node_id,
        sum(strength) as strength
    from means
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
order by out_strength desc, nodes.node_id
