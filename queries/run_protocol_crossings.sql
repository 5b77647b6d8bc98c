-- From how many units on does a model's curve stay at the threshold, with each ablation of its protocol?
-- The first one is that which counts.
select
    run,
    ablation,
    k
from protocol_crossings
where protocol = $protocol and stem = $stem and level = $level and ranking = $ranking
order by place
