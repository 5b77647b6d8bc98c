"""The tables that questions take their settings from: `resamples`, `thresholds`, `chosen` and `held_out`."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from ..data import Run
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
    """Set the prompts that `run_attributed` is about; none unless set."""
    engine_of(connection).put("chosen", pa.table({"prompt_id": pa.array(list(prompts), pa.int32())}))


def set_held_out(connection: Connection, runs: Iterable[Run]) -> None:
    """Set the prompts of each run that its ranking is not from; runs without a split have none."""
    apart = {run.run: run.held_out for run in runs if run.split is not None}
    names = np.repeat(list(apart), [len(prompts) for prompts in apart.values()])
    columns = {
        "run": pa.array(names.tolist(), pa.string()),
        "prompt_id": pa.array(np.concatenate([*apart.values(), np.empty(0, np.int32)]), pa.int32()),
    }
    engine_of(connection).put("held_out", pa.table(columns))
