-- What share of a run's total |mean score| do its top k edges hold, for every k?
select
    k,
    sum(strength) over (order by k rows between unbounded preceding and current row)
    / sum(strength) over () as share
from (
    select
        abs(score) as strength,
        row_number() over (order by abs(score) desc, edge_id) as k
    from (
        select
            edge_id,
            avg(score) as score
        from edge_scores
        where run = $run
        group by edge_id
    ) as means
) as ranked
order by k
