"""A drawing as plain data: marks, lines between them, and what explains them: words and rules. In points, y upwards.

Diagrams are laid out as scenes; `dot` and `tikz` write them down. So what is drawn where is decided once.
"""

from dataclasses import dataclass

from ..errors import InputError
from . import style


@dataclass(frozen=True)
class Point:
    """A place."""

    x: float
    y: float


Curve = tuple[Point, ...]
"""Cubic Bezier curves, end to end: the ends of each, with its two control points between."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A node: a `circle`, a `square`, or a `box` with words in it."""

    name: str
    at: Point
    shape: str
    width: float = 0.0
    height: float = 0.0
    fill: str = "white"
    fill_opacity: float = 1.0
    ink: str = style.INK
    pen: float = 0.7
    text: str = ""
    text_size: float = style.SMALL
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve from one mark to another."""

    src: str
    dst: str
    points: Curve
    colour: str
    opacity: float = 1.0
    pen: float = 0.7
    dash: str = "solid"
    """`solid`, `dashed` or `dotted`."""
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Words:
    """A line of text, its middle at a place."""

    name: str
    at: Point
    text: str
    size: float = style.SMALL
    colour: str = style.INK


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A straight line that is no part of a circuit, such as an axis."""

    start: Point
    end: Point
    colour: str = style.INK
    pen: float = 0.9
    dash: str = "solid"
    arrow: bool = False
    """At its end."""


@dataclass(frozen=True)
class Scene:
    """A drawing: rules, lines above them in their order, marks above these, and words."""

    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    words: tuple[Words, ...]
    rules: tuple[Rule, ...] = ()
    caption: str = ""
    """What a reader has to know."""
    width: float | None = None
    """Of the page at most, in points, its margins with it."""

    def _repr_svg_(self) -> str | None:
        """For notebooks: the drawing, if there is a Graphviz to render it."""
        from .dot import render, to_dot  # which imports this module

        try:
            return render(to_dot(self), "svg").decode()
        except InputError:
            return None
