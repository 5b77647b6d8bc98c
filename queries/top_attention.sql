-- Which k attention edges of one prompt have the largest |score|?
select
    position,
    concat('a', layer, '.h', head, '[', query, '<-', key, ']') as name,
    layer,
    head,
    query,
    key,
    weight,
    gate,
    score
from (
    select
        layer,
        head,
        query,
        key,
        weight,
        gate,
        score,
        row_number() over (order by abs(score) desc, layer, head, query, key) as position
    from attention_scores
    where run = $run and prompt_id = $prompt
) as ranked
where position <= $k
order by position
