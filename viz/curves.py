"""Explained-effect curves as a figure: a row of panels, one a task, a sparse model against its dense original.

A line is the ratio of means over prompts, its band the 95 % interval of that (1.96 standard errors). Where both lines
first reach the threshold, a dashed bar joins them, with the multiplier above it. The x axis has the units *requested*:
a circuit of a few edges often keeps none, and a log axis has no place for that.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data import replacing, task_title
from ..graphs import InputError, one_of
from ..queries import Comparison, Curve, View, labels_of
from . import style
from .captions import run_facts, sentence, unit_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = ("pdf", "svg", "png")
_IN_A_ROW, _ROW_HEIGHT, _LEGEND_HEIGHT = 4, 1.48, 0.27
_COLUMN = 3.25
_RANDOM, _DOTTED = "Random ranking", (0, (1, 1.6))
_SETTINGS = {
    "font.family": [style.FONTS[0]],
    "font.size": style.LABEL,
    "axes.titlesize": style.TITLE,
    "axes.labelsize": style.LABEL,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": style.LABEL,
    "axes.edgecolor": style.INK,
    "axes.labelcolor": style.INK,
    "text.color": style.INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.width": 0.4,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.fonttype": "none",
    "svg.hashsalt": "wirescope",
}


def draw_curves(
    comparisons: Sequence[Comparison],
    view: View,
    *,
    labels: Mapping[str, str] | None = None,
    random: bool = True,
) -> "Figure":
    """The figure; `labels` says what models or runs are called in it, `random` adds the ranking that is none."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    named = [labels_of([curve.run for curve in one.curves], labels) for one in comparisons]
    colours = style.colours(_roles(comparisons, named))
    columns = min(len(comparisons), _IN_A_ROW)
    rows = -(-len(comparisons) // _IN_A_ROW)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(
            figsize=(
                style.FIGURE_WIDTH if columns > 2 else _COLUMN,
                rows * _ROW_HEIGHT + _LEGEND_HEIGHT,
            ),
            layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.03),
        )
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for axes, one, names in zip(grid.flat, comparisons, named, strict=False):
            _draw_panel(axes, one, view, names, colours, random)
        for axes in grid.flat[len(comparisons) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("Explained effect")
        _finish(figure, [curve for one in comparisons for curve in one.curves], random)
    return figure


def save_curves(figure: "Figure", file: Path) -> None:
    """Write the figure by the file's ending: pdf, svg or png."""
    matplotlib = _matplotlib()
    ending = check_ending(file, ENDINGS)
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[ending]
    buffer = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(buffer, format=ending, dpi=300, metadata=dates)
    with replacing(file) as target:
        target.write(buffer.getvalue())


def check_ending(file: Path, endings: Sequence[str]) -> str:
    """The ending of a file, if a figure can have it."""
    return one_of("file ending of this figure", file.suffix.removeprefix(".").lower(), endings)


def curves_caption(
    comparisons: Sequence[Comparison],
    view: View,
    *,
    labels: Mapping[str, str] | None = None,
    random: bool = True,
) -> str:
    """What a reader of the figure has to know, ready to paste."""
    curves = [curve for one in comparisons for curve in one.curves]
    paired = [one for one in comparisons if one.multiplier]
    said = [
        f"Explained effect of the circuits of the k strongest {unit_name(view.level)}, against k as requested"
        + (" (a kept edge must also lie on a path from input to logits)." if view.level == "edge" else "."),
        "Lines are ratios of means over prompts, bands their 95 % intervals (1.96 standard errors).",
    ]
    if paired:
        said += [
            f"Dashed bars join the sizes at which both models first reach {view.threshold:g}, interpolated on log k; "
            "above them, how many times fewer the sparse model needs, dense / sparse."
        ]
    if random and any(curve.random.num_rows for curve in curves):
        said += ["Grey: units in random order."]
    if any(curve.attributed for curve in curves):
        said += [
            "Dotted: the share of the total |score| in the same units, which is attributed, not measured."
        ]
    said += _multiplier_facts(paired, view)
    said += run_facts([curve.run for curve in curves], view.level)
    said += [f"Level {view.level}, ablation {curves[0].ablation}, threshold {view.threshold:g}."]
    said += list(dict.fromkeys(_ranking_fact(curve, view.ranking) for curve in curves))
    said += [
        f"{sentence(name)}: run {curve.run.run}, {curve.prompts} prompts."
        for one in comparisons
        for name, curve in zip(labels_of([c.run for c in one.curves], labels), one.curves, strict=True)
    ]
    return "\n".join(said) + "\n"


def _ranking_fact(curve: Curve, ranking: str) -> str:
    if ranking == "prompt":
        return "Each prompt ranks its own units, by |score|."
    apart = curve.run.curves and curve.run.curves[0].split is not None
    return f"Units are ranked by their |mean score| over {len(curve.run.ranked_by)} prompts of the task" + (
        ", others than those that are measured." if apart else "."
    )


def _multiplier_facts(paired: Sequence[Comparison], view: View) -> list[str]:
    said = []
    for one in paired:
        found, title = one.multiplier, task_title(one.curves[0].run.task)
        assert found is not None  # noqa: S101
        if found.multiplier is None:
            said.append(f"{title}: {view.threshold:g} is not reached by both.")
            continue
        interval = (
            "" if found.low is None else f", 95 % interval over prompts {found.low:.2f} to {found.high:.2f}"
        )
        said.append(
            f"{title}: {found.dense_k:.3g} / {found.sparse_k:.3g} = {found.multiplier:.2f}{interval}."
        )
    if said:
        said.append("The intervals take the rankings as given: other prompts would rank otherwise.")
    return said


def _draw_panel(
    axes: "Axes",
    one: Comparison,
    view: View,
    names: Sequence[str],
    colours: Mapping[str, str],
    random: bool,
) -> None:
    axes.set_title(task_title(one.curves[0].run.task), loc="left")
    axes.set_xlabel(
        f"Number of {unit_name(view.level)}" + (" requested" if view.level == "edge" else " kept"),
        fontsize=7,  # so that those of four panels do not touch
    )
    largest = max(int(curve.points["requested"][-1].as_py()) for curve in one.curves)
    if view.level == "head":
        axes.set_xlim(0, largest)
    else:
        axes.set_xscale("log")
        axes.set_xlim(1, largest)
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for i, (curve, name) in enumerate(zip(one.curves, names, strict=True)):
        _draw_curve(axes, curve, name, colours[name], sparse=len(names) > 1 and i == 0, random=random)
    if one.multiplier is not None:
        _draw_bar(axes, one, view.threshold)


def _draw_curve(axes: "Axes", curve: Curve, name: str, colour: str, *, sparse: bool, random: bool) -> None:
    run = curve.run.run
    if random and curve.random.num_rows:
        axes.plot(
            *_columns(curve.random, "requested", "explained"),
            color=style.RANDOM,
            linewidth=0.6,
            label=_RANDOM,
            zorder=1.5,
            gid=f"random:{run}",
        )
    if curve.attributed is not None:
        axes.plot(
            *_columns(curve.attributed, "requested", "share"),
            color=colour,
            linewidth=0.9,
            linestyle=_DOTTED,
            gid=f"attributed:{run}",
        )
    requested, explained, error = _columns(curve.points, "requested", "explained", "stderr")
    if axes.get_xscale() != "log" and requested[0] > 0:  # with no unit kept, nothing is explained
        requested, explained, error = (
            np.concatenate([[0.0], column]) for column in (requested, explained, error)
        )
    spread = 1.96 * np.nan_to_num(error)
    axes.fill_between(
        requested,
        explained - spread,
        explained + spread,
        color=colour,
        alpha=0.18,
        linewidth=0,
        gid=f"band:{run}",
    )
    axes.plot(
        requested,
        explained,
        color=colour,
        linewidth=1.4,
        marker="o" if sparse else "s",
        markersize=3.0,
        markerfacecolor=colour if sparse else "white",
        markeredgewidth=0.8,
        markevery=0.22,
        label=name,
        gid=f"curve:{run}",
    )


def _draw_bar(axes: "Axes", one: Comparison, threshold: float) -> None:
    """The bar between the crossings and the multiplier above it; to the edge where a curve does not get there."""
    found = one.multiplier
    assert found is not None  # noqa: S101
    left, right = axes.get_xlim()
    reached = [k for k in (found.sparse_k, found.dense_k) if k is not None]
    ends = sorted([*reached, *[right] * (2 - len(reached))])
    axes.plot(
        ends,
        [threshold] * 2,
        color=style.INK,
        linewidth=0.9,
        linestyle=(0, (3, 1.6)),
        zorder=3,
        gid="bar",
    )
    log = axes.get_xscale() == "log"
    middle = float(np.sqrt(ends[0] * ends[1])) if log else sum(ends) / 2
    # keep the words inside of the panel
    room = 0.16 if found.multiplier is not None else 0.24
    low, high = (
        (left * (right / left) ** room, left * (right / left) ** (1 - room))
        if log
        else (left + room * (right - left), right - room * (right - left))
    )
    axes.text(
        min(max(middle, low), high),
        max(1.04, *(_highest(curve) for curve in one.curves)) + 0.03,
        "not reached" if found.multiplier is None else f"{found.multiplier:.1f}×",  # noqa: RUF001
        ha="center",
        va="bottom",
        fontsize=style.LABEL,
        gid="multiplier",
    )


def _finish(figure: "Figure", curves: Sequence[Curve], random: bool) -> None:
    """Common limits of the y axis, and one legend for all panels."""
    highest = max(1.04, *(_highest(curve) for curve in curves)) + 0.25
    lowest = min(-0.05, *(_lowest(curve, random) for curve in curves))
    from matplotlib.lines import Line2D

    entries: dict[str, Any] = {}
    for axes in figure.axes:
        axes.set_ylim(lowest, highest)
        axes.set_yticks([0.0, 0.5, 1.0])
        entries |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    if any(curve.attributed is not None for curve in curves):
        entries["Attributed share"] = Line2D([], [], color=style.SOFT_INK, linewidth=0.9, linestyle=_DOTTED)
    if _RANDOM in entries:  # last
        entries[_RANDOM] = entries.pop(_RANDOM)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(len(entries), 6 if len(figure.axes) > 2 else 2),
        frameon=False,
        handlelength=2.2,
        columnspacing=1.6,
    )


def _highest(curve: Curve) -> float:
    return float(np.nanmax(_columns(curve.points, "explained")[0]))


def _lowest(curve: Curve, random: bool) -> float:
    lines = [curve.points, *([curve.random] if random and curve.random.num_rows else [])]
    return min(float(np.nanmin(_columns(line, "explained")[0])) for line in lines) - 0.05


def _columns(table: Any, *names: str) -> list[np.ndarray]:
    return [np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=float) for name in names]


def _roles(comparisons: Sequence[Comparison], named: Sequence[Sequence[str]]) -> list[style.Role]:
    """Sparse first, dense second; a run alone by whether its model came from another."""
    roles = []
    for one, names in zip(comparisons, named, strict=True):
        alone = len(names) == 1
        for i, (name, curve) in enumerate(zip(names, one.curves, strict=True)):
            sparse = curve.run.base_model is not None if alone else i == 0
            roles.append(style.Role(name, names[-1], sparse))
    return roles


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise InputError("Curves need matplotlib: pip install 'wirescope[draw]'.") from error
    return matplotlib
