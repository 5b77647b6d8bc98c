"""Circuits of attention edges as a picture: tokens along the bottom, arcs from key to query, a strip for each layer.

Attention looks back, so an arc runs from its left foot, the key, to its right foot, the query; a token that looks at
itself is a loop. An arc lies above those that it spans, so that arcs of several heads between two tokens are all seen.
Layers rise from the tokens; those in which no model keeps an edge are left out. Width and opacity follow the square
root of |score|, as a share of the panel's strongest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..errors import InputError
from ..queries import printable
from . import style
from .scene import Line, Mark, Point, Scene, Words

_AXIS, _GAP, _DOT = 40.0, 26.0, 2.2
_WIDEST = 30.0
"""Of a token's room, in points."""
_LANE, _TALLEST, _AIR = 5.5, 110.0, 9.0
"""Between two arcs, of all arcs of a layer, and above them."""
_LETTER = 0.62
"""The width of a letter, in its size."""
_SIDE_BY_SIDE = 11.0
"""A token's room, in points, that panels must leave each other to stand side by side."""


@dataclass(frozen=True, kw_only=True)
class TokenPanel:
    """A model's kept attention edges on a prompt."""

    edges: pa.Table
    """`layer`, `head`, `query`, `key`, `score`."""
    tokens: tuple[str, ...]
    changed: frozenset[int] = frozenset()
    """Positions at which the corrupted prompt has another token."""
    kept: int | None = None
    """How many edges the circuit has, if more than are drawn."""
    title: str = ""
    colour: str = style.PAIRS[0][0]


def draw_attention(
    panels: Sequence[TokenPanel],
    *,
    numbers: bool = False,
    highlight: Sequence[str] = (),
    width: float | None = None,
) -> Scene:
    """The picture, so many points wide at most; `numbers` writes each arc's head on it, `highlight` names heads."""
    for name in highlight:
        if name not in {_head(edge) for panel in panels for edge in panel.edges.to_pylist()}:
            raise InputError(
                f"No attention edge that is drawn is of '{name}': highlight a head, such as a3.h2."
            )
    layers = sorted({layer for panel in panels for layer in panel.edges["layer"].to_pylist()})
    if not layers:
        raise InputError("No attention edge is kept: there is nothing to draw.")
    room = (width or style.COLUMN_WIDTH) - _AXIS - 2 * style.PAD
    most = max(len(panel.tokens) for panel in panels)
    beside = (room - _GAP * (len(panels) - 1)) / len(panels) / most
    side_by_side = beside >= _SIDE_BY_SIDE
    pitch = min(_WIDEST, beside if side_by_side else room / most)
    lines: list[Line] = []
    marks: list[Mark] = []
    words: list[Words] = []
    tops = [_apexes(panel.edges.to_pylist()) for panel in panels]
    strips = {
        layer: max(max(top.get(layer, {}).values(), default=0.0) for top in tops) + _AIR for layer in layers
    }
    x, y = _AXIS, 0.0
    for i, panel in enumerate(panels):
        one = _Drawn(panel, "" if not i else f"{i + 1}/", Point(x, y), pitch, strips, tops[i])
        lines += one.lines(highlight)
        marks += one.marks()
        words += one.words(numbers)
        if not i or not side_by_side:
            words += one.layer_names()
        x, y = (x + most * pitch + _GAP, y) if side_by_side else (x, y - one.height - 14)
    return Scene(tuple(lines), tuple(marks), tuple(words), width=width)


