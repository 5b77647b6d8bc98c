"""Circuits as wiring diagrams: layers as rows, heads as columns, the MLP at the end, any number of models side by side.

Positions and curves are computed here, in points; Graphviz or TikZ only render them, so ten thousand edges take a
second. Edges lie below the nodes, the weakest first; opacity and width follow the square root of the strength, as a
share of the panel's strongest.

    >>> from wirescope.graphs import Shape, Wiring, top_k
    >>> circuit = top_k(Wiring(Shape(layers=1, heads=1)), [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3], k=5)
    >>> scene = draw_wiring([Panel(circuit=circuit, title="A head and an MLP")])
    >>> [line.about for line in scene.lines if line.src.endswith("m0")]  # doctest: +ELLIPSIS
    ['m0->logits...']
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..errors import InputError
from ..graphs import KINDS, SLOTS, Circuit, Wiring
from ..graphs.wiring import Ids
from . import style
from .routing import Router, clearance
from .scene import Curve, Line, Mark, Point, Rule, Scene, Words

_AXIS, _GAP = 40.0, 1.8
"""Of the Layers axis, in points, and between two panels, in columns."""
_WIDEST, _NARROWEST, _LOWEST = 20.0, 8.5, 14.0
"""Of a column, in points: at most, at least before a page's width is used; of a row, at least."""
_SMALLEST = 72.0
"""Of a picture's width, in points."""
_ROUND = 0.57
"""The diameter of a node, in columns."""
_DASHES = {"": "solid", "q": "solid", "k": "dashed", "v": "dotted"}
_LETTER = 0.6
"""The width of a letter, in its size."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A model in a diagram: its circuit of edges or, where heads are the units, its heads."""

    circuit: Circuit
    title: str = ""
    colour: str = style.PAIRS[0][0]
    heads: Mapping[int, float] | None = None
    """By node id, how strong they are, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is drawn of circuits, and how."""

    highlight: tuple[str, ...] = ()
    """Nodes (``a9.h9``), edges (``a9.h9->a11.h10<q>``) and paths (``input->m0->logits``) that stand out."""
    mlps: bool = True
    numbers: bool = False
    """The number of each active head in its circle."""
    slots: bool = False
    """Edges into q, k and v by the style of their lines."""
    upwards: bool = False
    """The first layer at the bottom."""
    limit: int = 10_000
    """Of edges a panel: beyond it, the strongest are drawn."""
    width: float | None = None
    """Of the picture at most, in points; None: of a paper's text, or of a page where nodes would be too small."""

    def __post_init__(self) -> None:
        if self.width is not None and not self.width >= _SMALLEST:
            raise InputError(
                f"A diagram is at least {_SMALLEST:g} points wide, not {self.width:g} (--width)."
            )
        if self.limit < 1:
            raise InputError(f"A diagram draws at least one edge, not {self.limit} (--limit).")


def draw_wiring(panels: Sequence[Panel], look: Look | None = None) -> Scene:
    """The diagram of circuits side by side, with one Layers axis; its caption says what is not drawn."""
    look = look or Look()
    grid = _Grid(panels, look)
    drawn = [_Drawn(panel, look, grid, i) for i, panel in enumerate(panels)]
    for item in look.highlight:
        if not any(one.shows(item) for one in drawn):
            raise InputError(
                f"Nothing that is drawn is highlighted by {item}: choose what is in the circuit."
            )
    rules, words = _axis(grid)
    if look.slots:
        more, names = _slot_key(grid)
        rules, words = rules + more, words + names
    return Scene(
        lines=tuple(line for one in drawn for line in one.lines()),
        marks=tuple(mark for one in drawn for mark in one.marks()),
        words=(*words, *(word for one in drawn for word in one.words())),
        rules=(*rules, *(rule for one in drawn for rule in one.rules())),
        caption="\n".join(sentence for one in drawn for sentence in one.left_out()),
        width=look.width,
    )


