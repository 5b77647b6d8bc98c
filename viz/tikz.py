r"""Scenes as TikZ: a picture that compiles in an article and takes its letters from it.

It needs ``\usepackage{tikz}`` and ``\input{FILE}``. One point of the scene is one big point (bp) of TeX.
"""

import re

from ..queries import printable
from .scene import Line, Mark, Rule, Scene, Words

_DASHES = {"dashed": "dash pattern=on 2.4bp off 1.6bp", "dotted": "dash pattern=on 0.8bp off 1.2bp"}
_KNOWN = "–—‘’“”…"  # noqa: RUF001
_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",  # noqa: RUF001
    "⏎": r"$\hookleftarrow$",
    "␣": r"\textvisiblespace{}",
    "«": r"$\ll$",
    "»": r"$\gg$",
}
_UNKNOWN = "ÐÞðþ"
_LIGATURE = re.compile("(?<=[-`'!?])(?=[-`'])")
"""Between letters that TeX sets as one: a dash, a quotation mark."""


def to_tikz(scene: Scene) -> str:
    """The picture, to be included in an article."""
    colours = (
        {line.colour for line in scene.lines}
        | {rule.colour for rule in scene.rules}
        | {words.colour for words in scene.words}
    )
    colours |= {colour for mark in scene.marks for colour in (mark.ink, mark.fill) if colour != "white"}
    parts = [
        r"% needs \usepackage{tikz}",
        *(rf"\definecolor{{{_colour(c)}}}{{HTML}}{{{c.removeprefix('#')}}}" for c in sorted(colours)),
        r"\begin{tikzpicture}[x=1bp, y=1bp, every node/.style={inner sep=0, outer sep=0, font=\sffamily}]",
        *map(_rule, scene.rules),
        *map(_line, scene.lines),
        *map(_mark, scene.marks),
        *map(_words, scene.words),
        r"\end{tikzpicture}%",
    ]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Text as TeX.

    >>> escape("a_b 50%")
    'a\\_b 50\\%'

    What pdfLaTeX has no letter for without further packages becomes a question mark.
    """
    known = (
        letter
        if (letter <= "ÿ" and letter not in _UNKNOWN) or letter in _SPECIAL or letter in _KNOWN
        else "?"
        for letter in printable(text)
    )
    apart = _LIGATURE.sub("\0", "".join(known))
    return "".join("{}" if letter == "\0" else _SPECIAL.get(letter, letter) for letter in apart)


def _line(line: Line) -> str:
    start, *points = (f"({p.x:.2f},{p.y:.2f})" for p in line.points)
    pieces = zip(*(points[i::3] for i in range(3)), strict=True)
    path = start + "".join(f" .. controls {one} and {two} .. {end}" for one, two, end in pieces)
    look = [f"draw={_colour(line.colour)}", f"line width={line.pen:.2f}bp"]
    look += [f"draw opacity={line.opacity:.3f}"] if line.opacity < 1 else []
    look += [_DASHES[line.dash]] if line.dash != "solid" else []
    return rf"\draw[{', '.join(look)}] {path};"


def _rule(rule: Rule) -> str:
    look = [f"draw={_colour(rule.colour)}", f"line width={rule.pen:.2f}bp"]
    look += [_DASHES[rule.dash]] if rule.dash != "solid" else []
    look += ["->"] if rule.arrow else []
    ends = " -- ".join(f"({p.x:.2f},{p.y:.2f})" for p in (rule.start, rule.end))
    return rf"\draw[{', '.join(look)}] {ends};"


def _mark(mark: Mark) -> str:
    look = [f"draw={_colour(mark.ink)}", f"fill={_colour(mark.fill)}", f"line width={mark.pen:.2f}bp"]
    look += [f"fill opacity={mark.fill_opacity:.3f}"] if mark.fill_opacity < 1 else []
    x, y, w, h = mark.at.x, mark.at.y, mark.width / 2, mark.height / 2
    if mark.shape == "circle":
        path = f"({x:.2f},{y:.2f}) circle[radius={w:.2f}]"
    else:
        path = f"({x - w:.2f},{y - h:.2f}) rectangle ({x + w:.2f},{y + h:.2f})"
    drawn = rf"\path[{', '.join(look)}] {path};"
    return drawn + (_text(x, y, mark.text, mark.text_size, "black") if mark.text else "")


def _words(words: Words) -> str:
    return _text(words.at.x, words.at.y, words.text, words.size, _colour(words.colour))


def _text(x: float, y: float, text: str, size: float, colour: str) -> str:
    font = rf"\fontsize{{{size:.1f}}}{{{size:.1f}}}\selectfont"
    base = y - 0.36 * size  # by the base line, so that neighbours stand on one
    return rf"\node[text={colour}, anchor=base] at ({x:.2f},{base:.2f}) {{{font} {escape(text)}}};"


def _colour(colour: str) -> str:
    return f"ws{colour.removeprefix('#')}" if colour.startswith("#") else colour
