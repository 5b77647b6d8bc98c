"""What the explorer shows: of each run its strongest edges, by task and by prompt, and what circuits of them explain.

A panel is a task: its runs stand side by side, usually a sparse model and the dense one that it came from. Rankings of
the task are those of the measured circuits: by the mean score over the prompts that rank, all or those of a split; by
|score|, and in every other way in which curves were measured. A prompt's ranking is by its own |scores|. Prompts are
offered where all runs of a panel have the same text under the same number, those with measured circuits first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from .. import graphs
from ..data import Run, task_title
from ..errors import InputError
from ..graphs import RANKINGS
from ..graphs.rankings import Scores
from ..graphs.wiring import Ids
from .circuits import edge_scores
from .comparing import labels_of
from .engine import Connection
from .questions import ask


@dataclass(frozen=True, eq=False)
class RankedEdges:
    """The strongest edges of a run by one set of scores, and the measured curve of that ranking."""

    edges: Ids
    """Edge ids, the strongest first, ties by id."""
    scores: Scores
    """Of these edges."""
    curve: pa.Table
    """requested, kept, explained; without rows if it was not measured."""


@dataclass(frozen=True)
class Prompt:
    """A prompt that can be looked at by itself."""

    prompt_id: int
    text: str


@dataclass(frozen=True, eq=False)
class Side:
    """A run as one side of a panel."""

    run: Run
    label: str
    tasks: tuple[RankedEdges, ...]
    """One for each of the panel's rankings of the task."""
    prompts: tuple[RankedEdges, ...]
    """One for each of the panel's prompts."""

    @property
    def task(self) -> RankedEdges:
        """The ranking of the task by |score|."""
        return self.tasks[0]


@dataclass(frozen=True, eq=False)
class Panel:
    """The runs of a task, side by side."""

    name: str
    rankings: tuple[str, ...]
    """Of the task, by name; `task`, by |score|, is the first."""
    prompts: tuple[Prompt, ...]
    sides: tuple[Side, ...]


@dataclass(frozen=True, eq=False)
class Exploration:
    """All that the explorer shows."""

    panels: tuple[Panel, ...]


def explore(
    connection: Connection,
    panels: Sequence[Sequence[Run]],
    *,
    labels: Mapping[str, str] | None = None,
    edges: int = 10_000,
    prompts: int = 8,
) -> Exploration:
    """The runs of each panel with at most so many edges a ranking, for the task and for at most so many prompts.

    `labels` says what a run is called, by its name or else by its model's.
    """
    if not panels or not all(panels):
        raise InputError("There is nothing to explore: name at least one run a panel.")
    if edges < 1 or prompts < 0:
        raise InputError(f"{edges} edges and {prompts} prompts cannot be shown: ask for 1 and 0 at least.")
    for run in (run for panel in panels for run in panel):
        if "edge" not in run.levels:
            raise InputError(
                f"The run '{run.run}' has no edge scores to explore (its levels: {', '.join(run.levels)}); "
                "make one that has, with 'wirescope extract --level edge'."
            )
    found = [_panel(connection, runs, labels or {}, edges, prompts) for runs in panels]
    names = Counter(panel.name for panel in found)
    return Exploration(tuple(panel if names[panel.name] == 1 else _told_apart(panel) for panel in found))


def _panel(
    connection: Connection,
    runs: Sequence[Run],
    labels: Mapping[str, str],
    edges: int,
    prompts: int,
) -> Panel:
    offered = _offered(connection, runs)[:prompts]
    called = labels_of(runs, labels)
    # a ranking is worth its place in the page where it was measured
    rankings = tuple(
        by
        for by in RANKINGS
        if by == "task" or any(_task_curve(connection, run, by).num_rows for run in runs)
    )
    sides = tuple(
        _side(connection, run, label, rankings, offered, edges)
        for run, label in zip(runs, called, strict=True)
    )
    tasks = dict.fromkeys(task_title(run.task) if run.task else run.run for run in runs)
    return Panel(" / ".join(tasks), rankings, offered, sides)


def _side(
    connection: Connection,
    run: Run,
    label: str,
    rankings: Sequence[str],
    prompts: Sequence[Prompt],
    edges: int,
) -> Side:
    means = edge_scores(connection, run)
    tasks = tuple(
        _strongest(
            means, graphs.ranking(means, by, sign=run.helpful_sign), edges, _task_curve(connection, run, by)
        )
        for by in rankings
    )
    own = []
    for prompt in prompts:
        scores = edge_scores(connection, run, prompt.prompt_id)
        curve = ask(
            connection, "run_prompt_curve", ranking="prompt", prompt=prompt.prompt_id, **_of_edges(run)
        )
        own.append(_strongest(scores, graphs.ranking(scores), edges, curve))
    return Side(run, label, tasks, tuple(own))


def _task_curve(connection: Connection, run: Run, by: str) -> pa.Table:
    return ask(connection, "run_curve", ranking=by, **_of_edges(run)).select(
        ["requested", "kept", "explained"]
    )


def _of_edges(run: Run) -> dict[str, str | None]:
    return {"run": run.run, "level": "edge", "ablation": run.ablation}


def _strongest(scores: Scores, order: Ids, edges: int, curve: pa.Table) -> RankedEdges:
    strongest = order[:edges]
    return RankedEdges(strongest, scores[strongest], curve)


def _offered(connection: Connection, runs: Sequence[Run]) -> tuple[Prompt, ...]:
    """The prompts that all runs have, those that more of them have measured first, then by number."""
    measured: Counter[Prompt] = Counter()
    had_by: Counter[Prompt] = Counter()
    for run in runs:
        texts = ask(connection, "run_prompt_texts", run=run.run, ablation=run.ablation).to_pylist()
        for row in texts:
            if row["clean"] is not None:
                prompt = Prompt(row["prompt_id"], row["clean"])
                had_by[prompt] += 1
                measured[prompt] += row["measured"]
    shared = [prompt for prompt, times in had_by.items() if times == len(runs)]
    return tuple(sorted(shared, key=lambda prompt: (-measured[prompt], prompt.prompt_id)))


def _told_apart(panel: Panel) -> Panel:
    """A panel whose task another one has too, named after its runs as well."""
    runs = ", ".join(side.run.run for side in panel.sides)
    return replace(panel, name=f"{panel.name} ({runs})")
