"""What the explorer shows: of each run its strongest edges, by task and by prompt, and what circuits of them explain.

A panel is a task: its runs stand side by side, usually a sparse model and the dense one that it came from. The task
ranking is that of the measured circuits: by the mean score over all prompts or, where the curves have a split, over
those that the split ranks by. A prompt's ranking is by its own scores. Prompts are offered where all runs of a panel
have the same text under the same number, those with measured circuits first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from .. import graphs
from ..data import Run, task_title
from ..graphs import InputError
from ..graphs.circuit import Scores
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
    ranking_prompts: int
    """How many prompts the task ranking is the mean of."""
    task: RankedEdges
    prompts: tuple[RankedEdges, ...]
    """One for each of the panel's prompts."""


@dataclass(frozen=True, eq=False)
class Panel:
    """The runs of a task, side by side."""

    name: str
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
    sides = tuple(
        _side(connection, run, label, offered, edges) for run, label in zip(runs, called, strict=True)
    )
    tasks = dict.fromkeys(task_title(run.task) if run.task else run.run for run in runs)
    return Panel(" / ".join(tasks), offered, sides)


def _side(connection: Connection, run: Run, label: str, prompts: Sequence[Prompt], edges: int) -> Side:
    of_edges = {"run": run.run, "level": "edge", "ablation": run.ablation}
    curve = ask(connection, "run_curve", ranking="task", **of_edges).drop_columns("stderr")
    task = _strongest(edge_scores(connection, run, None, run.ranked_by), edges, curve)
    own = tuple(
        _strongest(
            edge_scores(connection, run, prompt.prompt_id),
            edges,
            ask(connection, "run_prompt_curve", ranking="prompt", prompt=prompt.prompt_id, **of_edges),
        )
        for prompt in prompts
    )
    return Side(run, label, len(run.ranked_by), task, own)


def _strongest(scores: Scores, edges: int, curve: pa.Table) -> RankedEdges:
    strongest = graphs.ranking(scores)[:edges]
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
    return Panel(f"{panel.name} ({runs})", panel.prompts, panel.sides)