class _Grid:
    """Where columns and rows are."""

    def __init__(self, panels: Sequence[Panel], look: Look) -> None:
        shapes = [panel.circuit.wiring.shape for panel in panels]
        columns = [shape.heads + look.mlps for shape in shapes]
        total = sum(columns) + _GAP * (len(panels) - 1)
        self.layers = max(shape.layers for shape in shapes)
        around = _AXIS + 2 * style.PAD
        pitch = ((look.width or style.COLUMN_WIDTH) - around) / total
        if look.width is None and pitch < _NARROWEST:
            pitch = (style.PAGE_WIDTH - around) / total
        self.column = min(_WIDEST, pitch)
        self.row = max(1.5 * self.column, _LOWEST)
        self.size = _ROUND * self.column
        self._sign = 1.0 if look.upwards else -1.0
        starts = np.cumsum([0, *[count + _GAP for count in columns[:-1]]])
        self.left = [_AXIS + (float(start) + 0.5) * self.column for start in starts]
        self.middle = [
            left + (count - 1) * self.column / 2 for left, count in zip(self.left, columns, strict=True)
        ]

    def y(self, row: float) -> float:
        """Of a row: -1 is the input, the number of layers the logits."""
        return self._sign * row * self.row

    @property
    def onwards(self) -> float:
        """-1 where later layers are lower."""
        return self._sign

    @property
    def top(self) -> float:
        """Of the highest row."""
        return max(self.y(-1), self.y(self.layers))


