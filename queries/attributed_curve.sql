-- What share of a run's total |mean score| do its top k edges hold, for every k?
select
    k,
    sum(strength) over (order by k rows between unbounded preceding and current row)
    / nullif(sum(strength) over (), 0) as share
from (
    select
        cast(abs(score) as double) as strength,
        row_number() over (order by abs(score) desc, edge_id) as k
    from edge_means
    where run = $run
) as ranked
order by k
