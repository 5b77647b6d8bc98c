"""The tables that questions take their settings from: `thresholds`, `chosen` and `held_out`."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from ..data import Run
from .engine import Connection, engine_of

THRESHOLD = 0.9
"""The explained effect at which curves are compared unless the caller says otherwise."""


def set_thresholds(connection: Connection, thresholds: Iterable[float]) -> None:
    """Set the explained effects at which curves are compared; `THRESHOLD` unless set."""
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
