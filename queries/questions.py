"""Answers: to the questions, given what they need, and to a user's own SELECT."""

import re
from typing import Any

import pyarrow as pa

from ..data import LEVELS, PROTOCOLS, TABLES
from ..errors import InputError, did_you_mean, one_of
from ..graphs import RANKINGS
from .engine import Connection, Engine, engine_of, remembered
from .settings import THRESHOLD, set_thresholds
from .texts import QUESTIONS, VIEWS, text

_DEFAULTS: dict[str, dict[str, Any]] = {
    "run_scores": {"prompt": None},
    "top_edges": {"prompt": None},
    "top_heads": {"prompt": None},
    "multiplier_intervals": {"threshold": THRESHOLD, "crossing": "sustained"},
    "run_multiplier": {"threshold": THRESHOLD, "crossing": "sustained"},
    "multiplier_ratio": {"threshold": THRESHOLD, "crossing": "sustained"}
    | dict.fromkeys(("second_run", "second_other", "second_level", "second_ranking", "second_ablation")),
    "run_protocol_crossings": {"threshold": THRESHOLD},
    "run_protocol_ratio": {"threshold": THRESHOLD, "crossing": "sustained"},
}
"""What a question is given unless the caller says otherwise; no prompt means those that rank."""
CROSSINGS = ("sustained", "first")
"""Where a curve reaches a threshold: from where on it stays there, or where it first gets there."""

_KNOWN = {
    "level": LEVELS,
    "ranking": ("prompt", *RANKINGS, "random"),
    "ablation": ("corrupt", "zero", "mean"),
    "protocol": tuple(PROTOCOLS),
    "crossing": CROSSINGS,
}
"""The words that a question may be given."""
_STEMS = "select distinct stem from runs where protocol = $protocol order by stem"

_MOST_EFFECT = 1.5
"""Circuits may explain more than all of an effect, but never so much more that 90 can mean anything but 90 %."""

_ABOUT = {
    **dict.fromkeys(
        ("top_edges", "attributed_curve", "layer_mass", "head_strength", "overlap", "stability"), "edge"
    ),
    "top_heads": "head",
    "top_attention": "attention",
    **dict.fromkeys(("areas", "reach", "multiplier_intervals"), "curves"),
}
"""What questions need: the scores of a level, or measured curves."""


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


def why_empty(connection: Connection, question: str, /, **given: Any) -> str | None:
    """Why a question, asked with what it was given, has no rows for an answer; None where that says itself."""
    about = _ABOUT.get(question)
    found = {row["run"]: row for row in ask(connection, "run_list").to_pylist()}
    run = found.get(str(given.get("run")))
    if not found:
        return "The store has no runs."
    if about is None or (run is None and about != "curves"):
        return None
    if run is None:
        return (
            f"No {'two runs' if question == 'multiplier_intervals' else 'run'} of the store "
            f"{'that belong together have' if question == 'multiplier_intervals' else 'has'} measured curves."
        )
    imported = run["method"] is None
    if about == "curves":
        how = "it was imported" if imported else "'wirescope extract' with --curves adds them"
        return f"The run '{run['run']}' has no measured curves: {how}."
    levels = run["levels"] if isinstance(run["levels"], str) else ", ".join(run["levels"])
    if about in levels:
        return None
    how = ", as imported" if imported else ""
    return f"The run '{run['run']}' has no {about} scores: its levels are {levels}{how}."


def ask(connection: Connection, question: str, /, **given: Any) -> pa.Table:
    """The answer to one of the questions; `parameters` says what it needs, less what has a default.

    Those about multipliers take the `threshold` and the `crossing`.
    """
    query, values = text(question), _DEFAULTS.get(question, {}) | given
    _check_names(question, given)
    engine = engine_of(connection)
    _check_values(engine, values)
    return _at_threshold(engine, query, **values) if "threshold" in values else engine.run(query, values)


