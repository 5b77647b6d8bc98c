-- How large is the effect that the curves of a run explain, at each level and with each ablation?
select
    level,
    ablation,
    prompts,
    effect,
    effect_stderr
from curve_effects
where run = $run
order by level, ablation
