-- What are the runs in the store called?
select run
from runs
order by run
