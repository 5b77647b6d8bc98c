-- By which prompts are the units of each run ranked?
-- By all or, in a run with a split, by those that it puts aside for that; circuits are then measured on the others.
select
    prompts.run,
    prompts.prompt_id
from prompts
anti join held_out on held_out.run = prompts.run and held_out.prompt_id = prompts.prompt_id
