"""Runs set side by side: which belong together, their measured curves, and how many times fewer units one needs."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..data import MAIN_TASKS, Catalog, Performance, Run, find_protocol
from ..errors import InputError, did_you_mean, one_of
from .engine import Connection
from .performing import curve_doubts, performances
from .protocols import crossings_under, measured_stems, runs_of, stems_of
from .questions import CROSSINGS, ask, check_effect
from .settings import set_chosen

_SIZES = 120
"""Of an attributed curve that no measured one gives its sizes."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Which of the measured curves of a run are looked at, and at which explained effect they are compared."""

    level: str = "edge"
    ranking: str = ""
    """By default the protocol's, or each prompt's own."""
    ablation: str | None = None
    """None: that of the scores."""
    protocol: str | None = None
    """Only runs made under it are looked at; without an ablation, of each model the one with the smaller circuit."""
    threshold: float = 0.9
    crossing: str = "sustained"
    """Whether they are compared where they stay at that effect, or where they `first` get there."""

    def __post_init__(self) -> None:
        one_of("crossing", self.crossing, CROSSINGS)
        if not self.ranking:
            ranking = find_protocol(self.protocol).ranking(self.level) if self.protocol else "prompt"
            object.__setattr__(self, "ranking", ranking)
        if self.level == "attention" and self.ranking != "prompt":
            raise InputError(
                "Attention edges belong to one prompt, and there is no ranking of the task: choose --ranking prompt."
            )
        check_effect("The threshold", self.threshold)

    @property
    def smaller(self) -> bool:
        """Whether of each model the ablation with the smaller circuit is looked at."""
        return self.protocol is not None and self.ablation is None


@dataclass(frozen=True)
class Curve:
    """A measured curve: `requested`, `kept`, `explained` and its standard error `stderr`, by size.

    Without points where only what is attributed is known.
    """

    run: Run
    ablation: str
    points: pa.Table
    random: pa.Table
    """The same for the random ranking; empty if it was not measured."""
    attributed: pa.Table | None
    """`requested` and `share`, of the total |score|, if that was asked for."""
    prompts: int
    """That the curve is of."""
    performance: Performance
    """How well the model does the task."""
    doubts: tuple[str, ...] = ()
    """Why the curve explains nothing, if so."""
    among: Mapping[str, float | None] = field(default_factory=dict)
    """Under a protocol: by ablation, from where on the model's curves stay at the threshold. This is the smallest."""


@dataclass(frozen=True)
class Multiplier:
    """How many times fewer units the sparse run needs: None where either curve does not get there."""

    sparse_k: float | None
    dense_k: float | None
    multiplier: float | None
    low: float | None
    high: float | None
    """The 95 % interval over prompts and, of cross-fitted curves, rankings; None where it is open."""
    sparse_first_k: float | None = None
    dense_first_k: float | None = None
    """Where the curves first get there, whether they stay or not."""


@dataclass(frozen=True)
class Comparison:
    """A sparse run and a dense one on a task, or one run alone."""

    curves: tuple[Curve, ...]
    multiplier: Multiplier | None
    """None for one run, and where a model does not do the task."""


def interval_words(low: float | None, high: float | None) -> str:
    """An interval of a multiplier in words, of which either end may be open.

    >>> interval_words(1.46, 1.912), interval_words(3.1, None), interval_words(None, 0.8), interval_words(None, None)
    ('1.46 to 1.91', 'from 3.10 upwards', 'up to 0.80', 'open at both ends')
    """
    if low is None:
        return "open at both ends" if high is None else f"up to {high:.2f}"
    if high is None:
        return f"from {low:.2f} upwards"
    return f"{low:.2f} to {high:.2f}"


def runs_named(connection: Connection, catalog: Catalog, names: Sequence[str], view: View) -> list[Run]:
    """Runs by name; where the view has a protocol, by their names or stems: of each model the one that counts."""
    if view.protocol is None:
        return [catalog.run(name) for name in names]
    stems = [stem for name in names for (stem,) in stems_of(connection, catalog, [name], view.protocol)]
    return [_that_counts(connection, catalog, stem, view) for stem in stems]


