-- What is one prompt of a run: its text, its tokens and the corrupted ones?
select
    clean,
    clean_tokens,
    clean_ids,
    corrupted_ids
from prompts
where run = $run and prompt_id = $prompt
