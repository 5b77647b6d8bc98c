"""Figures from a store, as the commands make them: curves, wiring diagrams, attention pictures, the explorer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from duckdb import DuckDBPyConnection

from ..data import LEVELS, Catalog, Run, task_title
from ..errors import InputError, one_of
from ..graphs import Circuit, Inputs
from ..queries import (
    Choice,
    View,
    ask,
    check_labels,
    choose,
    compare,
    explore,
    labels_of,
    pair_up,
    performances,
    runs_named,
    units,
)
from . import style
from .attention import TokenPanel, draw_attention
from .captions import doubt_lines, run_facts, run_line
from .curves import curves_caption, doubts_said, draw_curves, render_curves
from .explorer import explorer_page
from .scene import Scene
from .wiring import Look, Panel, draw_wiring

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CROSSED = {"sustained": "from which on", "first": "at which"}
Labels = Mapping[str, str]
"""What models or runs are called in a figure."""


@dataclass(frozen=True)
class CurveFigure:
    """Curves, and what their reader has to know."""

    figure: "Figure"
    caption: str
    doubts: tuple[str, ...] = ()
    """Which models do not do their tasks."""

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return render_curves(self.figure, "svg").decode()


def curve_figure(
    connection: DuckDBPyConnection,
    catalog: Catalog,
    runs: Sequence[str] = (),
    *,
    view: View | None = None,
    labels: Labels | None = None,
    attributed: bool = False,
    random: bool = True,
    width: float | None = None,
) -> CurveFigure:
    """Explained-effect curves: sparse, dense, sparse, dense, ..., a panel for two; without runs, of all pairs."""
    view = view or View()
    pairs = pair_up(connection, catalog, runs, view)
    check_labels((run for pair in pairs for run in pair), labels)
    found = [compare(connection, catalog, pair, view, attributed=attributed) for pair in pairs]
    ablations = {
        curve.ablation: curve.run.run for one in found for curve in one.curves if curve.points.num_rows
    }
    if len(ablations) > 1 and not view.smaller:
        said = ", ".join(f"'{run}' with {ablation}" for ablation, run in ablations.items())
        raise InputError(
            f"One figure has curves of one ablation, and these are {said}: choose it with --ablation, or a --protocol."
        )
    figure = draw_curves(found, view, labels=labels, random=random, width=width)
    caption = curves_caption(found, view, labels=labels, random=random)
    return CurveFigure(figure, caption, tuple(doubts_said(found, labels)))


def diagram(
    connection: DuckDBPyConnection,
    catalog: Catalog,
    runs: Sequence[str],
    *,
    choice: Choice,
    level: str = "edge",
    protocol: str | None = None,
    look: Look | None = None,
    labels: Labels | None = None,
) -> Scene:
    """The circuits of runs side by side: edges as a wiring diagram, heads as a grid, attention edges as arcs.

    Under a protocol runs may be named without their ablation: of each model it is the one with the smaller circuit.
    """
    one_of("level", level, LEVELS)
    ranking = choice.ranking if choice.prompt is None and level != "attention" else "prompt"
    records = runs_named(connection, catalog, runs, View(level=level, ranking=ranking, protocol=protocol))
    if not records:
        raise InputError("A diagram needs at least one run: name it with --runs.")
    for other in records[1:]:
        if other.task != records[0].task:
            raise InputError(
                f"'{records[0].run}' has the task {records[0].task} and '{other.run}' has {other.task}: only runs of "
                "one task go into one diagram."
            )
    check_labels(records, labels)
    look = look or Look()
    _check_look(look, level)
    names = labels_of(records, labels)
    found = style.colours(style.roles_of(names, [run.base_model is not None for run in records]))
    colours = [found[name] for name in names]
    if level == "attention":
        return _attention(connection, records, choice, look, names, colours)
    panels, facts = [], []
    for run, name, colour in zip(records, names, colours, strict=True):
        panel, ranked, note = _panel(connection, run, choice, level, name, colour)
        panels.append(panel)
        facts.append(f" {ranked[0].upper()}{ranked[1:]}." + (f" Ragged: {note}." if note else ""))
    if level == "head":
        look = replace(look, mlps=False)
    scene = draw_wiring(panels, look)
    said = [
        f"{task_title(records[0].task)}: layers run {'upwards' if look.upwards else 'downwards'}, heads from left to "
        f"right{', MLPs are squares' if look.mlps else ''}{_shared(records)}; what is not in the circuit is grey.",
        *(_circuit_fact(panel, choice) + fact for panel, fact in zip(panels, facts, strict=True)),
        *(
            []
            if level == "head"
            else ["Width and opacity follow the square root of |score|, by the panel's largest."]
        ),
        *([f"Highlighted: {', '.join(look.highlight)}."] if look.highlight else []),
        *([scene.caption] if scene.caption else []),
        *run_facts(records, level),
        *_performed(connection, records, names),
    ]
    return replace(scene, caption="\n".join(said) + "\n")


def explorer(
    connection: DuckDBPyConnection,
    catalog: Catalog,
    runs: Sequence[str] = (),
    *,
    labels: Labels | None = None,
    prompts: int = 8,
    protocol: str | None = None,
    crossing: str = "sustained",
) -> str:
    """The interactive page as HTML: sparse, dense, sparse, dense, ..., a task for two; without runs, all pairs.

    It begins at the size from which on circuits explain enough, or where they `first` do.
    """
    view = View(ranking="task", protocol=protocol, crossing=crossing)
    pairs = pair_up(connection, catalog, runs, view)
    check_labels((run for pair in pairs for run in pair), labels)
    return explorer_page(explore(connection, pairs, labels=labels, prompts=prompts), crossing=crossing)


def _check_look(look: Look, level: str) -> None:
    """Refuse what a level has nothing to do with."""
    given = {
        "--slots": look.slots,
        "--no-mlps": not look.mlps,
        "--direction up": look.upwards and level == "attention",
    }
    if level != "edge" and any(given.values()):
        said = ", ".join(option for option, wanted in given.items() if wanted)
        raise InputError(f"At the level {level} there is nothing that {said} could change: leave it out.")


def _panel(
    connection: DuckDBPyConnection, run: Run, choice: Choice, level: str, title: str, colour: str
) -> tuple[Panel, str, str]:
    """A panel, by what its units are ranked, and what is odd about the curve that its size is from."""
    if level == "head":
        found = units(connection, run, level, choice)
        if not found.requested:
            raise InputError(
                f"The circuit of the run '{run.run}' is empty: it has none of its heads, {_how(choice)}; ask for more."
            )
        strength = np.abs(found.rows["score"].to_numpy())
        shares = strength / (strength.max(initial=0.0) or 1.0)
        heads = dict(zip(found.rows["node_id"].to_pylist(), shares.tolist(), strict=True))
        none = Circuit(run.wiring, np.empty(0, np.int32), np.empty(0, np.float32), requested=found.requested)
        return Panel(circuit=none, title=title, colour=colour, heads=heads), found.ranked, found.note
    chosen = choose(connection, run, choice)
    circuit = chosen.circuit
    if not circuit.kept:
        raise InputError(
            f"The circuit of the run '{run.run}' is empty: of the {circuit.requested:,} edges requested, none lies on "
            "a path from input to logits; ask for more, or for --greedy."
        )
    return Panel(circuit=circuit, title=title, colour=colour), chosen.ranked, chosen.note


def _performed(connection: DuckDBPyConnection, runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Which run each name stands for, how well its model does the task, and whether it does it at all."""
    found = performances(connection)
    lines = [run_line(name, run, found[run.run]) for name, run in zip(names, runs, strict=True)]
    return lines + doubt_lines(names, [found[run.run].doubts((run.ablation,)) for run in runs])