def pair_up(
    connection: Connection, catalog: Catalog, names: Sequence[str], view: View | None = None
) -> list[tuple[Run, ...]]:
    """Runs by name, two by two: sparse, then dense; one alone; or, without names, all that the store has in pairs.

    Where the view has a protocol, those made under it, by their names or stems: of each model the one that counts.
    """
    if len(names) > 1 and len(names) % 2:
        raise InputError(
            f"Runs are compared two by two, sparse and dense, and these are {len(names)}: {', '.join(names)}."
        )
    if view is not None and view.protocol is not None:
        stems = stems_of(connection, catalog, names, view.protocol)
        if not names:
            measured = measured_stems(
                connection,
                protocol=view.protocol,
                level=view.level,
                ranking=view.ranking,
                threshold=view.threshold,
            )
            stems = [pair for pair in stems if measured.issuperset(pair)] or stems
        pairs = [tuple(_that_counts(connection, catalog, stem, view) for stem in pair) for pair in stems]
        for pair in pairs:
            if len(pair) == 2:
                _check_pair(*pair)
        return pairs if names else _in_order(pairs)
    if not names:
        found = [(row["sparse_run"], row["dense_run"]) for row in ask(connection, "run_pairs").to_pylist()]
        if not found:
            raise InputError(
                f"The store '{catalog.path}' has no sparse run with its dense twin: name runs with --runs SPARSE DENSE."
            )
        pairs = [tuple(map(catalog.run, pair)) for pair in found]
        if view is not None and view.ablation is not None:
            pairs = [
                pair for pair in pairs if all(view.ablation in _measured_with(run) for run in pair)
            ] or pairs
        return _in_order(pairs)
    runs = [catalog.run(name) for name in names]
    if len(runs) == 1:
        return [(runs[0],)]
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
    if len(curves) == 1 or not all(curve.points.num_rows for curve in curves):
        return Comparison(curves, None)
    sparse, dense = curves
    inputs = [str(run.shape.inputs) for run in runs]
    if view.level == "edge" and len(set(inputs)) > 1:
        raise InputError(
            f"The edges of '{runs[0].run}' have {inputs[0]} inputs and those of '{runs[1].run}' {inputs[1]} ones: how "
            "many there are cannot be compared; extract both with --split-qkv or both with --merge-qkv."
        )
    if sparse.ablation != dense.ablation and not view.smaller:
        raise InputError(
            f"'{sparse.run.run}' was measured with the ablation {sparse.ablation} and '{dense.run.run}' with "
            f"{dense.ablation}: choose one that both have with --ablation."
        )
    if any(curve.doubts for curve in curves):
        return Comparison(curves, None)
    if view.smaller:
        (row,) = ask(
            connection,
            "run_protocol_ratio",
            protocol=view.protocol,
            sparse=sparse.run.stem,
            dense=dense.run.stem,
            level=view.level,
            ranking=view.ranking,
            threshold=view.threshold,
            crossing=view.crossing,
        ).to_pylist()
        return Comparison(curves, Multiplier(**row))
    (row,) = ask(
        connection,
        "run_multiplier",
        run=sparse.run.run,
        other=dense.run.run,
        level=view.level,
        ranking=view.ranking,
        ablation=sparse.ablation,
        threshold=view.threshold,
        crossing=view.crossing,
    ).to_pylist()
    return Comparison(curves, Multiplier(**row))


