-- From how many units on does each model's curve stay at the threshold, with each ablation of its protocol?
-- Of a model, the first one is that which counts.
select
    protocol,
    stem,
    level,
    ranking,
    run,
    ablation,
    k
from protocol_crossings
order by protocol, stem, level, ranking, place