def _shared(runs: Sequence[Run]) -> str:
    grouped = any(run.shape.inputs is Inputs.GROUPED for run in runs)
    return ", key/value heads small squares before those that read them" if grouped else ""


def _circuit_fact(panel: Panel, choice: Choice) -> str:
    circuit, how = panel.circuit, _how(choice)
    if panel.heads is not None:
        return (
            f"{panel.title}: {len(panel.heads):,} heads, {how}; the stronger a head, the fuller its colour."
        )
    return (
        f"{panel.title}: {circuit.kept:,} of {circuit.wiring.n_edges:,} edges, through {len(circuit.heads):,} heads; "
        f"{circuit.requested:,} requested, {how}."
    )


def _how(choice: Choice) -> str:
    if choice.effect is not None:
        how = f"the smallest measured circuit {_CROSSED[choice.crossing]} {choice.effect:g} of the effect is explained"
    elif choice.mass is not None:
        how = f"the fewest with {choice.mass:g} of the total |score|"
    elif choice.threshold is not None:
        how = f"those with a |score| of {choice.threshold:g} or more"
    else:
        how = f"the strongest{', grown from the logits' if choice.greedy else ''}"
    return how


def _attention(
    connection: DuckDBPyConnection,
    runs: Sequence[Run],
    choice: Choice,
    look: Look,
    names: Sequence[str],
    colours: Sequence[str],
) -> Scene:
    panels, said = [], []
    for run, name, colour in zip(runs, names, colours, strict=True):
        found = units(connection, run, "attention", choice)
        if not found.requested:
            raise InputError(
                f"The circuit of the run '{run.run}' is empty: it has no attention edge, {_how(choice)}; ask for more."
            )
        if found.rows.num_rows > look.limit:
            said.append(f"{name}: the {look.limit:,} strongest of {found.rows.num_rows:,} are drawn.")
        (prompt,) = ask(connection, "run_prompt", run=run.run, prompt=choice.prompt).to_pylist()
        ids = prompt["clean_ids"]
        panels.append(
            TokenPanel(
                edges=found.rows.slice(0, look.limit),
                tokens=tuple(prompt["clean_tokens"] or map(str, ids)),
                changed=frozenset(np.flatnonzero(np.array(ids) != prompt["corrupted_ids"]).tolist()),
                kept=found.rows.num_rows,
                title=name,
                colour=colour,
            )
        )
        said.append(
            f"{name}: {found.rows.num_rows:,} attention edges, {_how(choice)}, {found.ranked}."
            + (f" Ragged: {found.note}." if found.note else "")
        )
    scene = draw_attention(panels, numbers=look.numbers, highlight=look.highlight, width=look.width)
    caption = [
        f"{task_title(runs[0].task)}, prompt {choice.prompt}: attention edges from key (left foot) to query (right "
        "foot), by layer; layers in which no edge is kept here are left out.",
        "Width and opacity follow the square root of |score|, by the panel's largest.",
        "Tokens in colour are those that the corrupted prompt changes.",
        *([f"Highlighted: {', '.join(look.highlight)}."] if look.highlight else []),
        *said,
        *run_facts(runs, "attention"),
        *_performed(connection, runs, names),
    ]
    return replace(scene, caption="\n".join(caption) + "\n")