def labels_of(runs: Sequence[Run], given: Mapping[str, str] | None = None) -> list[str]:
    """What the runs of a panel are called in a figure: as is given for the run or its model, or by the model's name.

    Where two runs would be called the same, they are called by their own names.
    """
    given = {name: printable(text) for name, text in (given or {}).items()}
    models = [printable(run.model.rstrip("/").split("/")[-1]).strip() or run.run for run in runs]
    names = [given.get(run.run, given.get(run.model, model)) for run, model in zip(runs, models, strict=True)]
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
    every = more and view.smaller  # a run for each ablation of the protocol
    words = run.command(
        store,
        run=f"{run.stem if every else run.run}-{view.level}" if more else run.run,
        level=[view.level] if more else run.levels,
        ablation=None if every else view.ablation or run.ablation,
    )
    words += ["--ranking", view.ranking] if view.ranking not in ("prompt", "task") else []
    if not more:
        words += ["--split", str(run.split)] if run.split else []
        words += ["--cross-fit", str(run.cross_fit)] if run.cross_fit else []
    return shlex.join(words)


def _curve(connection: Connection, store: Path, run: Run, view: View, attributed: bool) -> Curve:
    ablation = view.ablation or run.ablation or "corrupt"
    which = {"run": run.run, "level": view.level, "ablation": ablation}
    points = ask(connection, "run_curve", ranking=view.ranking, **which)
    if not points.num_rows:
        one_ranking = view.ranking == "task" or run.prompts <= 1
        if attributed and one_ranking and view.level == "edge" and "edge" in run.levels:
            alone = _attributed_alone(connection, run)
            return Curve(run, ablation, points, points, alone, run.prompts, performances(connection)[run.run])
        raise InputError(_no_curve(run, store, view, ablation))
    if not any(points["explained"].is_valid().to_pylist()):
        raise InputError(
            f"The run '{run.run}' has no effect to explain: with the ablation {ablation}, the metric is on average the "
            "same with all units and with none."
        )
    measured = ask(connection, "run_curve_prompts", ranking=view.ranking, **which)["prompt_id"].to_pylist()
    shares = None
    if attributed:
        set_chosen(connection, measured if view.ranking == "prompt" else run.ranked_by.tolist())
        shares = ask(connection, "run_attributed", run=run.run, level=view.level, ranking=view.ranking)
    performance = performances(connection)[run.run]
    among = _crossings(connection, run.stem, view)[1] if view.smaller else {}
    return Curve(
        run=run,
        ablation=ablation,
        points=points,
        random=ask(connection, "run_curve", ranking="random", **which),
        attributed=shares,
        prompts=len(measured),
        performance=performance,
        doubts=tuple(curve_doubts(connection, run, performance)[view.level, ablation]),
        among=among,
    )


def _crossings(
    connection: Connection, stem: str, view: View
) -> tuple[str | None, Mapping[str, float | None]]:
    return crossings_under(
        connection,
        stem,
        protocol=view.protocol or "",
        level=view.level,
        ranking=view.ranking,
        threshold=view.threshold,
    )


def _that_counts(connection: Connection, catalog: Catalog, stem: str, view: View) -> Run:
    """The run that a view looks at, of those with this stem: by its ablation, or with the smaller circuit."""
    runs = runs_of(catalog, stem, view.protocol or "")
    if not view.smaller:
        return next((run for run in runs if run.ablation == view.ablation), runs[0])
    name, _ = _crossings(connection, stem, view)
    return runs[0] if name is None else catalog.run(name)


def _attributed_alone(connection: Connection, run: Run) -> pa.Table:
    """The share of |mean score| in the k strongest edges where no size was measured: at sizes even on a log axis."""
    every = ask(connection, "attributed_curve", run=run.run)
    sizes = np.unique(np.geomspace(1, every.num_rows, _SIZES).astype(int))
    return every.take(sizes - 1).rename_columns(["requested", "share"])


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


def _measured_with(run: Run) -> set[str]:
    """The ablations of a run's curves."""
    return {curves.ablation for curves in run.curves}


def _in_order(pairs: Iterable[tuple[Run, ...]]) -> list[tuple[Run, ...]]:
    """By task and name."""
    return sorted(pairs, key=lambda pair: (_place(pair[0].task), [run.run for run in pair]))


def _place(task: str | None) -> tuple[int, str]:
    """The four tasks first, in their order."""
    return (MAIN_TASKS.index(task) if task in MAIN_TASKS else len(MAIN_TASKS), task or "")
