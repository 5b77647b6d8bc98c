-- Which prompts is a measured curve of?
select distinct prompt_id
from effects
where run = $run and level = $level and ranking = $ranking and ablation = $ablation
order by prompt_id
