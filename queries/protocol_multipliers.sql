-- How many times fewer units does each sparse run need than its dense twin under their protocol?
-- Each model is taken by the ablation that has its smaller circuit.
select
    protocol_ratios.protocol,
    protocol_ratios.level,
    protocol_ratios.ranking,
    protocol_pairs.task,
    protocol_ratios.sparse_run,
    protocol_ratios.dense_run,
    protocol_ratios.sparse_ablation,
    protocol_ratios.dense_ablation,
    protocol_ratios.threshold,
    protocol_ratios.sparse_k,
    protocol_ratios.dense_k,
    protocol_ratios.multiplier,
    protocol_ratios.low,
    protocol_ratios.high,
    protocol_ratios.ragged
from protocol_ratios
join protocol_pairs
    on
        protocol_pairs.protocol = protocol_ratios.protocol
        and protocol_pairs.sparse_stem = protocol_ratios.sparse_stem
        and protocol_pairs.dense_stem = protocol_ratios.dense_stem
