-- Which prompts does a run have, by number?
select prompt_id
from prompts
where run = $run
order by prompt_id
