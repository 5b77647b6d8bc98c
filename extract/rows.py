"""Scores as rows of the store's tables, sorted by their ids."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..graphs import Wiring
from .attribution import Attention, Scores


def score_tables(wiring: Wiring, shard: range, scores: Sequence[Scores]) -> dict[str, pa.Table]:
    """The rows of a shard of prompts, by table; each prompt has its own scores."""
    tables = {}
    if scores[0].edge is not None:
        tables["edge_scores"] = _long(shard, "edge_id", np.arange(wiring.n_edges), [s.edge for s in scores])
    if scores[0].head is not None:
        heads = np.flatnonzero(wiring.is_kind("head"))
        tables["head_scores"] = _long(shard, "node_id", heads, [s.head for s in scores])
    if scores[0].attention is not None:
        parts = [
            _pairs(prompt, s.attention[0]) for prompt, s in zip(shard, scores, strict=True) if s.attention
        ]
        tables["attention_scores"] = pa.concat_tables(parts)
    return tables


def _long(
    shard: range, unit: str, ids: NDArray[np.integer], scores: Sequence[NDArray[np.float32] | None]
) -> pa.Table:
    values = np.concatenate([s[0] for s in scores if s is not None])
    ids = ids.astype(np.int32)
    return pa.table(
        {
            "prompt_id": np.repeat(np.arange(shard.start, shard.stop, dtype=np.int32), len(ids)),
            unit: np.tile(ids, len(shard)),
            "score": values,
        }
    )


def _pairs(prompt: int, found: Attention) -> pa.Table:
    layers, heads, pairs = found.score.shape
    query, key = np.tril_indices(int((2 * pairs) ** 0.5))
    each = heads * pairs
    return pa.table(
        {
            "prompt_id": np.full(layers * each, prompt, dtype=np.int32),
            "layer": np.repeat(np.arange(layers, dtype=np.int32), each),
            "head": np.tile(np.repeat(np.arange(heads, dtype=np.int32), pairs), layers),
            "query": np.tile(query.astype(np.int32), layers * heads),
            "key": np.tile(key.astype(np.int32), layers * heads),
            "weight": found.weight.ravel(),
            "gate": found.gate.ravel(),
            "score": found.score.ravel(),
        }
    )
