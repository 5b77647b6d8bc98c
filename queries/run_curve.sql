-- How much do circuits of each size explain in one curve?
select
    requested,
    kept,
    explained,
    stderr,
    low,
    high
from curves
where run = $run and level = $level and ranking = $ranking and ablation = $ablation
order by requested
