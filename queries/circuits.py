"""Circuits of a run in the store: its scores by SQL, the choice among its units by `graphs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa

from .. import graphs
from ..data import Catalog, Run
from ..errors import InputError, StoreError, one_of
from ..graphs import RANKINGS, Circuit
from ..graphs.rankings import Scores
from .engine import Connection
from .questions import CROSSINGS, ask, check_effect

TOP = 20
"""How many units are listed where nobody says how many."""
_SIZES = ("k", "mass", "threshold", "effect", "most")
_OF_THE_TASK = "A size by effect is that of the ranking of the task, not of one prompt."
_ALL = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which units make the circuit: exactly one of `k`, `mass`, `threshold`, `effect` and `most`."""

    k: int | None = None
    """The k strongest."""
    most: int | None = None
    """The strongest, so many or all that there are."""
    mass: float | None = None
    """The smallest set with this share of the total |score|."""
    threshold: float | None = None
    """All that are at least so strong."""
    effect: float | None = None
    """The smallest measured circuit of the ranking from which on circuits explain this much."""
    crossing: str = "sustained"
    """With effect: from where on the curve stays there, or `first`, where it first gets there."""
    greedy: bool = False
    """With k: grown from `logits` instead of taken from the top."""
    signed: bool = False
    """Rank by how much a unit helps, not by |score|."""
    prompt: int | None = None
    """By the scores of one prompt instead of their mean."""

    def __post_init__(self) -> None:
        given = [name for name in _SIZES if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError(
                "Say how large the circuit is by exactly one of k, mass, threshold and effect"
                + (f", not by {' and '.join(given)}." if given else ".")
            )
        if self.effect is not None:
            check_effect("The effect", self.effect)
        if one_of("crossing", self.crossing, CROSSINGS) != "sustained" and self.effect is None:
            raise InputError(f"A crossing is of a measured curve: it goes with effect, not with {given[0]}.")
        if self.greedy and self.k is None and self.most is None:
            raise InputError(f"Greedy growth needs k, the number of edges, not {given[0]}.")

    @property
    def ranking(self) -> str:
        """The name of the ranking of the task that it is by."""
        return "signed" if self.signed else "task"

    def count(self, there: int) -> int:
        """How many of so many units, by `k` or `most`."""
        return self.k if self.k is not None else min(self.most or 0, there)


def to_list(**given: Any) -> Choice:
    """The choice of who only wants to look: the strongest 20, unless another size is given."""
    sized = any(given.get(name) is not None for name in _SIZES)
    return Choice(**given) if sized else Choice(**given, most=TOP)


@dataclass(frozen=True)
class Chosen:
    """A circuit, and the scores of all edges that it was chosen from."""

    circuit: Circuit
    scores: Scores
    ranked: str
    """By what its edges are ranked, and over which prompts."""
    note: str = ""
    """What is odd about the measured curve that its size is from."""


@dataclass(frozen=True)
class Units:
    """The units that a choice requests at any level, the strongest first; `kept` says which make the circuit."""

    requested: int
    rows: pa.Table
    ranked: str
    """By what they are ranked, and over which prompts."""
    note: str = ""
    """What is odd about the measured curve that the size is from."""

    @property
    def kept(self) -> int:
        """How many make the circuit."""
        return sum(self.rows["kept"].to_pylist())


@dataclass(frozen=True)
class Size:
    """The size of a circuit that a measured curve gives, and what is odd about that curve."""

    k: int
    note: str = ""


def choose(connection: Connection, run: Run, choice: Choice) -> Chosen:
    """The circuit of edges that a choice makes of a run."""
    if choice.effect is not None and choice.prompt is not None:
        raise InputError(_OF_THE_TASK)
    wiring, scores = run.wiring, edge_scores(connection, run, choice.prompt)
    by, sign = choice.ranking, run.helpful_sign
    note = ""
    if choice.mass is not None:
        circuit = graphs.mass(wiring, scores, choice.mass, by=by, sign=sign)
    elif choice.threshold is not None:
        circuit = graphs.at_least(wiring, scores, choice.threshold, by=by, sign=sign)
    elif choice.effect is not None:
        size = size_for_effect(connection, run, "edge", choice)
        circuit, note = graphs.top_k(wiring, scores, size.k, by=by, sign=sign), size.note
    else:
        grow = graphs.greedy if choice.greedy else graphs.top_k
        circuit = grow(wiring, scores, choice.count(wiring.n_edges), by=by, sign=sign)
    return Chosen(circuit, scores, ranked_by(run, choice), note)


def choose_each(
    connection: Connection, catalog: Catalog, runs: Sequence[str], choice: Choice
) -> dict[str, Chosen]:
    """The circuits that a choice makes of runs, by name, to be set side by side."""
    _check_names(runs)
    return {name: choose(connection, catalog.run(name), choice) for name in runs}


def heads_side_by_side(
    connection: Connection, catalog: Catalog, runs: Sequence[str], choice: Choice
) -> tuple[dict[str, Units], pa.Table]:
    """The heads that a choice makes of runs, by name, and measures of them: how many, where, how strong, how alike."""
    _check_names(runs)
    records = {name: catalog.run(name) for name in runs}
    found = {name: units(connection, run, "head", choice) for name, run in records.items()}
    rows: dict[str, dict[str, float]] = {}
    for name, run in records.items():
        everyone = units(connection, run, "head", Choice(most=_ALL, prompt=choice.prompt)).rows
        chosen = found[name].rows
        layers = run.wiring.node_layer[chosen["node_id"].to_numpy()]
        rows[name] = {
            "heads": chosen.num_rows,
            "of heads": everyone.num_rows,
            "layers": len(np.unique(layers)),
        }
        rows[name]["share of |score|"] = _mass(chosen) / (_mass(everyone) or 1.0)
        first = records[runs[0]].shape
        if name != runs[0] and (run.shape.layers, run.shape.heads) == (first.layers, first.heads):
            mine, theirs = (set(found[one].rows["name"].to_pylist()) for one in (name, runs[0]))
            rows[name][f"shared_heads with {runs[0]}"] = len(mine & theirs) / (len(mine | theirs) or 1)
    measures = list(dict.fromkeys(measure for row in rows.values() for measure in row))
    columns = [pa.array([row.get(measure) for measure in measures], pa.float64()) for row in rows.values()]
    return found, pa.table([pa.array(measures), *columns], names=["measure", *rows])


def units(connection: Connection, run: Run, level: str, choice: Choice) -> Units:
    """The units that a choice requests of a run at a level: edges, heads or attention edges.

    `position` is a unit's place in the ranking. At the level `edge`, one that leads nowhere is not `kept`.
    """
    if level != "edge":
        return _single_units(connection, run, level, choice)
    chosen = choose(connection, run, choice)
    scores, circuit = chosen.scores, chosen.circuit
    order = graphs.ranking(scores, choice.ranking, sign=run.helpful_sign)
    places = np.arange(circuit.requested)
    if choice.greedy:
        strengths = graphs.strengths(scores, choice.ranking, sign=run.helpful_sign)
        places = np.flatnonzero(np.isin(order, graphs.grown(run.wiring, strengths, circuit.requested)))
    edges = order[places]
    rows = {
        "position": places + 1,
        "edge_id": edges,
        "name": run.wiring.edge_names(edges),
        "score": scores[edges],
        "kept": np.isin(edges, circuit.edges),
    }
    return Units(circuit.requested, pa.table(rows), chosen.ranked, chosen.note)


def edge_scores(connection: Connection, run: Run, prompt: int | None = None) -> Scores:
    """One score for each edge of the run's wiring: the mean over the prompts that rank, or that of one prompt."""
    _check_level(run, "edge")
    found = ask(connection, "run_scores", run=run.run, prompt=prompt)
    if not np.array_equal(found["edge_id"], np.arange(run.shape.n_edges)):
        raise StoreError(
            f"The run '{run.run}' has scores for {found.num_rows:,} of its {run.shape.n_edges:,} edges."
        )
    return np.asarray(found["score"], dtype=np.float32)


def ranked_by(run: Run, choice: Choice) -> str:
    """By what the units of a choice are ranked, and over which prompts, in words."""
    about = RANKINGS[choice.ranking].about
    if choice.prompt is not None:
        return f"ranked by {about.replace('mean ', '')} for prompt {choice.prompt}"
    if run.source is not None:
        return f"ranked by {about.replace('mean ', 'published ')}"
    return f"ranked by {about} over {prompts_that_rank(run)}"


def prompts_that_rank(run: Run) -> str:
    """How many of its prompts a run is ranked by, in words."""
    if run.split is None:
        return f"{run.prompts:,} prompt{'s' * (run.prompts != 1)}"
    return f"{len(run.ranked_by):,} of {run.prompts:,} prompts (--split {run.split:g})"


def size_for_effect(connection: Connection, run: Run, level: str, choice: Choice) -> Size:
    """The smallest measured size from which a curve explains so much: the task's, or a prompt's of attention edges.

    With the crossing `first`, that at which it first does, even if it falls below again.
    """
    effect, of_run = choice.effect or 0.0, {"run": run.run, "level": level, "ablation": run.ablation}
    if level == "attention":
        which = f"of the attention edges of prompt {choice.prompt}"
        curve = ask(connection, "run_prompt_curve", ranking="prompt", prompt=choice.prompt, **of_run)
    else:
        which = f"at the level {level} in the {choice.ranking} ranking"
        curve = ask(connection, "run_curve", ranking=choice.ranking, **of_run)
    if not curve.num_rows:
        raise InputError(
            f"The run '{run.run}' has no measured curve {which}, with its own ablation: "
            f"{_how_to_measure(run, level, choice)}choose by k or mass."
        )
    points = [
        (int(point["requested"]), point["explained"])
        for point in curve.to_pylist()
        if point["requested"] > 0 and point["explained"] is not None
    ]
    first, k = _crossings(effect, points)
    if first is None:
        raise InputError(
            f"The measured curve of the run '{run.run}' {which} never explains {effect} of the effect."
        )
    if k is None and choice.crossing == "sustained":
        raise InputError(
            f"The measured curve of the run '{run.run}' {which} explains {effect} of the effect at {first:,}, but "
            f"falls below that again and ends at {points[-1][1]:.3g}: --crossing first takes the {first:,}."
        )
    return Size(first if choice.crossing == "first" or k is None else k, ragged_note(effect, points))


def ragged_note(effect: float, points: Sequence[tuple[int, float]]) -> str:
    """That a curve of measured sizes falls below an effect again where it does, in words; empty where it does not.

    >>> ragged_note(0.9, [(4, 0.95), (20, 0.5), (60, 0.95)])
    'the curve falls below 0.9 again after 4, and stays there from 60 on'
    >>> ragged_note(0.9, [(4, 0.2), (20, 0.95)])
    ''
    """
    first, k = _crossings(effect, points)
    return falls_again(effect, first, k) if first is not None and (k is None or k > 1.1 * first) else ""


def _crossings(effect: float, points: Sequence[tuple[int, float]]) -> tuple[int | None, int | None]:
    """The smallest measured size of so much effect, and the smallest one from which on it stays."""
    enough = [size for size, explained in points if explained >= effect]
    lasting = [size for size, _ in takewhile(lambda point: point[1] >= effect, reversed(points))]
    return enough[0] if enough else None, lasting[-1] if lasting else None


def falls_again(threshold: float, first: float, k: float | None) -> str:
    """What is said of a curve that does not stay at a threshold where it first gets there, in words."""
    return f"the curve falls below {threshold:g} again after {whole_units(first):,}, " + (
        "and ends below it" if k is None else f"and stays there from {whole_units(k):,} on"
    )


def whole_units(k: float) -> int:
    """The units that suffice where a curve crosses at k, which is interpolated: the next whole number.

    >>> whole_units(1.44), whole_units(61.0000000001), whole_units(0.3)
    (2, 61, 1)
    """
    return ceil(k * (1 - 1e-9))


def _single_units(connection: Connection, run: Run, level: str, choice: Choice) -> Units:
    """The units of a level that has no paths: all that are requested are kept."""
    _check_level(run, level)
    if choice.greedy:
        raise InputError(
            f"At the level {level}, a circuit is chosen from the top, not grown from the logits."
        )
    if level == "attention":
        if choice.signed:
            raise InputError("At the level attention, a circuit is chosen by |score|.")
        if choice.prompt is None:
            raise InputError("Attention edges belong to one prompt: name it with --prompt.")
        rows = ask(connection, "top_attention", run=run.run, k=_ALL, prompt=choice.prompt)
    else:
        if choice.effect is not None and choice.prompt is not None:
            raise InputError(_OF_THE_TASK)
        rows = ask(connection, "top_heads", run=run.run, k=_ALL, prompt=choice.prompt).sort_by("node_id")
        order = graphs.ranking(rows["score"].to_numpy(), choice.ranking, sign=run.helpful_sign)
        rows = rows.take(order).set_column(0, "position", pa.array(np.arange(1, len(order) + 1)))
    strengths = graphs.strengths(rows["score"].to_numpy(), choice.ranking, sign=run.helpful_sign)
    size = _size(connection, run, level, choice, strengths)
    rows = rows.slice(0, size.k).append_column("kept", pa.array([True] * size.k, pa.bool_()))
    return Units(size.k, rows, ranked_by(run, choice), size.note)


def _mass(rows: pa.Table) -> float:
    return float(np.abs(rows["score"].to_numpy()).sum(dtype=np.float64))


def _check_names(runs: Sequence[str]) -> None:
    if not runs or len(set(runs)) < len(runs) or "measure" in runs:
        raise InputError(f"Runs to set side by side must have different names: {', '.join(runs) or 'none'}.")


def _size(connection: Connection, run: Run, level: str, choice: Choice, strengths: Scores) -> Size:
    """How many units a choice takes of heads or attention edges, whose strengths descend."""
    if choice.effect is not None:
        size = size_for_effect(connection, run, level, choice)
        return Size(min(size.k, len(strengths)), size.note)
    if choice.mass is not None:
        return Size(graphs.needed_for(choice.mass, strengths))
    if choice.threshold is not None:
        return Size(int((strengths >= graphs.check_threshold(choice.threshold)).sum()))
    k = choice.count(len(strengths))
    if not 1 <= k <= len(strengths):
        raise InputError(
            f"k is {k}, but there are {len(strengths):,} units at the level {level}: choose from 1 to "
            f"{len(strengths)}."
        )
    return Size(k)


def _how_to_measure(run: Run, level: str, choice: Choice) -> str:
    """What adds the curve that a run lacks, as the beginning of what else to do."""
    if run.source:
        return ""
    if level == "attention" and run.curves:
        return "a run with a split has those of some of its prompts; "
    option = "--curves" if choice.ranking == "task" else f"--ranking {choice.ranking}"
    return f"the extract command that made it adds one, with {option}; or "


def _check_level(run: Run, level: str) -> None:
    if level not in run.levels:
        raise InputError(
            f"The run '{run.run}' has no {level} scores; its levels are: {', '.join(run.levels)}."
        )
