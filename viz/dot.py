"""Scenes as DOT, with all positions in it, and rendered by the bundled Graphviz or an installed one (engine ``nop2``).

Graphviz draws the edges of one node after those of another, and those of a node in the scene's order. Text is set in
the font that comes with matplotlib where that is installed: so it is in the PDF, and the same, also on a machine that
has no fonts.
"""

import atexit
import hashlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

import graphviz

from ..data import cache_folder, replacing
from ..errors import InputError, StoreError
from ..queries import printable
from . import style
from .curves import check_ending
from .scene import Line, Mark, Point, Rule, Scene, Words
from .tikz import to_tikz

ENDINGS = ("pdf", "svg", "png", "dot", "tex")
_DPI = "300"
_NOISE = ("Fontconfig warning:", "Warning: graph has")
"""About settings of the system that are not used, and that a layout would take long, which there is none of."""
_TALL = 1000
"""The height of a page that is only so wide, in inches: more than that of any drawing."""
_HEAD = 6.0
"""The length of an arrow's head, in points."""


def save_diagram(scene: Scene, file: Path | str) -> None:
    """Write a diagram by the file's ending: pdf, svg and png by Graphviz, dot as it is, tex as TikZ."""
    file = Path(file)
    ending = check_ending(file, ENDINGS)
    if ending == "tex":
        content = to_tikz(scene).encode()
    else:
        content = to_dot(scene).encode()
        if ending != "dot":
            content = render(content.decode(), ending)
    with replacing(file) as target:
        target.write(content)


def to_dot(scene: Scene) -> str:
    """The DOT source of a scene."""
    dot = graphviz.Digraph(
        "circuit",
        graph_attr={
            "bgcolor": "white",
            "margin": "0",  # of a PDF, on top of the pad
            "outputorder": "edgesfirst",
            "pad": f"{style.PAD / 72:g}",
            "splines": "true",
        }
        | _size(scene),
        node_attr={"fixedsize": "true", "label": "", "style": "filled", "fontname": ",".join(style.FONTS)},
        edge_attr={"dir": "none"},
    )
    if scene.rules:
        dot.graph_attr["_background"] = _background(scene.rules)
    for mark in scene.marks:
        dot.node(mark.name, pos=_at(mark.at), **_mark(mark))
    for words in scene.words:
        dot.node(words.name, pos=_at(words.at), **_words(words))
    for line in scene.lines:
        dot.edge(line.src, line.dst, **_line(line))
    return str(dot.source)


def _size(scene: Scene) -> dict[str, str]:
    """What makes Graphviz scale a drawing down that is wider than it may be; a page is of whole points, rounded up."""
    return {} if scene.width is None else {"size": f"{(math.floor(scene.width) - 1) / 72:.4f},{_TALL}"}


def render(dot: str, kind: str) -> bytes:
    """A diagram as svg, pdf or png."""
    try:
        import pygraphviz
    except ImportError:
        return _by_program(dot, kind)
    graph = pygraphviz.AGraph(string=dot)
    if kind == "png":  # for the others it would only scale the page
        graph.graph_attr["dpi"] = _DPI
    with _fonts(), _overheard():
        return bytes(graph.draw(format=kind, prog="nop2"))


