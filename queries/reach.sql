-- From how many units on, of how many, does each measured curve of a run explain 0.9 of the effect?
-- k is null for a curve that does not stay there; first_k is where it first gets there, and it is ragged if it falls
-- below again, so that the two differ by more than a tenth. Attention edges: units is the largest size measured.
select
    crossings.level,
    crossings.ranking,
    crossings.ablation,
    crossings.threshold,
    crossings.k,
    crossings.low,
    crossings.high,
    crossings.first_k,
    crossings.ragged,
    case crossings.level
        when 'edge' then runs.edges
        when 'head' then runs.layers * runs.heads
        else largest.requested
    end as units
from crossings
join runs on runs.run = crossings.run
join (
    select
        level,
        ranking,
        ablation,
        max(requested) as requested
    from effects
    where run = $run
    group by level, ranking, ablation
) as largest
    on
        largest.level = crossings.level
        and largest.ranking = crossings.ranking
        and largest.ablation = crossings.ablation
where crossings.run = $run
order by crossings.level, crossings.ablation, crossings.ranking
