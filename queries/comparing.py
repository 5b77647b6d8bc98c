"""Runs set side by side: which belong together, their measured curves, and how many times fewer units one needs."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..data import MAIN_TASKS, TASKS, Catalog, Run
from ..graphs import InputError, Inputs, did_you_mean
from .bootstrap import set_chosen
from .engine import Connection
from .questions import ask

DRAWS = 1000
"""Of the bootstrap that a multiplier's interval is from."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Which of the measured curves of a run are looked at, and at which explained effect they are compared."""

    level: str = "edge"
    ranking: str = "prompt"
    ablation: str | None = None
    """None: that of the scores."""
    threshold: float = 0.9

    def __post_init__(self) -> None:
        if self.level == "attention" and self.ranking == "task":
            raise InputError(
                "Attention edges belong to one prompt, and there is no ranking of the task: choose --ranking prompt."
            )
        if not self.threshold > 0:
            raise InputError(f"The threshold is an explained effect above 0, not {self.threshold}.")


@dataclass(frozen=True)
class Curve:
    """A measured curve: `requested`, `kept`, `explained` and its standard error `stderr`, by size."""

    run: Run
    ablation: str
    points: pa.Table
    random: pa.Table
    """The same for the random ranking; empty if it was not measured."""
    attributed: pa.Table | None
    """`requested` and `share`, of the total |score|, if that was asked for."""
    prompts: int
    """That the curve is of."""


@dataclass(frozen=True)
class Multiplier:
    """How many times fewer units the sparse run needs: None where either curve does not get there."""

    sparse_k: float | None
    dense_k: float | None
    multiplier: float | None
    low: float | None
    high: float | None
    """The 95 % interval over prompts, the rankings taken as given."""
    defined: float
    """The share of the draws in which both get there."""


@dataclass(frozen=True)
class Comparison:
    """A sparse run and a dense one on a task, or one run alone."""

    curves: tuple[Curve, ...]
    multiplier: Multiplier | None


def pair_up(connection: Connection, catalog: Catalog, names: Sequence[str]) -> list[tuple[Run, ...]]:
    """Runs by name, two by two: sparse, then dense; one alone; or, without names, all that the store has in pairs."""
    if not names:
        found = [(row["sparse_run"], row["dense_run"]) for row in ask(connection, "run_pairs").to_pylist()]
        if not found:
            raise InputError(
                f"The store '{catalog.path}' has no sparse run with its dense twin: name runs with --runs SPARSE DENSE."
            )
        pairs = [tuple(map(catalog.run, pair)) for pair in found]
        return sorted(pairs, key=lambda pair: (_place(pair[0].task), [run.run for run in pair]))
    runs = [catalog.run(name) for name in names]
    if len(runs) == 1:
        return [(runs[0],)]
    if len(runs) % 2:
        raise InputError(
            f"Runs are compared two by two, sparse and dense, and these are {len(runs)}: {', '.join(names)}."
        )
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    for sparse, dense in pairs:
        _check_pair(sparse, dense)
    return pairs


def compare(
    connection: Connection,
    catalog: Catalog,
    runs: Sequence[Run],
    view: View,
    *,
    attributed: bool = False,
) -> Comparison:
    """The curves of one run, or of a sparse one and a dense one with their multiplier."""
    curves = tuple(_curve(connection, catalog.path, run, view, attributed) for run in runs)
    if len(curves) == 1:
        return Comparison(curves, None)
    sparse, dense = curves
    inputs = [str(run.shape.inputs) for run in runs]
    if view.level == "edge" and len(set(inputs)) > 1:
        raise InputError(
            f"The edges of '{runs[0].run}' have {inputs[0]} inputs and those of '{runs[1].run}' {inputs[1]} ones: how "
            "many there are cannot be compared; extract both with --split-qkv or both with --merge-qkv."
        )
    if sparse.ablation != dense.ablation:
        raise InputError(
            f"'{sparse.run.run}' was measured with the ablation {sparse.ablation} and '{dense.run.run}' with "
            f"{dense.ablation}: choose one that both have with --ablation."
        )
    (row,) = ask(
        connection,
        "run_multiplier",
        run=sparse.run.run,
        other=dense.run.run,
        level=view.level,
        ranking=view.ranking,
        ablation=sparse.ablation,
        threshold=view.threshold,
        draws=DRAWS,
    ).to_pylist()
    return Comparison(curves, Multiplier(**row))