def _by_program(dot: str, kind: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise InputError(
            "Rendering needs Graphviz: pip install 'wirescope[draw]', or install it so that 'dot' is found; or choose "
            "a file that ends in .dot or .tex, which needs none."
        )
    command = [program, "-Knop2", f"-T{kind}", *([f"-Gdpi={_DPI}"] if kind == "png" else [])]
    with _fonts():
        done = subprocess.run(command, input=dot.encode(), capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        raise StoreError(f"Graphviz ('{program}') failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@contextmanager
def _overheard() -> Iterator[None]:
    """Around Graphviz in this process, which writes to standard error itself: pass on what is not mere noise."""
    if sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            said.seek(0)
            for line in said.read().decode(errors="replace").splitlines():
                if not line.startswith(_NOISE):
                    sys.stderr.write(f"{line}\n")


@contextmanager
def _fonts() -> Iterator[None]:
    """Let Graphviz see the fonts that come with matplotlib, and no others."""
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        yield
        return
    before = os.environ.get("FONTCONFIG_FILE")
    fonts = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
    os.environ["FONTCONFIG_FILE"] = str(_font_config(fonts))
    try:
        yield
    finally:
        if before is None:
            del os.environ["FONTCONFIG_FILE"]
        else:
            os.environ["FONTCONFIG_FILE"] = before


@cache
def _font_config(fonts: Path) -> Path:
    """Settings for fontconfig, in a folder that it also keeps its cache in: one for all processes of a user.

    Where there is no such folder to write to, one in the system's temporary folder, which goes when the process does.
    """
    try:
        folder = (cache_folder() or Path(os.devnull)) / "fonts"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{hashlib.sha256(str(fonts).encode()).hexdigest()[:16]}.conf"
        _write_config(fonts, file)
    except (OSError, InputError):
        here = tempfile.TemporaryDirectory(prefix="wirescope-")
        atexit.register(here.cleanup)
        file = Path(here.name, "fonts.conf")
        _write_config(fonts, file)
    return file


def _write_config(fonts: Path, file: Path) -> None:
    """Let fontconfig find these fonts alone, unless a file says so already."""
    places = f"<dir>{escape(str(fonts))}</dir><cachedir>{escape(str(file.parent))}</cachedir>"
    content = f'<?xml version="1.0"?>\n<fontconfig>{places}</fontconfig>\n'.encode()
    if not file.is_file() or file.read_bytes() != content:
        with replacing(file) as target:
            target.write(content)


def _mark(mark: Mark) -> dict[str, str]:
    look = {
        "shape": mark.shape,
        "width": f"{mark.width / 72:.4f}",
        "height": f"{mark.height / 72:.4f}",
        "fillcolor": _colour(mark.fill, mark.fill_opacity),
        "color": mark.ink,
        "penwidth": f"{mark.pen:.2f}",
        "tooltip": _text(mark.about or mark.name),
    }
    return look | ({"label": _text(mark.text), "fontsize": f"{mark.text_size:.2f}"} if mark.text else {})


def _words(words: Words) -> dict[str, str]:
    return {
        "label": _text(words.text),
        "shape": "plaintext",
        "style": "",
        "fixedsize": "false",
        "width": "0",
        "height": "0",
        "margin": "0",
        "fontsize": f"{words.size:g}",
        "fontcolor": words.colour,
        "tooltip": " ",
    }


def _line(line: Line) -> dict[str, str]:
    look = {
        "pos": " ".join(map(_at, line.points)),
        "color": _colour(line.colour, line.opacity),
        "penwidth": f"{line.pen:.2f}",
        "tooltip": _text(line.about or " "),
    }
    return look | ({"style": line.dash} if line.dash != "solid" else {})


def _text(text: str) -> str:
    """Text as it is: neither Graphviz's escapes, nor entities of HTML, nor HTML where it is in angle brackets.

    That it is no HTML is known by its type alone, so this must not become a plain str.
    """
    literal: str = graphviz.escape(printable(text).replace("&", "&amp;"))
    return literal


def _background(rules: Sequence[Rule]) -> str:
    """Rules in Graphviz's drawing language: behind the graph, and no edges of it."""
    said = []
    for rule in rules:
        said += [f"{which} {len(rule.colour)} -{rule.colour}" for which in "cC"]
        said += [f"S {len(look)} -{look}" for look in (f"setlinewidth({rule.pen:g})", rule.dash)]
        said += [f"L 2 {_apart(rule.start, rule.end)}"]
        said += [f"S 5 -solid P 4 {_apart(*_head(rule))}"] if rule.arrow else []
    return " ".join(said)


def _head(rule: Rule) -> tuple[Point, ...]:
    """An arrow's head at the end of a rule: its tip, a barb, the notch, the other barb."""
    tip, length = rule.end, math.hypot(rule.end.x - rule.start.x, rule.end.y - rule.start.y) or 1.0
    along = Point((tip.x - rule.start.x) / length, (tip.y - rule.start.y) / length)

    def beside(back: float, aside: float) -> Point:
        return Point(tip.x - back * along.x - aside * along.y, tip.y - back * along.y + aside * along.x)

    return tip, beside(_HEAD, 0.5 * _HEAD), beside(0.7 * _HEAD, 0.0), beside(_HEAD, -0.5 * _HEAD)


def _apart(*points: Point) -> str:
    return " ".join(f"{point.x:.2f} {point.y:.2f}" for point in points)


def _colour(colour: str, opacity: float) -> str:
    return colour if opacity >= 1 else f"{colour}{round(255 * opacity):02X}"


def _at(point: Point) -> str:
    return f"{point.x:.2f},{point.y:.2f}"