class _Drawn:
    """One panel as it is drawn."""

    def __init__(self, panel: Panel, look: Look, grid: _Grid, number: int) -> None:
        self._panel, self._look, self._grid, self._number = panel, look, grid, number
        self._wiring: Wiring = panel.circuit.wiring
        self._places = self._lay_out()
        order = panel.circuit.ranked()
        if not look.mlps:
            mlp = self._wiring.is_kind("mlp")
            order = order[~(mlp[panel.circuit.src[order]] | mlp[panel.circuit.dst[order]])]
        self._at_mlps = panel.circuit.kept - len(order)
        self._cut = max(len(order) - look.limit, 0)
        self._order: Ids = order[: look.limit][::-1]  # positions in the circuit, the weakest first

    @cached_property
    def highlighted(self) -> np.ndarray:
        """Which edges of the circuit stand out, by position."""
        found = np.zeros(self._panel.circuit.kept, dtype=bool)
        for item in self._look.highlight:
            for _, edges in self._parts(item):
                found |= edges
        return found

    def shows(self, item: str) -> bool:
        """Whether anything that is drawn is highlighted by an item."""
        drawn = np.isin(np.arange(self._panel.circuit.kept), self._order)
        heads = {self._wiring.node_names[node] for node in self._panel.heads or ()}
        return item in heads or any((edges & drawn).any() for _, edges in self._parts(item))

    def _parts(self, item: str) -> Iterator[tuple[str, np.ndarray]]:
        """What an item highlights: a node all its edges, a path each of its steps, by name."""
        circuit, names = self._panel.circuit, item.split("->")
        ends = self._wiring.node_ids(name.partition("<")[0] for name in names)
        if len(names) == 1:
            yield item, (circuit.src == ends[0]) | (circuit.dst == ends[0])
        for i, (src, dst) in enumerate(pairwise(ends)):
            slot = names[i + 1].partition("<")[2].rstrip(">")
            same = (circuit.src == src) & (circuit.dst == dst)
            if slot:
                same &= self._wiring.edge_letter[circuit.edges] == SLOTS.index(_slot(slot, item))
            yield f"{names[i].partition('<')[0]}->{names[i + 1]}", same

    def lines(self) -> Iterator[Line]:
        """Its edges, the weakest first, those that stand out last."""
        circuit, wiring = self._panel.circuit, self._wiring
        strongest = float(np.abs(circuit.scores).max(initial=0.0)) or 1.0
        names = wiring.edge_names(circuit.edges).to_pylist()
        faded = bool(self._look.highlight)
        order = (
            sorted(self._order.tolist(), key=lambda at: bool(self.highlighted[at])) if faded else self._order
        )
        sources, destinations = circuit.src, circuit.dst  # each of them is made anew when it is asked for
        ends = [(int(sources[at]), int(destinations[at])) for at in order]
        curves = self._router().lay([self._curve(src, dst) for src, dst in ends])
        for at, (src, dst), curve in zip(order, ends, curves, strict=True):
            score = float(circuit.scores[at])
            visible = style.weight(abs(score) / strongest, len(self._order))
            stands_out = faded and bool(self.highlighted[at])
            slot = SLOTS[wiring.edge_letter[circuit.edges[at]]]
            opacity = style.between(style.OPACITY, visible)
            yield Line(
                src=self._name(src),
                dst=self._name(dst),
                points=curve,
                colour=self._panel.colour,
                opacity=(max(opacity, 0.85) if stands_out else opacity * style.FADED) if faded else opacity,
                pen=max(style.between(self._pens, visible), min(1.0, self._pens[1]) if stands_out else 0.0),
                dash=_DASHES[slot] if self._look.slots else "solid",
                about=f"{names[at]} {score:.4g}",
            )

    @property
    def _pens(self) -> tuple[float, float]:
        """Of the faintest edge and of the strongest, which must still fit between nodes without touching them."""
        return style.PEN[0], min(style.PEN[1], 1.9 * clearance(self._grid.column))

    def marks(self) -> Iterator[Mark]:
        """Its nodes."""
        wiring, heads = self._wiring, self._panel.heads or {}
        active = {*self._panel.circuit.nodes.tolist(), *heads}
        named = [item for item in self._look.highlight if "->" not in item]
        for node, place in enumerate(self._places):
            kind = KINDS[wiring.node_kind[node]]
            is_unit = self._panel.heads is None or kind == "head"
            if place is None or not is_unit:
                continue
            name, used = wiring.node_names[node], node in active
            look = Mark(
                name=self._name(node),
                at=place,
                shape={"head": "circle", "mlp": "square", "kv": "square"}.get(kind, "box"),
                width=self._size(node),
                height=self._size(node),
                fill=self._panel.colour if node in heads else "white" if used else style.IDLE,
                fill_opacity=style.between((0.25, 1.0), heads[node]) if node in heads else 1.0,
                ink=style.INK if used else style.IDLE_INK,
                pen=(1.6 if name in named else 0.7 if used else 0.4) * min(1.0, self._grid.column / 13),
                text=str(wiring.node_head[node]) if self._look.numbers and used and kind == "head" else "",
                text_size=0.62 * self._grid.size,
                about=name,
            )
            if kind in ("input", "logits"):
                size = self._size(node) / 1.7
                look = replace(look, width=5.2 * size, text=kind, text_size=size)
            yield look

    def words(self) -> Iterator[Words]:
        """Its title, and what is in it."""
        grid, circuit = self._grid, self._panel.circuit
        top = Point(grid.middle[self._number], grid.top + 1.1 * style.TITLE + 0.5 * grid.size + 10)
        if self._panel.title:
            room = (grid.middle[self._number] - grid.left[self._number]) * 2 + _GAP * grid.column
            fitting = room / (_LETTER * len(self._panel.title))
            size = max(style.SMALL, min(style.TITLE, fitting))
            yield Words(name=self._name("title"), at=top, text=self._panel.title, size=size)
        counted = (
            f"{len(self._panel.heads):,} heads"
            if self._panel.heads is not None
            else f"{circuit.kept:,} edges, {len(circuit.heads):,} heads"
        )
        yield Words(
            name=self._name("size"),
            at=Point(top.x, top.y - 1.1 * style.TITLE),
            text=counted,
            colour=style.SOFT_INK,
        )

    def left_out(self) -> Iterator[str]:
        """Sentences about what is in the circuit and not in the picture."""
        title = f"{self._panel.title}: " if self._panel.title else ""
        if self._at_mlps:
            yield f"{title}the {self._at_mlps:,} edges from and to MLPs are not drawn."
        for item in self._look.highlight:
            steps = list(self._parts(item))
            if missing := [name for name, edges in steps if len(steps) > 1 and not edges.any()]:
                yield f"{title}of {item}, {', '.join(missing)} is not in the circuit."
        if self._cut:
            yield f"{title}the {self._look.limit:,} strongest edges are drawn, {self._cut:,} are not."

    def rules(self) -> Iterator[Rule]:
        """Which heads read from which shared key/value head: part of the model, not edges."""
        active = set(self._panel.circuit.nodes.tolist())
        for shared, head in self._wiring.feeds.tolist():
            start, end = self._places[shared], self._places[head]
            if {shared, head} <= active and start is not None and end is not None:
                yield Rule(start=start, end=end, colour=style.IDLE_INK, pen=0.5)

    def _size(self, node: int) -> float:
        """The height of a node, and its width, unless it is a box."""
        kind = KINDS[self._wiring.node_kind[node]]
        if kind in ("input", "logits"):
            return 1.7 * min(style.SMALL, 0.5 * self._grid.row)
        return self._grid.size * (0.6 if kind == "kv" else 1.0)

    def _name(self, node: int | str) -> str:
        name = node if isinstance(node, str) else self._wiring.node_names[node]
        return name if not self._number else f"{self._number + 1}/{name}"

    def _lay_out(self) -> list[Point | None]:
        """Where each node stands; None for one that is not drawn."""
        wiring, grid = self._wiring, self._grid
        shape = wiring.shape
        column = np.where(wiring.node_head >= 0, wiring.node_head, shape.heads).astype(float)
        row = wiring.node_layer.astype(float)
        shared = wiring.is_kind("kv")  # half a row before the heads, over the middle of those that they feed
        row[shared] -= 0.5
        group = shape.heads // shape.kv_heads
        column[shared] = wiring.node_head[shared] * group + (group - 1) / 2
        x = grid.left[self._number] + column * grid.column
        x[wiring.is_kind("input") | wiring.is_kind("logits")] = grid.middle[self._number]
        gone = wiring.is_kind("mlp") & (not self._look.mlps)
        return [
            None if absent else Point(float(at), grid.y(float(r)))
            for at, r, absent in zip(x, row, gone, strict=True)
        ]

    def _router(self) -> Router:
        """Around what is in use."""
        grid, panel = self._grid, self._number
        used = {self._name(node) for node in self._panel.circuit.nodes.tolist()}
        return Router(
            (mark for mark in self.marks() if mark.name in used),
            column=grid.column,
            left=grid.left[panel] - grid.column / 2,
            right=2 * grid.middle[panel] - grid.left[panel] + grid.column / 2,
        )

    def _curve(self, src: int, dst: int) -> Curve:
        """Leave in the direction of the layers, and arrive from where they come."""
        grid = self._grid
        start, end = self._places[src], self._places[dst]
        assert start is not None and end is not None  # noqa: S101
        on = grid.onwards
        leave, arrive = start.y + on * self._size(src) / 2, end.y - on * self._size(dst) / 2
        reach = max(0.45 * abs(end.y - start.y), 0.45 * grid.row)
        if start.y == end.y:  # from a head to its own layer's MLP: a bow below the row
            arrive = end.y + on * self._size(dst) / 2
            beyond = leave + on * reach
            return Point(start.x, leave), Point(start.x, beyond), Point(end.x, beyond), Point(end.x, arrive)
        # the nodes of a column lie on one line: pass those in between on the left
        bow = -0.5 * grid.column if start.x == end.x and abs(end.y - start.y) > 1.01 * grid.row else 0.0
        return (
            Point(start.x, leave),
            Point(start.x + bow, leave + on * reach),
            Point(end.x + bow, arrive - on * reach),
            Point(end.x, arrive),
        )


