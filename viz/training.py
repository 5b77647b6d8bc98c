"""The course of a sparse post-training as a figure: excess above, open gates below, against steps.

The *excess* of a kind of text is how much worse than the dense model the sparse one is on text that was held out. Each
kind has a colour, and a dashed line where its bound is, in black where several have the same. Small numbers matter
most, on both sides of zero, so the axis is linear up to the smallest bound and logarithmic beyond it. Below is the
share of open gates, on a log axis. The upright line is where the model was that is kept.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import style
from .curves import SETTINGS, load_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (*(colour for pair in style.PAIRS for colour in pair), style.SOFT_INK)
_MARKERS = "osD^vPX"
_HEIGHT = 2.9
_LEAST_BOUND = 1e-3


def draw_training(record: Mapping[str, Any]) -> "Figure":
    """The figure of a record as `sparsify` writes it, finished or not: `tried`, `bounds` and `kept_step`."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    tried, bounds = record["tried"], record["bounds"]
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(style.FIGURE_WIDTH / 2, _HEIGHT), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_excess(above, tried, bounds)
        _draw_gates(below, tried)
        if record["kept_step"] is not None:
            above.annotate(
                "kept",
                (record["kept_step"], 1),
                xycoords=above.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=style.SMALL,
                color=style.SOFT_INK,
            )
        for axes in (above, below):
            axes.grid(axis="y", color=style.GRID, linewidth=0.6)
            axes.set_axisbelow(True)
            if (kept := record["kept_step"]) is not None:
                axes.axvline(kept, color=style.SOFT_INK, linewidth=0.7, zorder=1.5, gid="kept")
        _add_legend(figure, above, len(bounds))
    return figure


def _draw_excess(axes: "Axes", tried: Sequence[Mapping[str, Any]], bounds: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    steps = [one["step"] for one in tried]
    linear = max(_LEAST_BOUND, min(float(bound) for _, bound in bounds.values()))
    for i, (kind, (what, bound)) in enumerate(bounds.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(
            steps,
            [one["excess"][kind] for one in tried],
            color=colour,
            linewidth=1.2,
            marker=_MARKERS[i % len(_MARKERS)],
            markersize=2.6,
            markevery=0.2,
            label=f"{kind} ({what})" if what == "divergence" else kind,
            gid=f"excess:{kind}",
        )
        shared = [other for _, other in bounds.values()].count(bound) > 1
        axes.axhline(
            float(bound),
            color=style.INK if shared else colour,
            linewidth=0.8,
            linestyle=(0, (3, 1.6)),
            gid=f"bound:{kind}",
        )
    axes.set_yscale("symlog", linthresh=linear, linscale=0.7)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
    )
    axes.axhline(0, color=style.INK, linewidth=0.5, zorder=1)
    axes.set_ylabel("Excess (nats)")


def _draw_gates(axes: "Axes", tried: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.plot(
        [one["step"] for one in tried],
        [100 * one["open_gates"] for one in tried],
        color=style.INK,
        linewidth=1.2,
        gid="open",
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("Open gates (%)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("Steps")


def _add_legend(figure: "Figure", axes: "Axes", kinds: int) -> None:
    legend = figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(kinds, 3),
        frameon=False,
        handlelength=2.0,
        columnspacing=1.4,
        fontsize=7,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
