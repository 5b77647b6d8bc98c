-- At how many units does each measured curve of a run first explain 0.9 of the effect, of how many?
-- k is null for a curve that never gets there.
select
    crossings.level,
    crossings.ranking,
    crossings.ablation,
    crossings.threshold,
    crossings.k,
    largest.requested as units
from crossings
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