def labels_of(runs: Sequence[Run], given: Mapping[str, str] | None = None) -> list[str]:
    """What the runs of a panel are called in a figure: as is given for the run or its model, or by the model's name.

    Where two runs would be called the same, they are called by their own names.
    """
    given = {name: printable(text) for name, text in (given or {}).items()}
    names = [given.get(run.run, given.get(run.model, printable(run.model.split("/")[-1]))) for run in runs]
    return names if len(set(names)) == len(names) else [given.get(run.run, run.run) for run in runs]


def check_labels(runs: Iterable[Run], given: Mapping[str, str] | None) -> None:
    """Refuse a label for what is not in the figure."""
    there = {name: None for run in runs for name in (run.model, run.run)}
    for name, text in (given or {}).items():
        if name not in there:
            raise InputError(
                f"No model or run '{name}' is in the figure to be called '{text}': they are "
                f"{', '.join(there)}.{did_you_mean(name, there)}"
            )


def printable(text: str) -> str:
    """Text on one line, without what no font has a letter for.

    >>> printable("a" + chr(0) + "b" + chr(10) + "c")
    'a b c'
    """
    return "".join(letter if letter.isprintable() else " " for letter in text)


def curves_command(run: Run, store: Path, view: View) -> str:
    """The command that measures the curves which a run lacks; it names another run where the level is another one."""
    more = view.level not in run.levels
    words = ["wirescope", "extract", "--model", run.model]
    if run.task in TASKS:
        words += ["--task", run.task, "--limit", str(run.prompts), "--seed", str(run.seed or 0)]
    else:
        words += ["--prompts", f"{run.task}.jsonl"]
    words += ["--store", str(store), "--run", f"{run.run}-{view.level}" if more else run.run]
    for level in [view.level] if more else run.levels:
        words += ["--level", level]
    for option in ("method", "metric", "dtype"):
        words += [f"--{option}", str(getattr(run, option))]
    words += ["--steps", str(run.steps)] if run.steps else []
    words += ["--merge-qkv"] if run.shape.inputs is Inputs.MERGED else []
    words += ["--ablation", view.ablation or run.ablation or "corrupt"]
    split = run.curves[0].split if run.curves else None
    words += ["--split", str(split)] if split and not more else []
    return shlex.join(words)


def _curve(connection: Connection, store: Path, run: Run, view: View, attributed: bool) -> Curve:
    ablation = view.ablation or run.ablation or "corrupt"
    which = {"run": run.run, "level": view.level, "ablation": ablation}
    points = ask(connection, "run_curve", ranking=view.ranking, **which)
    if not points.num_rows:
        raise InputError(_no_curve(run, store, view, ablation))
    if not any(points["explained"].is_valid().to_pylist()):
        raise InputError(
            f"The run '{run.run}' has no effect to explain: with the ablation {ablation}, the metric is on average the "
            "same with all units and with none."
        )
    measured = ask(connection, "run_curve_prompts", ranking=view.ranking, **which)["prompt_id"].to_pylist()
    shares = None
    if attributed:
        set_chosen(connection, run.ranked_by.tolist() if view.ranking == "task" else measured)
        shares = ask(connection, "run_attributed", run=run.run, level=view.level, ranking=view.ranking)
    return Curve(
        run=run,
        ablation=ablation,
        points=points,
        random=ask(connection, "run_curve", ranking="random", **which),
        attributed=shares,
        prompts=len(measured),
    )


def _no_curve(run: Run, store: Path, view: View, ablation: str) -> str:
    what = (
        f"The run '{run.run}' has no measured curve at the level {view.level}, ranked by {view.ranking}, with the "
        f"ablation {ablation}"
    )
    if run.source:
        return f"{what}: it was imported from '{run.source}', without a model to measure circuits of."
    return f"{what}. This adds it: {curves_command(run, store, view)}"


def _check_pair(sparse: Run, dense: Run) -> None:
    """Refuse to compare what cannot be compared."""
    for what in ("task", "metric"):
        mine, theirs = getattr(sparse, what), getattr(dense, what)
        if mine != theirs:
            raise InputError(
                f"'{sparse.run}' has the {what} {mine} and '{dense.run}' has {theirs}: only runs of one {what} are "
                "compared; give them as --runs SPARSE DENSE, pair after pair."
            )
    if dense.base_model == sparse.model and dense.base_model != dense.model:
        raise InputError(
            f"'{dense.run}' is of the sparse twin of '{sparse.run}': give the sparse run first, then the dense one."
        )


def _place(task: str | None) -> tuple[int, str]:
    """The four tasks first, in their order."""
    return (MAIN_TASKS.index(task) if task in MAIN_TASKS else len(MAIN_TASKS), task or "")
