"""Explained-effect curves as a figure: a row of panels, one a task, a sparse model against its dense original.

A line is the ratio of means over prompts, its band the 95 % interval of that (Student's t). From where on both
lines stay at the threshold, or where they first get there, a dashed bar joins them, with the multiplier above it. The
x axis has the units *requested*: a circuit of a few edges often keeps none, and a log axis has no place for that.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data import replacing, task_title
from ..errors import InputError, one_of
from ..graphs import RANKINGS
from ..queries import (
    Comparison,
    Curve,
    Multiplier,
    View,
    falls_again,
    interval_words,
    labels_of,
    printable,
    prompts_that_rank,
    whole_units,
)
from . import style
from .captions import doubt_lines, run_facts, run_line, smaller_fact, unit_name

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
_BEYOND = 0.35
"""Bands are drawn so far beyond the lines, as a share of what these span: those of a few prompts may be as wide as can
be."""
_NARROWEST, _PANEL = 144.0, 115.0
"""Of a figure, and of a panel of it, in points."""
SETTINGS = {
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
    width: float | None = None,
) -> "Figure":
    """The figure; `labels` says what models or runs are called in it, `random` adds the ranking that is none.

    `width` is in points; by default it is a column's or, for more than two panels, that of a paper's text.
    """
    if width is not None and not width >= _NARROWEST:
        raise InputError(
            f"A figure of curves is at least {_NARROWEST:g} points wide, not {width:g} (--width)."
        )
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    named = [labels_of([curve.run for curve in one.curves], labels) for one in comparisons]
    colours = style.colours(_roles(comparisons, named))
    in_a_row = _IN_A_ROW if width is None else max(1, min(_IN_A_ROW, int(width / _PANEL)))
    columns = min(len(comparisons), in_a_row)
    rows = -(-len(comparisons) // in_a_row)
    inches = (style.FIGURE_WIDTH if columns > 2 else _COLUMN) if width is None else width / 72
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(
            figsize=(inches, rows * _ROW_HEIGHT + _LEGEND_HEIGHT),
            layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.03),
        )
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        entries: dict[str, Any] = {}
        for axes, one, names in zip(grid.flat, comparisons, named, strict=False):
            entries |= _draw_panel(axes, one, view, names, colours, random)
        for axes in grid.flat[len(comparisons) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("Explained effect" if _measured(comparisons) else "Share of |score|")
        _set_heights([axes for axes in grid.flat if axes.get_visible()])
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
    with load_matplotlib().rc_context(SETTINGS):
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
    if not _measured(comparisons):
        return _attributed_caption(comparisons, labels)
    paired = [one for one in comparisons if one.multiplier]
    said = [
        f"Explained effect of the circuits of the k strongest {unit_name(view.level)}, against k as requested"
        + (" (a kept edge must also lie on a path from input to logits)." if view.level == "edge" else "."),
        "Lines are ratios of means over prompts, bands their 95 % intervals (Student's t); an "
        "arrowhead marks a band that goes on beyond the figure.",
    ]
    if paired:
        where = (
            f"at which both models first reach {view.threshold:g}"
            if view.crossing == "first"
            else f"from which on both models stay at {view.threshold:g} or above"
        )
        said += [
            f"Dashed bars join the sizes {where}, interpolated on log k; above them, how many times fewer the sparse "
            "model needs, dense / sparse."
        ]
    if random and any(curve.random.num_rows for curve in curves):
        said += ["Grey: units in random order."]
    if any(curve.attributed is not None for curve in curves):
        said += [
            "Dotted: the share of the total |score| in the same units, which is attributed, not measured."
        ]
    said += _multiplier_facts(paired, view)
    said += run_facts([curve.run for curve in curves], view.level)
    by = f"protocol {view.protocol}" if view.smaller else f"ablation {curves[0].ablation}"
    said += [f"Level {view.level}, {by}, threshold {view.threshold:g}."]
    said += list(dict.fromkeys(_ranking_fact(curve, view.ranking) for curve in curves))
    for one in comparisons:
        names = labels_of([curve.run for curve in one.curves], labels)
        said += [
            run_line(name, curve.run, curve.performance, curve.prompts)
            for name, curve in zip(names, one.curves, strict=True)
        ]
        if view.smaller:
            title = task_title(one.curves[0].run.task)
            said += [
                f"{title}, {smaller_fact(name, curve, view.threshold)}"
                for name, curve in zip(names, one.curves, strict=True)
            ]
    said += doubts_said(comparisons, labels)
    return "\n".join(said) + "\n"


def doubts_said(comparisons: Sequence[Comparison], labels: Mapping[str, str] | None = None) -> list[str]:
    """Which models of a figure do not do their tasks."""
    said: list[str] = []
    for one in comparisons:
        names = labels_of([curve.run for curve in one.curves], labels)
        title = task_title(one.curves[0].run.task)
        said += [f"{title}: {line}" for line in doubt_lines(names, [curve.doubts for curve in one.curves])]
    return said


def _measured(comparisons: Sequence[Comparison]) -> bool:
    return any(curve.points.num_rows for one in comparisons for curve in one.curves)


def _attributed_caption(comparisons: Sequence[Comparison], labels: Mapping[str, str] | None) -> str:
    """Of curves of which nothing was measured."""
    curves = [curve for one in comparisons for curve in one.curves]
    said = [
        "The share of the total |score| in the k strongest edges: attributed, not measured. No circuit was run.",
        *run_facts([curve.run for curve in curves], "edge"),
        *(
            f"{name}: run {curve.run.run}."
            for one in comparisons
            for name, curve in zip(labels_of([c.run for c in one.curves], labels), one.curves, strict=True)
        ),
    ]
    return "\n".join(said) + "\n"


def _ranking_fact(curve: Curve, ranking: str) -> str:
    if ranking == "prompt":
        return "Each prompt ranks its own units, by |score|."
    halvings = curve.run.cross_fit
    if halvings is not None:
        times = "once" if halvings == 1 else f"{halvings} times"
        return (
            f"Units are ranked by {RANKINGS[ranking].about} over halves of {curve.run.prompts:,} prompts, halved at "
            f"random {times}, each measured on the other half (--cross-fit {halvings})."
        )
    return f"Units are ranked by {RANKINGS[ranking].about} over {prompts_that_rank(curve.run)}" + (
        ", others than those that are measured." if curve.run.split is not None else "."
    )


def _multiplier_facts(paired: Sequence[Comparison], view: View) -> list[str]:
    said: list[str] = []
    given = []  # whose rankings the intervals take as they are
    for one in paired:
        found, title = one.multiplier, task_title(one.curves[0].run.task)
        assert found is not None  # noqa: S101
        ends = (found.sparse_k, found.dense_k)
        said += _ragged_facts(one, view)
        if found.sparse_k is None or found.dense_k is None:
            short = [
                f"{curve.run.run}, measured up to {curve.points['requested'][-1].as_py():,},"
                for curve, k in zip(one.curves, ends, strict=True)
                if k is None
            ]
            said.append(
                f"{title}: {view.threshold:g} is not reached by {' nor by '.join(short)} and the bar is open."
            )
            continue
        interval = ""
        if one.curves[0].prompts > 1:
            crossed = view.ranking in RANKINGS and one.curves[0].run.cross_fit is not None
            given += [view.ranking in RANKINGS and not crossed]
            what = "prompts and rankings" if crossed else "prompts"
            interval = f", 95 % interval over {what} {interval_words(found.low, found.high)}"
        dense_k, sparse_k = whole_units(found.dense_k), whole_units(found.sparse_k)
        said.append(
            f"{title}: {dense_k:,} against {sparse_k:,}, {found.multiplier:.2f} times fewer as interpolated{interval}."
        )
    if any(given):
        said.append(
            "The intervals take the rankings as given: other prompts would rank otherwise (see --cross-fit)."
        )
    return said


def _ragged_facts(one: Comparison, view: View) -> list[str]:
    """Which curves of a panel fall below the threshold again."""
    found = one.multiplier
    assert found is not None  # noqa: S101
    title = task_title(one.curves[0].run.task)
    if view.crossing == "first":
        return []
    firsts = zip(
        one.curves, (found.sparse_first_k, found.dense_first_k), (found.sparse_k, found.dense_k), strict=True
    )
    return [
        f"{title}, {curve.run.run}: {falls_again(view.threshold, first, k)}."
        for curve, first, k in firsts
        if first is not None and (k is None or k > 1.1 * first)
    ]


def _draw_panel(
    axes: "Axes",
    one: Comparison,
    view: View,
    names: Sequence[str],
    colours: Mapping[str, str],
    random: bool,
) -> dict[str, Any]:
    """Draw a panel; what of it the legend explains."""
    axes.set_title(printable(task_title(one.curves[0].run.task)), loc="left", parse_math=False)
    axes.set_xlabel(unit_name(view.level).capitalize() + (" requested" if view.level == "edge" else " kept"))
    largest = max(
        int(table["requested"][-1].as_py())
        for curve in one.curves
        for table in (curve.points, curve.attributed)
        if table is not None and table.num_rows
    )
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
    if curve.attributed is not None:
        (entries[name],) = axes.plot(
            *_columns(curve.attributed, "requested", "share"),
            color=colour,
            linewidth=0.9,
            linestyle=_DOTTED,
            gid=f"attributed:{run}",
        )
        entries[_ATTRIBUTED] = Line2D([], [], color=style.SOFT_INK, linewidth=0.9, linestyle=_DOTTED)
    if not curve.points.num_rows:
        return entries
    requested, explained, low, high = _columns(curve.points, "requested", "explained", "low", "high")
    if axes.get_xscale() != "log" and requested[0] > 0:  # with no unit kept, nothing is explained
        requested, explained, low, high = (
            np.concatenate([[0.0], column]) for column in (requested, explained, low, high)
        )
    axes.fill_between(
        requested,
        np.where(np.isnan(low), explained, low),
        np.where(np.isnan(high), explained, high),
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


def _set_heights(panels: Sequence["Axes"]) -> None:
    """One y axis for all panels: by the lines, and by the bands as far as these are not much wider.

    Where a band goes on beyond it, small arrowheads say so. Above everything is room for the multipliers.
    """
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    lines = [
        np.asarray(line.get_ydata(), dtype=float)
        for axes in panels
        for line in axes.lines
        if line.get_gid() != "bar"
    ]
    known = np.concatenate([[-0.02, 1.0], *(line[np.isfinite(line)] for line in lines)])
    lowest, highest = float(known.min()), float(known.max())
    most = _BEYOND * (highest - lowest)
    bands = [
        (axes, band, np.asarray(band.get_paths()[0].vertices, dtype=float))
        for axes in panels
        for band in axes.collections
        if (band.get_gid() or "").startswith("band:")
    ]
    edges = np.concatenate([known, *(vertices[:, 1] for _, _, vertices in bands)])
    edges = edges[np.isfinite(edges)]
    low, high = max(edges.min(), lowest - most), min(edges.max(), highest + most)
    for axes in panels:
        axes.set_ylim(low - 0.03 * (high - low), high + 0.2 * (high - low))
        small = high - low < 3 and low > -1
        axes.yaxis.set_major_locator(MultipleLocator(0.5) if small else MaxNLocator(5, steps=[1, 2, 5, 10]))
    for axes, band, vertices in bands:
        for end, beyond, sign in ((low, vertices[:, 1] < low, "v"), (high, vertices[:, 1] > high, "^")):
            if beyond.any():
                places = np.unique(vertices[beyond, 0])
                axes.plot(
                    places[len(places) // 2 :][:1],
                    [end],
                    marker=sign,
                    markersize=3,
                    color=band.get_facecolor()[0],
                    alpha=0.8,
                    linestyle="none",
                    gid=f"beyond:{(band.get_gid() or '').removeprefix('band:')}",
                )
        vertices[:, 1] = vertices[:, 1].clip(low, high)


def _add_legend(figure: "Figure", entries: dict[str, Any]) -> None:
    """One legend for all panels."""
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


def load_matplotlib() -> Any:
    """The package, or what to install."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise InputError("Curves need matplotlib: pip install 'wirescope[draw]'.") from error
    return matplotlib
