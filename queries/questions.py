"""Answers: to the questions, given what they need, and to a user's own SELECT."""

import re
from typing import Any

import pyarrow as pa

from ..data import TABLES
from ..graphs import InputError, did_you_mean
from .bootstrap import resample, set_thresholds
from .engine import Connection, Engine, engine_of
from .texts import QUESTIONS, VIEWS, text

_DEFAULTS: dict[str, dict[str, Any]] = {
    "run_scores": {"prompt": None},
    "top_edges": {"prompt": None},
    "top_heads": {"prompt": None},
    "multiplier_intervals": {"threshold": 0.9, "draws": 1000, "seed": 0},
    "run_multiplier": {"threshold": 0.9, "draws": 1000, "seed": 0},
}
"""What a question is given unless the caller says otherwise; no prompt means all of them."""


def answer(connection: Connection, query: str, /, **given: Any) -> pa.Table:
    """The answer to a SELECT or, by its name, to a question with what it is given; or a whole view by its name."""
    if query in QUESTIONS:
        return ask(connection, query, **given)
    if query.isidentifier():
        known = (*QUESTIONS, *VIEWS, *TABLES, "runs")
        if query not in known:
            raise InputError(f"There is no question or view '{query}'.{did_you_mean(query, known)}")
        query = f"select * from {query}"  # noqa: S608
    if given:
        raise InputError("Only a ready-made question can be given values; write them into the SELECT.")
    return select(connection, query)


def ask(connection: Connection, question: str, /, **given: Any) -> pa.Table:
    """The answer to one of the questions; `parameters` says what it needs, less what has a default.

    Those about multipliers take the `threshold`, and the number of `draws` of their bootstrap and its `seed`.
    """
    query, needed = text(question), parameters(question)
    values = _DEFAULTS.get(question, {}) | given
    if values.keys() != set(needed):
        raise InputError(
            f"The question '{question}' needs {' and '.join(needed) or 'nothing'}, and was given "
            f"{' and '.join(given) or 'nothing'}."
        )
    engine = engine_of(connection)
    _check_values(engine, values)
    return _resampled(engine, query, **values) if "draws" in values else engine.run(query, values)


def select(connection: Connection, query: str) -> pa.Table:
    """The answer to a user's query, which must be one SELECT.

    Columns come as numbers, truths, texts, and lists and structures of these; anything else (dates, intervals,
    maps, blobs) comes as the engine writes it.
    """
    return engine_of(connection).select(query)


def parameters(question: str) -> list[str]:
    """The names of what a question must be given.

    >>> parameters("overlap")
    ['k', 'other', 'run']
    """
    return sorted({*re.findall(r"\$(\w+)", text(question)), *_DEFAULTS.get(question, {})})


def _resampled(
    engine: Engine, query: str, threshold: float, draws: int, seed: int, **values: Any
) -> pa.Table:
    """The answer to a question over draws of prompts."""
    set_thresholds(engine, [threshold])
    resample(engine, draws=draws, seed=seed)
    try:
        return engine.run(query, values)
    finally:  # the views that need no draws are much faster without
        set_thresholds(engine, [0.9])
        resample(engine, draws=0)


def _check_values(engine: Engine, values: dict[str, Any]) -> None:
    """Refuse what a question cannot be given, where SQL would answer with nothing or with nonsense."""
    for name in ("k", "draws"):
        if name in values and not (type(values[name]) is int and values[name] >= 1):
            raise InputError(f"{name} is {values[name]!r}; it must be a whole number, 1 or more.")
    if "seed" in values and not (type(values["seed"]) is int and values["seed"] >= 0):
        raise InputError(f"seed is {values['seed']!r}; it must be a whole number, 0 or more.")
    if "threshold" in values and not isinstance(values["threshold"], int | float):
        raise InputError(f"threshold is {values['threshold']!r}; it must be a number.")
    for name in values.keys() & {"run", "other"}:
        there = engine.run(text("run_list"), {})["run"].to_pylist()
        if values[name] not in there:
            raise InputError(
                f"The store has no run '{values[name]}' (runs: {', '.join(there)})."
                f"{did_you_mean(str(values[name]), there)}"
            )
    prompt = values.get("prompt")
    if prompt is not None:
        there = engine.run(text("run_prompts"), {"run": values["run"]})["prompt_id"].to_pylist()
        if prompt not in there:
            known = f"its prompts are {there[0]} to {there[-1]}" if there else "it has none"
            raise InputError(f"The run '{values['run']}' has no prompt {prompt}; {known}.")
