"""Circuits of a run in the store: its scores by SQL, the choice among its units by `graphs`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import graphs
from ..data import Catalog, Run
from ..graphs import Circuit, InputError, StoreError
from ..graphs.circuit import Scores
from ..graphs.wiring import Ids
from .bootstrap import set_chosen
from .engine import Connection
from .questions import ask

_ALL = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which units make the circuit: exactly one of `k`, `mass`, `threshold` and `effect`."""

    k: int | None = None
    """The k strongest."""
    mass: float | None = None
    """The smallest set with this share of the total |score|."""
    threshold: float | None = None
    """All that are at least so strong."""
    effect: float | None = None
    """The smallest measured circuit of the task ranking that explains this much."""
    greedy: bool = False
    """With k: grown from `logits` instead of taken from the top."""
    signed: bool = False
    """Rank by how much a unit helps, not by |score|."""
    prompt: int | None = None
    """By the scores of one prompt instead of their mean."""

    def __post_init__(self) -> None:
        given = [name for name in ("k", "mass", "threshold", "effect") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError(
                "Say how large the circuit is by exactly one of k, mass, threshold and effect"
                + (f", not by {' and '.join(given)}." if given else ".")
            )
        if self.effect is not None and self.signed:
            raise InputError("A size by effect is that of a ranking by |score|, not of a signed one.")
        if self.greedy and self.k is None:
            raise InputError(f"Greedy growth needs k, the number of edges, not {given[0]}.")


@dataclass(frozen=True)
class Chosen:
    """A circuit, and the scores of all edges that it was chosen from."""

    circuit: Circuit
    scores: Scores


@dataclass(frozen=True)
class Units:
    """The units of a circuit at any level, the strongest first."""

    requested: int
    rows: pa.Table


def choose(connection: Connection, run: Run, choice: Choice) -> Chosen:
    """The circuit of edges that a choice makes of a run."""
    if choice.effect is not None and choice.prompt is not None:
        raise InputError("A size by effect is that of the ranking of the task, not of one prompt.")
    chosen = (
        None if choice.effect is None else run.ranked_by
    )  # a circuit by effect is ranked as it was measured
    wiring, scores = run.wiring, edge_scores(connection, run, choice.prompt, chosen)
    if choice.mass is not None:
        return Chosen(graphs.mass(wiring, scores, choice.mass, signed=choice.signed), scores)
    if choice.threshold is not None:
        return Chosen(graphs.at_least(wiring, scores, choice.threshold, signed=choice.signed), scores)
    k = size_for_effect(connection, run, choice.effect) if choice.effect is not None else choice.k or 0
    grow = graphs.greedy if choice.greedy else graphs.top_k
    return Chosen(grow(wiring, scores, k, signed=choice.signed), scores)


def choose_each(
    connection: Connection, catalog: Catalog, runs: Sequence[str], choice: Choice
) -> dict[str, Circuit]:
    """The circuits that a choice makes of runs, by name, to be set side by side."""
    if not runs or len(set(runs)) < len(runs) or "measure" in runs:
        raise InputError(f"Runs to set side by side must have different names: {', '.join(runs) or 'none'}.")
    return {name: choose(connection, catalog.run(name), choice).circuit for name in runs}


def units(connection: Connection, run: Run, level: str, choice: Choice) -> Units:
    """The units that a choice makes of a run at a level: edges, heads or attention edges.

    `position` is a unit's place in the ranking; at the level `edge`, those that lead nowhere are left out.
    """
    if level == "edge":
        chosen = choose(connection, run, choice)
        place = np.empty(len(chosen.scores), dtype=np.int64)
        place[graphs.ranking(chosen.scores, signed=choice.signed)] = np.arange(1, len(place) + 1)
        rows = chosen.circuit.table().select(["edge_id", "name", "score"])
        rows = rows.add_column(0, "position", pa.array(place[rows["edge_id"]]))
        return Units(chosen.circuit.requested, rows)
    _check_level(run, level)
    if choice.greedy or choice.signed:
        raise InputError(f"At the level {level}, a circuit is chosen by |score|, from the top.")
    if level == "attention" and choice.prompt is None:
        raise InputError("Attention edges belong to one prompt: name it with --prompt.")
    question = {"head": "top_heads", "attention": "top_attention"}[level]
    rows = ask(connection, question, run=run.run, k=_ALL, prompt=choice.prompt)
    k = _size(connection, run, level, choice, np.abs(rows["score"].to_numpy()))
    return Units(k, rows.slice(0, k))


def edge_scores(
    connection: Connection, run: Run, prompt: int | None = None, chosen: Ids | None = None
) -> Scores:
    """One score for each edge of the run's wiring: the mean over its prompts or some of them, or that of one."""
    _check_level(run, "edge")
    if chosen is None:
        found = ask(connection, "run_scores", run=run.run, prompt=prompt)
    else:
        set_chosen(connection, chosen.tolist())
        found = ask(connection, "run_chosen_scores", run=run.run)
    if not np.array_equal(found["edge_id"], np.arange(run.shape.n_edges)):
        raise StoreError(
            f"The run '{run.run}' has scores for {found.num_rows:,} of its {run.shape.n_edges:,} edges."
        )
    return np.asarray(found["score"], dtype=np.float32)


def size_for_effect(connection: Connection, run: Run, effect: float, prompt: int | None = None) -> int:
    """The smallest size at which a measured curve explains so much: the task's of edges, a prompt's of attention."""
    of_run = {"run": run.run, "ablation": run.ablation}
    if prompt is None:
        which = "at the level edge in the task ranking"
        curve = ask(connection, "run_curve", level="edge", ranking="task", **of_run).to_pylist()
    else:
        which = f"of the attention edges of prompt {prompt}"
        curve = ask(
            connection, "run_prompt_curve", level="attention", ranking="prompt", prompt=prompt, **of_run
        ).to_pylist()
    if not curve:
        how = "" if run.source else "the extract command that made it adds one, with --curves; or "
        if prompt is not None and run.curves:
            how = "a run with a split has those of some of its prompts; "
        raise InputError(
            f"The run '{run.run}' has no measured curve {which}, with its own ablation: {how}choose by k or mass."
        )
    for point in curve:
        if point["requested"] > 0 and point["explained"] is not None and point["explained"] >= effect:
            return int(point["requested"])
    raise InputError(
        f"The measured curve of the run '{run.run}' {which} never explains {effect} of the effect."
    )


def _size(
    connection: Connection,
    run: Run,
    level: str,
    choice: Choice,
    strengths: NDArray[np.float32],
) -> int:
    """How many units a choice takes of heads or attention edges, whose strengths descend."""
    if choice.effect is not None:
        if level == "head":
            raise InputError("At the level head, a circuit is chosen by k, mass or threshold.")
        return min(size_for_effect(connection, run, choice.effect, choice.prompt), len(strengths))
    if choice.mass is not None:
        return graphs.needed_for(choice.mass, strengths)
    if choice.threshold is not None:
        return int((strengths >= graphs.check_threshold(choice.threshold)).sum())
    assert choice.k is not None  # noqa: S101
    if not 1 <= choice.k <= len(strengths):
        raise InputError(
            f"k is {choice.k}, but there are {len(strengths):,} units at the level {level}: choose from 1 to "
            f"{len(strengths)}."
        )
    return choice.k


def _check_level(run: Run, level: str) -> None:
    if level not in run.levels:
        raise InputError(
            f"The run '{run.run}' has no {level} scores; its levels are: {', '.join(run.levels)}."
        )
