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
from ..queries import Comparison, Curve, Multiplier, View, labels_of
from . import style
from .captions import number, prompts_of, run_facts, unit_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = ("pdf", "svg", "png")
_IN_A_ROW, _ROW_HEIGHT, _LEGEND_HEIGHT = 4, 1.48, 0.27
_COLUMN = 3.25
_RANDOM, _ATTRIBUTED = "Random ranking", "Attributed share"
_DOTTED = (0, (1, 1.6))
_LETTER, _HANDLE = 0.6, 36.0
"""In a legend: the width of a letter, in its size, and of what stands before a label, in points."""
_LOWEST, _HIGHEST = -1.0, 2.0
"""Bands are drawn no further than this: those of a few prompts may be as wide as can be."""
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
        entries: dict[str, Any] = {}
        for axes, one, names in zip(grid.flat, comparisons, named, strict=False):
            entries |= _draw_panel(axes, one, view, names, colours, random)
        for axes in grid.flat[len(comparisons) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("Explained effect")
        _add_legend(figure, entries)
    return figure


def save_curves(figure: "Figure", file: Path | str) -> None:
    """Write the figure by the file's ending: pdf, svg or png."""
    file = Path(file)
    content = render_curves(figure, check_ending(file, ENDINGS))
    with replacing(file) as target:
        target.write(content)


def render_curves(figure: "Figure", ending: str) -> bytes:
    """The figure as pdf, svg or png; the same figure gives the same bytes."""
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[ending]
    buffer = io.BytesIO()
    with _matplotlib().rc_context(_SETTINGS):
        figure.savefig(buffer, format=ending, dpi=300, metadata=dates)
    return buffer.getvalue()


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
    if any(curve.attributed is not None for curve in curves):
        said += [
            "Dotted: the share of the total |score| in the same units, which is attributed, not measured."
        ]
    said += _multiplier_facts(paired, view)
    said += run_facts([curve.run for curve in curves], view.level)
    said += [f"Level {view.level}, ablation {curves[0].ablation}, threshold {view.threshold:g}."]
    said += list(dict.fromkeys(_ranking_fact(curve, view.ranking) for curve in curves))
    said += [
        f"{name}: run {curve.run.run}, {prompts_of(curve.prompts)}."
        for one in comparisons
        for name, curve in zip(labels_of([c.run for c in one.curves], labels), one.curves, strict=True)
    ]
    return "\n".join(said) + "\n"


def _ranking_fact(curve: Curve, ranking: str) -> str:
    if ranking == "prompt":
        return "Each prompt ranks its own units, by |score|."
    apart = curve.run.curves and curve.run.curves[0].split is not None
    return (
        f"Units are ranked by their |mean score| over {prompts_of(len(curve.run.ranked_by))} of the task"
        + (", others than those that are measured." if apart else ".")
    )


def _multiplier_facts(paired: Sequence[Comparison], view: View) -> list[str]:
    said, sure = [], False
    for one in paired:
        found, title = one.multiplier, task_title(one.curves[0].run.task)
        assert found is not None  # noqa: S101
        ends = (found.sparse_k, found.dense_k)
        if found.sparse_k is None or found.dense_k is None:
            short = [
                f"{curve.run.run}, measured up to {number(curve.points['requested'][-1].as_py())},"
                for curve, k in zip(one.curves, ends, strict=True)
                if k is None
            ]
            said.append(
                f"{title}: {view.threshold:g} is not reached by {' nor by '.join(short)} and the bar is open."
            )
            continue
        interval = ""
        if found.low is not None and one.curves[0].prompts > 1:
            sure = True
            interval = f", 95 % interval over prompts {found.low:.2f} to {found.high:.2f}"
            if found.defined < 1:
                interval += f" (of the {found.defined:.0%} of draws in which both get there)"
        said.append(
            f"{title}: {number(found.dense_k)} / {number(found.sparse_k)} = {found.multiplier:.2f}{interval}."
        )
    if sure:
        said.append("The intervals take the rankings as given: other prompts would rank otherwise.")
    return said


def _draw_panel(
    axes: "Axes",
    one: Comparison,
    view: View,
    names: Sequence[str],
    colours: Mapping[str, str],
    random: bool,
) -> dict[str, Any]:
    """Draw a panel; what of it the legend explains."""
    from matplotlib.ticker import MultipleLocator

    axes.set_title(task_title(one.curves[0].run.task), loc="left", parse_math=False)
    axes.set_xlabel(unit_name(view.level).capitalize() + (" requested" if view.level == "edge" else " kept"))
    axes.yaxis.set_major_locator(MultipleLocator(0.5))
    largest = max(int(curve.points["requested"][-1].as_py()) for curve in one.curves)
    if view.level == "head":
        axes.set_xlim(0, largest)
    else:
        axes.set_xscale("log")
        axes.set_xlim(1, max(largest, 2))
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    entries: dict[str, Any] = {}
    for i, (curve, name) in enumerate(zip(one.curves, names, strict=True)):
        entries |= _draw_curve(
            axes, curve, name, colours[name], sparse=len(names) > 1 and i == 0, random=random
        )
    if one.multiplier is not None:
        _draw_bar(axes, one.multiplier, view.threshold)
    return entries


def _draw_curve(
    axes: "Axes", curve: Curve, name: str, colour: str, *, sparse: bool, random: bool
) -> dict[str, Any]:
    from matplotlib.lines import Line2D

    run, entries = curve.run.run, {}
    requested, explained, error = _columns(curve.points, "requested", "explained", "stderr")
    if axes.get_xscale() != "log" and requested[0] > 0:  # with no unit kept, nothing is explained
        requested, explained, error = (
            np.concatenate([[0.0], column]) for column in (requested, explained, error)
        )
    spread = 1.96 * np.nan_to_num(error)
    axes.fill_between(
        requested,
        np.maximum(explained - spread, _LOWEST),
        np.minimum(explained + spread, _HIGHEST),
        color=colour,
        alpha=0.18,
        linewidth=0,
        gid=f"band:{run}",
    )
    (entries[name],) = axes.plot(
        requested,
        explained,
        color=colour,
        linewidth=1.4,
        marker="o" if sparse else "s",
        markersize=3.0,
        markerfacecolor=colour if sparse else "white",
        markeredgewidth=0.8,
        markevery=0.22,
        gid=f"curve:{run}",
    )
    if curve.attributed is not None:
        axes.plot(
            *_columns(curve.attributed, "requested", "share"),
            color=colour,
            linewidth=0.9,
            linestyle=_DOTTED,
            gid=f"attributed:{run}",
        )
        entries[_ATTRIBUTED] = Line2D([], [], color=style.SOFT_INK, linewidth=0.9, linestyle=_DOTTED)
    if random and curve.random.num_rows:
        (entries[_RANDOM],) = axes.plot(
            *_columns(curve.random, "requested", "explained"),
            color=style.RANDOM,
            linewidth=0.6,
            zorder=1.5,
            gid=f"random:{run}",
        )
    return entries


def _draw_bar(axes: "Axes", found: Multiplier, threshold: float) -> None:
    """The bar between the crossings, open where a curve does not get there; the multiplier on top of the panel."""
    left, right = axes.get_xlim()
    ends = sorted(right if k is None else k for k in (found.sparse_k, found.dense_k))
    axes.plot(
        ends,
        [threshold] * 2,
        color=style.INK,
        linewidth=0.9,
        linestyle=(0, (3, 1.6)),
        zorder=3,
        gid="bar",
    )
    scale = np.log if axes.get_xscale() == "log" else np.asarray
    share = (np.mean(scale(ends)) - scale(left)) / (scale(right) - scale(left))
    room = 0.16 if found.multiplier is not None else 0.28  # so that the words stay inside
    axes.text(
        float(np.clip(share, room, 1 - room)),
        0.985,
        "not reached" if found.multiplier is None else f"{found.multiplier:.1f}×",  # noqa: RUF001
        transform=axes.transAxes,
        ha="center",
        va="top",
        fontsize=style.LABEL,
        gid="multiplier",
    )


def _add_legend(figure: "Figure", entries: dict[str, Any]) -> None:
    """One legend for all panels, and one y axis with room for the multipliers."""
    lowest, highest = (
        bound(limit for axes in figure.axes for limit in axes.dataLim.intervaly if np.isfinite(limit))
        for bound in (min, max)
    )
    low, high = min(lowest, -0.02), max(highest, 1.0)
    for axes in figure.axes:
        axes.set_ylim(low - 0.03 * (high - low), high + 0.2 * (high - low))
    for last in (_ATTRIBUTED, _RANDOM):
        if last in entries:
            entries[last] = entries.pop(last)
    widest = max(len(label) for label in entries) * _LETTER * style.LABEL + _HANDLE
    legend = figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=max(1, min(len(entries), int(figure.get_size_inches()[0] * 72 / widest))),
        frameon=False,
        handlelength=2.2,
        columnspacing=1.6,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _columns(table: Any, *names: str) -> list[np.ndarray]:
    return [np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=float) for name in names]


def _roles(comparisons: Sequence[Comparison], named: Sequence[Sequence[str]]) -> list[style.Role]:
    return [
        role
        for one, names in zip(comparisons, named, strict=True)
        for role in style.roles_of(names, [curve.run.base_model is not None for curve in one.curves])
    ]


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise InputError("Curves need matplotlib: pip install 'wirescope[draw]'.") from error
    return matplotlib
