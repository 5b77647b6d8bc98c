-- What do the prompts of a run say, and which of them have a measured curve of their own edges?
-- clean is null where the run knows its prompts by token ids only, or not at all.
select
    prompts.prompt_id,
    prompts.clean,
    measured.prompt_id is not null as measured
from prompts
left join (
    select distinct prompt_id
    from effects
    where run = $run and level = 'edge' and ranking = 'prompt' and ablation = $ablation
) as measured
    on measured.prompt_id = prompts.prompt_id
where prompts.run = $run
order by prompts.prompt_id
