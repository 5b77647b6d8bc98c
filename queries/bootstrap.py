"""The tables that questions take their settings from: `resamples`, `thresholds` and `chosen`."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from .engine import Connection, engine_of
from .texts import text


def resample(connection: Connection, *, draws: int, seed: int = 0) -> None:
    """Set the draws of prompts for the bootstrap; draw 0 has every prompt once.

    A Poisson bootstrap: in a draw, each prompt counts a number of times that is Poisson with mean 1. A prompt
    id has the same count in all runs, so two runs on the same prompts are compared draw by draw.
    """
    engine = engine_of(connection)
    ids = np.asarray(engine.run(text("measured_prompts"), {})["prompt_id"], dtype=np.int32)
    weights = np.ones((draws + 1, len(ids)))
    for i, prompt in enumerate(ids.tolist()):
        # a seed of its own, so that no draw depends on what else is in the store
        weights[1:, i] = np.random.default_rng([seed, prompt]).poisson(1.0, size=draws)
    draw, at = np.nonzero(weights)
    columns = {"draw": draw.astype(np.int32), "prompt_id": ids[at], "weight": weights[draw, at]}
    engine.put("resamples", pa.table(columns))


def set_thresholds(connection: Connection, thresholds: Iterable[float]) -> None:
    """Set the explained effects at which curves are compared; 0.9 unless set."""
    engine_of(connection).put("thresholds", pa.table({"threshold": pa.array(list(thresholds), pa.float64())}))


def set_chosen(connection: Connection, prompts: Iterable[int]) -> None:
    """Set the prompts that `run_chosen_scores` is about; none unless set."""
    engine_of(connection).put("chosen", pa.table({"prompt_id": pa.array(list(prompts), pa.int32())}))