def _axis(grid: _Grid) -> tuple[list[Rule], list[Words]]:
    """The Layers axis: an arrow from the first layer to the last, and their numbers."""
    x, beside = 9.0, 28.0
    start, end = Point(x, grid.y(-0.4)), Point(x, grid.y(grid.layers - 0.4))
    numbers = [
        Words(name=f"layer {layer}", at=Point(beside, grid.y(layer)), text=str(layer), colour=style.SOFT_INK)
        for layer in range(grid.layers)
    ]
    above = Point(x + 8, start.y - grid.onwards * style.LABEL)
    title = Words(name="layers", at=above, text="Layers", size=style.LABEL)
    return [Rule(start=start, end=end, arrow=True)], [title, *numbers]


def _slot_key(grid: _Grid) -> tuple[list[Rule], list[Words]]:
    """Which style of line is which input, below everything."""
    y = min(grid.y(-1), grid.y(grid.layers)) - 16
    left = [(slot, grid.middle[0] - 60 + 48 * i) for i, slot in enumerate("qkv")]
    rules = [Rule(start=Point(x, y), end=Point(x + 22, y), pen=1.0, dash=_DASHES[slot]) for slot, x in left]
    return rules, [
        Words(name=f"key {slot}", at=Point(x + 30, y), text=slot, size=style.LABEL) for slot, x in left
    ]


def _slot(letter: str, item: str) -> str:
    if letter not in SLOTS:
        raise InputError(f"'{item}' ends in an input '{letter}' that there is not: it is q, k or v.")
    return letter
