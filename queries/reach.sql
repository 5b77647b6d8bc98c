-- At how many units, of how many, does each measured curve of a run first explain 0.9 of the effect?
-- k is null for a curve that never gets there. Attention edges: units is the largest size measured.
select
    crossings.level,
    crossings.ranking,
    crossings.ablation,
    crossings.threshold,
    crossings.k,
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
where crossings.run = $run and crossings.draw = 0
order by crossings.level, crossings.ablation, crossings.ranking