class _Drawn:
    """One panel, with the first token's strip at x and y."""

    def __init__(
        self,
        panel: TokenPanel,
        prefix: str,
        corner: Point,
        pitch: float,
        strips: Mapping[int, float],
        apexes: "_Apexes",
    ) -> None:
        self._panel, self._prefix, self._pitch, self._apexes = panel, prefix, pitch, apexes
        self._x, self._y = corner.x + pitch / 2, corner.y
        below = [sum(list(strips.values())[:i]) for i in range(len(strips))]
        self._bases = dict(zip(strips, below, strict=True))
        self._top = corner.y + sum(strips.values())
        self._texts = [_readable(token) for token in panel.tokens]
        longest = max(len(text) for text in self._texts) * _LETTER * style.SMALL
        self._steps = max(1, min(6, int(longest / pitch + 0.95)))  # neighbours write on different lines
        self._edges = sorted(panel.edges.to_pylist(), key=lambda edge: abs(edge["score"]))

    @property
    def height(self) -> float:
        """From the title to the last line of tokens."""
        return self._top - self._y + self._steps * 1.25 * style.SMALL + 2.4 * style.TITLE + 8

    def lines(self, highlight: Sequence[str]) -> Iterator[Line]:
        """The arcs, the weakest first; beside those of a highlighted head, the others fade."""
        strongest = max((abs(edge["score"]) for edge in self._edges), default=0.0) or 1.0
        for edge, (start, one, two, end) in zip(self._edges, self._arcs(), strict=True):
            visible = style.weight(abs(edge["score"]) / strongest, len(self._edges))
            faded = style.FADED if highlight and _head(edge) not in highlight else 1.0
            yield Line(
                src=self._dot(edge["layer"], edge["key"]),
                dst=self._dot(edge["layer"], edge["query"]),
                points=(start, one, two, end),
                colour=self._panel.colour,
                opacity=faded * style.between(style.OPACITY, visible),
                pen=style.between(style.PEN, visible),
                about=f"{_name(edge)} {edge['score']:.4g}",
            )

    def marks(self) -> Iterator[Mark]:
        """A dot for each token in each layer."""
        used = {(edge["layer"], edge[end]) for edge in self._edges for end in ("key", "query")}
        for layer in self._bases:
            for token in range(len(self._texts)):
                ink = style.INK if (layer, token) in used else style.IDLE_INK
                yield Mark(
                    name=self._dot(layer, token),
                    at=Point(self._at(token), self._base(layer)),
                    shape="circle",
                    width=_DOT,
                    height=_DOT,
                    fill=ink,
                    ink=ink,
                    pen=0.2,
                    about=f"layer {layer}, token {token}: {self._texts[token]}",
                )

    def words(self, numbers: bool) -> Iterator[Words]:
        """The title, the tokens, and the arcs' heads."""
        middle = self._at((len(self._texts) - 1) / 2)
        top = self._top + 6
        if self._panel.title:
            yield Words(
                name=f"{self._prefix}title",
                at=Point(middle, top + 1.1 * style.TITLE),
                text=self._panel.title,
                size=style.TITLE,
            )
        yield Words(
            name=f"{self._prefix}size",
            at=Point(middle, top),
            text=f"{self._panel.kept or len(self._edges):,} attention edges",
            colour=style.SOFT_INK,
        )
        for i, text in enumerate(self._texts):
            below = self._y - 8 - (i % self._steps) * 1.25 * style.SMALL
            colour = self._panel.colour if i in self._panel.changed else style.INK
            yield Words(
                name=f"{self._prefix}token {i}", at=Point(self._at(i), below), text=text, colour=colour
            )
        if numbers:
            for edge, (start, one, two, _) in zip(self._edges, self._arcs(), strict=True):
                crown = Point((one.x + two.x) / 2, start.y + 0.75 * (one.y - start.y) + 2.5)
                yield Words(name=f"{self._prefix}{_name(edge)}", at=crown, text=f"h{edge['head']}", size=4.5)

    def layer_names(self) -> Iterator[Words]:
        """Which strip is which layer."""
        for layer in self._bases:
            at = Point(18.0, self._base(layer) + 5)
            yield Words(
                name=f"{self._prefix}layer {layer}", at=at, text=f"Layer {layer}", colour=style.SOFT_INK
            )

    def _arcs(self) -> Iterator[tuple[Point, Point, Point, Point]]:
        """From key to query; a cubic whose control points are level rises three quarters of the way to them."""
        for edge in self._edges:
            key, query, base = self._at(edge["key"]), self._at(edge["query"]), self._base(edge["layer"])
            rise = self._apexes[edge["layer"]][_name(edge)] / 0.75
            loop = edge["key"] == edge["query"]
            foot, lean = (0.16 * self._pitch, 0.35 * self._pitch) if loop else (0.0, 0.0)
            yield (
                Point(key - foot, base + _DOT / 2),
                Point(key - lean, base + rise),
                Point(query + lean, base + rise),
                Point(query + foot, base + _DOT / 2),
            )

    def _at(self, token: float) -> float:
        return self._x + token * self._pitch

    def _base(self, layer: int) -> float:
        return self._y + self._bases[layer]

    def _dot(self, layer: int, token: int) -> str:
        return f"{self._prefix}{layer}/{token}"


_Apexes = dict[int, dict[str, float]]
"""By layer and name, how high an arc rises."""


def _apexes(edges: Sequence[Mapping[str, Any]]) -> _Apexes:
    """Each arc a lane above the highest one that it meets, from the narrowest to the widest."""
    found: _Apexes = {}
    for layer in sorted({edge["layer"] for edge in edges}):
        mine = sorted(
            (edge for edge in edges if edge["layer"] == layer),
            key=lambda edge: (edge["query"] - edge["key"], edge["key"], edge["head"]),
        )
        lane = min(_LANE, _TALLEST / len(mine))
        placed: list[tuple[int, int, float]] = []
        found[layer] = {}
        for edge in mine:
            key, query = edge["key"], edge["query"]
            met = [top for left, right, top in placed if left <= query and key <= right]
            apex = max(met, default=0.3 * _LANE) + lane
            placed.append((key, query, apex))
            found[layer][_name(edge)] = apex
    return found


def _head(edge: Mapping[str, Any]) -> str:
    return f"a{edge['layer']}.h{edge['head']}"


def _name(edge: Mapping[str, Any]) -> str:
    return f"{_head(edge)}[{edge['query']}<-{edge['key']}]"


def _readable(token: str) -> str:
    r"""A token on one line, with nothing around it.

    >>> _readable(" Mary"), _readable("\n"), _readable(" ")
    ('Mary', '⏎', '␣')
    """
    return printable(token).strip() or ("⏎" if "\n" in token else "␣")
