-- Which prompts have measured effects in any run, by number?
select distinct prompt_id
from effects
order by prompt_id
