"""A circuit as a wiring diagram: layers as rows from top to bottom, heads as columns, the MLP at the end.

Positions and curves are computed here, in points, and written into the DOT: Graphviz only renders
(engine ``nop2``), so ten thousand edges take a second. Edges lie below the nodes, the weakest lowest; opacity
and width follow the square root of the strength.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import graphviz
import numpy as np
import pyarrow as pa

from ..data import replacing
from ..graphs import KINDS, Circuit, InputError, Wiring

_COLUMN, _ROW, _RADIUS = 27.0, 34.0, 6.0
_EDGE, _INK, _IDLE, _IDLE_INK = "#0072B2", "#222222", "#EDEDED", "#C8C8C8"
_FONT = "Helvetica,Arial,sans-serif"


@dataclass(frozen=True)
class _Point:
    x: float
    y: float

    def __str__(self) -> str:
        return f"{self.x:.2f},{self.y:.2f}"


def wiring_dot(circuit: Circuit, *, title: str = "") -> str:
    """The DOT source of the diagram, with all positions in it."""
    wiring = circuit.wiring
    places = _places(wiring)
    active = set(circuit.nodes.tolist())
    dot = graphviz.Digraph(
        "circuit",
        graph_attr={"bgcolor": "white", "outputorder": "edgesfirst", "splines": "true", "pad": "0.1"},
        node_attr={
            "fixedsize": "true",
            "label": "",
            "style": "filled",
            "fontname": _FONT,
            "fontsize": "7",
        },
        edge_attr={"dir": "none"},
    )
    for node, place in enumerate(places):
        dot.node(wiring.node_names[node], pos=str(place), **_node_style(wiring, node, node in active))
    for layer in range(wiring.shape.layers):
        beside = str(_Point(-_COLUMN, -layer * _ROW))
        dot.node(
            f"layer {layer}", label=str(layer), pos=beside, shape="plaintext", style="", fontcolor="#777777"
        )
    if title:
        above = str(_Point(_middle(wiring), 1.7 * _ROW))
        dot.node(
            "title", label=title, pos=above, shape="plaintext", style="", fontsize="10", fixedsize="false"
        )
    weakest_first = circuit.table().take(pa.array(np.arange(circuit.kept)[::-1])).to_pylist()
    at = dict(zip(wiring.node_names, places, strict=True))
    strongest = float(np.abs(circuit.scores).max(initial=0.0)) or 1.0
    crowding = min(1.0, (250 / max(circuit.kept, 1)) ** 0.45)
    for edge in weakest_first:
        visible = float(np.sqrt(abs(edge["score"]) / strongest)) * crowding
        dot.edge(
            edge["src"],
            edge["dst"],
            pos=_curve(at[edge["src"]], at[edge["dst"]]),
            color=f"{_EDGE}{round(255 * (0.12 + 0.8 * visible)):02X}",
            penwidth=f"{0.25 + 2.2 * visible:.2f}",
            tooltip=f"{edge['name']} {edge['score']:.4g}",
        )
    return str(dot.source)


def render(dot: str, file: Path) -> None:
    """Render a diagram with the bundled Graphviz or an installed one, by the file's ending: svg, pdf, png."""
    kind = file.suffix.removeprefix(".")
    if kind not in ("svg", "pdf", "png"):
        raise InputError(f"A diagram can be rendered as svg, pdf or png, not as '{file.suffix}'.")
    try:
        import pygraphviz
    except ImportError:
        program = shutil.which("dot")
        if program is None:
            raise InputError(
                "Rendering needs Graphviz: pip install 'wirescope[draw]', or install it so that 'dot' is found."
            ) from None
        picture = subprocess.run(  # noqa: S603
            [program, "-Knop2", f"-T{kind}"], input=dot.encode(), capture_output=True, check=True
        ).stdout
    else:
        picture = pygraphviz.AGraph(string=dot).draw(format=kind, prog="nop2")
    with replacing(file) as target:
        target.write(picture)


def _places(wiring: Wiring) -> list[_Point]:
    """Where each node stands; y falls from one layer to the next."""
    column = np.where(wiring.node_head >= 0, wiring.node_head, wiring.shape.heads).astype(float) * _COLUMN
    ends = wiring.is_kind("input") | wiring.is_kind("logits")
    column[ends] = _middle(wiring)
    row = -wiring.node_layer.astype(float) * _ROW
    shared = wiring.is_kind("kv")  # half a row above the heads, over the middle of those that they feed
    row[shared] += _ROW / 2
    group = wiring.shape.heads // wiring.shape.kv_heads
    column[shared] = (wiring.node_head[shared] * group + (group - 1) / 2) * _COLUMN
    return [_Point(float(x), float(y)) for x, y in zip(column, row, strict=True)]


def _middle(wiring: Wiring) -> float:
    return wiring.shape.heads * _COLUMN / 2


def _node_style(wiring: Wiring, node: int, active: bool) -> dict[str, str]:
    kind = KINDS[wiring.node_kind[node]]
    style = {
        "fillcolor": "white" if active else _IDLE,
        "color": _INK if active else _IDLE_INK,
        "penwidth": "0.7" if active else "0.4",
        "tooltip": wiring.node_names[node],
    }
    if kind in ("input", "logits"):
        return style | {"shape": "box", "label": kind, "width": "0.6", "height": "0.19"}
    size = f"{2 * _RADIUS / 72 * (0.6 if kind == 'kv' else 1):.3f}"
    return style | {"shape": "circle" if kind == "head" else "square", "width": size, "height": size}


def _curve(start: _Point, end: _Point) -> str:
    """A cubic Bezier that leaves downwards and arrives from above, as a DOT spline."""
    reach = max(0.45 * (start.y - end.y), 0.45 * _ROW)
    below, above = _Point(start.x, start.y - _RADIUS), _Point(end.x, end.y + _RADIUS)
    if start.y == end.y:  # from a head to its own layer's MLP: a bow below the row
        above = _Point(end.x, end.y - _RADIUS)
        return f"{below} {_Point(start.x, below.y - reach)} {_Point(end.x, above.y - reach)} {above}"
    # the nodes of a column lie on one line: pass those in between on the left
    bow = -0.5 * _COLUMN if start.x == end.x and start.y - end.y > _ROW else 0.0
    return f"{below} {_Point(start.x + bow, below.y - reach)} {_Point(end.x + bow, above.y + reach)} {above}"
