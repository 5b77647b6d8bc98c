-- How much of a run's |mean score| runs from each layer to each other?
-- Layer -1 is the input, the layer after the last is the logits.
select
    edges.src_layer,
    edges.dst_layer,
    count(*) as edges,
    sum(abs(means.score)) as mass,
    sum(abs(means.score)) / nullif(sum(sum(abs(means.score))) over (), 0) as share
from edge_means as means
join edges on edges.run = means.run and edges.edge_id = means.edge_id
where means.run = $run
group by edges.src_layer, edges.dst_layer
order by edges.src_layer, edges.dst_layer