def check_effect(what: str, value: float) -> None:
    """Refuse an explained effect that no curve is compared at: it is a share of the whole effect, not a percentage."""
    if not 0 < value <= _MOST_EFFECT:
        meant = f" Did you mean {value / 100:g}?" if 10 <= value <= 100 * _MOST_EFFECT else ""
        raise InputError(
            f"{what} is an explained effect above 0 and at most {_MOST_EFFECT:g}, where 1 is all of it, not "
            f"{value:g}.{meant}"
        )


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


def _at_threshold(engine: Engine, query: str, threshold: float, **values: Any) -> pa.Table:
    """The answer to a question about crossings, which are views: these know no parameters, and take it from a table."""
    set_thresholds(engine, [threshold])
    try:
        return engine.run(query, values)
    finally:
        set_thresholds(engine, [THRESHOLD])


def _check_names(question: str, given: dict[str, Any]) -> None:
    """Refuse a call that lacks what a question must be given, or has what it does not take."""
    taken, optional = parameters(question), sorted(_DEFAULTS.get(question, {}))
    needed = [name for name in taken if name not in optional]
    missing = [name for name in needed if name not in given]
    others = [name for name in given if name not in taken]
    wrong = []
    if missing:
        wrong.append(f"is missing {_and(missing)}")
    if others:
        wrong.append(f"does not take {_and(others)}")
    if not wrong:
        return
    takes = f"It takes {', '.join(needed) or 'nothing'}"
    if optional:
        takes = f"{takes}; optional:" if needed else "All that it takes is optional:"
        takes += f" {', '.join(optional)}"
    meant = did_you_mean(others[0], taken) if others else ""
    raise InputError(f"'{question}' {_and(wrong)}. {takes}.{meant}")


def _and(words: list[str]) -> str:
    """Words in a sentence.

    >>> _and(["k"]), _and(["k", "run"]), _and(["k", "prompt", "run"])
    ('k', 'k and run', 'k, prompt and run')
    """
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def _check_values(engine: Engine, values: dict[str, Any]) -> None:
    """Refuse what a question cannot be given, where SQL would answer with nothing or with nonsense."""
    if "k" in values and not (type(values["k"]) is int and values["k"] >= 1):
        raise InputError(f"k is {values['k']!r}; it must be a whole number, 1 or more.")
    if "threshold" in values:
        if not isinstance(values["threshold"], int | float):
            raise InputError(f"threshold is {values['threshold']!r}; it must be a number.")
        check_effect("The threshold", values["threshold"])
    for name, value in values.items():
        what = name.removeprefix("second_")
        if value is None and (what != name or what == "ablation"):  # that of the first, or of an imported run
            continue
        if what in _KNOWN:
            one_of(what, str(value), _KNOWN[what])
    for name in sorted(values.keys() & {"run", "other", "second_run", "second_other"}):
        if values[name] is None and name.startswith("second_"):
            continue
        there = _listed(engine, text("run_names"), "run")
        if values[name] not in there:
            raise InputError(
                f"The store has no run '{values[name]}' (runs: {', '.join(there)})."
                f"{did_you_mean(str(values[name]), there)}"
            )
    prompt = values.get("prompt")
    if prompt is not None:
        there = _listed(engine, text("run_prompts"), "prompt_id", run=values["run"])
        if prompt not in there:
            known = f"its prompts are {there[0]} to {there[-1]}" if there else "it has none"
            raise InputError(f"The run '{values['run']}' has no prompt {prompt}; {known}.")
    for name in ("sparse", "dense"):
        if name in values:
            protocol = values["protocol"]
            there = _listed(engine, _STEMS, "stem", protocol=protocol)
            if values[name] not in there:
                raise InputError(
                    f"The store has no runs '{values[name]}' under the protocol {protocol} (there are: "
                    f"{', '.join(there) or 'none'}).{did_you_mean(str(values[name]), there)}"
                )


def _listed(engine: Engine, query: str, column: str, **values: Any) -> list[Any]:
    """What a query lists: names or numbers that may be given."""
    found = remembered(engine, (query, *values.values()), lambda: engine.run(query, values))
    listed: list[Any] = found[column].to_pylist()
    return listed
