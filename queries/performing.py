"""How well the models of runs do their tasks, and which curves explain nothing."""

from collections.abc import Mapping
from dataclasses import replace

from ..data import Performance, Run
from .engine import Connection
from .questions import ask


def performances(connection: Connection) -> dict[str, Performance]:
    """How well the model of each run does its task."""
    return {row["run"]: Performance.from_row(row) for row in ask(connection, "run_summary").to_pylist()}


def curve_doubts(
    connection: Connection, run: Run, performance: Performance
) -> Mapping[tuple[str, str], list[str]]:
    """By level and ablation, why the curves of a run explain nothing, if so.

    What they explain is m_all - m_none, which is not always what the corrupted prompts take: where heads alone are
    ablated, or not with the corrupted prompts.
    """
    found = {}
    for row in ask(connection, "run_effects", run=run.run).to_pylist():
        own = replace(performance, effect=row["effect"], effect_stderr=row["effect_stderr"])
        doubts = dict.fromkeys([*performance.doubts((row["ablation"],)), *own.doubts()])
        found[row["level"], row["ablation"]] = list(doubts)
    return found
