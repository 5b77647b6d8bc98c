"""The explorer: an exploration as one HTML file that works from a mail attachment.

The page has its style, its script and its data in it and asks for nothing else: a content security policy admits this
one style and this one script by their hashes, and no network. Data is JSON that cannot end its element; edges are typed
arrays in base64, the strongest first, so that the circuit of size k begins at the first edge. What is drawn of them is
computed in the page: `explorer_circuit.js` prunes, `explorer_drawing.js` draws, `explorer_view.js` is one side of it,
`explorer.js` the whole.
"""

import hashlib
import json
import math
from base64 import b64encode
from dataclasses import asdict, dataclass
from html import escape
from importlib import resources
from itertools import takewhile
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..graphs import KINDS, RANKINGS, SLOTS
from ..queries import prompts_that_rank, ragged_note
from . import style

if TYPE_CHECKING:
    from ..data import Run
    from ..queries.exploring import Exploration, Panel, Prompt, RankedEdges, Side

_SCRIPTS = ("explorer_circuit.js", "explorer_drawing.js", "explorer_view.js", "explorer.js")
_THEMES = {"light": style.LIGHT, "dark": style.DARK}
_START_EFFECT, _START = 0.9, 200
"""The page begins where every side explains this much, or with so many edges."""


@dataclass(frozen=True)
class ExplorerPage:
    """The page in a notebook, in a frame of its own."""

    html: str

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="760" style="border: 0"></iframe>'


def explorer_page(exploration: "Exploration", *, crossing: str = "sustained") -> str:
    """The HTML of the page; the crossing says at which size it begins."""
    look = _variables() + _file("explorer.css")
    script = "".join(map(_file, _SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(look)}; "
        "base-uri 'none'; form-action 'none'"
    )
    data = {
        "themes": {name: asdict(theme) for name, theme in _THEMES.items()},
        "fonts": _font_family(),
        "opacity": style.OPACITY,
        "pen": style.PEN,
        "crowd": style.CROWD,
        "crowding": style.CROWDING,
        "faded": style.FADED,
        "kinds": KINDS,
        "slots": SLOTS,
        "panels": [_panel(panel, crossing) for panel in exploration.panels],
    }
    return Template(_file("explorer.html")).substitute(
        policy=policy, style=look, script=script, data=_embedded(data)
    )


def _panel(panel: "Panel", crossing: str) -> dict[str, Any]:
    labels = [side.label for side in panel.sides]
    colours = style.colours(style.roles_of(labels, [side.run.base_model is not None for side in panel.sides]))
    return {
        "name": panel.name,
        "tasks": [_title(by) for by in panel.rankings],
        "prompts": [prompt.text for prompt in panel.prompts],
        "start": _start(panel, crossing),
        "sides": [_side(side, colours[side.label], panel) for side in panel.sides],
    }


def _side(side: "Side", colour: str, panel: "Panel") -> dict[str, Any]:
    wiring = side.run.wiring
    return {
        "label": side.label,
        "run": side.run.run,
        "colours": {name: style.lifted(colour, theme.lift) for name, theme in _THEMES.items()},
        "total": wiring.n_edges,
        "layers": wiring.shape.layers,
        "heads": wiring.shape.heads,
        "kvHeads": wiring.shape.kv_heads,
        "names": wiring.node_names,
        "kind": wiring.node_kind.tolist(),
        "layer": wiring.node_layer.tolist(),
        "head": wiring.node_head.tolist(),
        "feeds": wiring.feeds.tolist(),
        "rankings": [
            *(
                _ranking(side, task, _about_task(side, by) + _sign(side), None)
                for task, by in zip(side.tasks, panel.rankings, strict=True)
            ),
            *(
                _ranking(
                    side,
                    own,
                    f"{_conditions(side.run)}Edges are ranked by their scores for this prompt.{_sign(side)}",
                    prompt,
                )
                for own, prompt in zip(side.prompts, panel.prompts, strict=True)
            ),
        ],
    }


def _ranking(side: "Side", ranked: "RankedEdges", about: str, prompt: "Prompt | None") -> dict[str, Any]:
    wiring, edges = side.run.wiring, ranked.edges
    points = [
        (row["requested"], row["explained"])
        for row in ranked.curve.to_pylist()
        if row["requested"] > 0 and row["explained"] is not None and math.isfinite(row["explained"])
    ]
    return {
        "about": about + (f" Ragged: {note}." if (note := ragged_note(_START_EFFECT, points)) else ""),
        "curve": points,
        "unmeasured": None if points else _why_not_measured(side, ranked, prompt),
        "count": len(edges),
        "src": _packed(wiring.edge_src[edges], "<u2"),
        "dst": _packed(wiring.edge_dst[edges], "<u2"),
        "slot": _packed(wiring.edge_letter[edges], "<u1"),
        "score": _packed(ranked.scores, "<f4"),
    }


def _title(by: str) -> str:
    """What a ranking of the task is called in the list of what can be shown."""
    return "all prompts" if by == "task" else f"all prompts, by {RANKINGS[by].about}"


def _about_task(side: "Side", by: str) -> str:
    run = side.run
    if run.source is not None:
        return "Edges are ranked by their published scores."
    others = len(run.held_out)
    return (
        f"{_conditions(run)}Edges are ranked by {RANKINGS[by].about} over {prompts_that_rank(run)}"
        + (f", circuits measured on {others:,} others." if others else ".")
        + (
            f" What circuits explain is by halves of these, on the other halves (--cross-fit {run.cross_fit})."
            if run.cross_fit
            else ""
        )
    )


def _conditions(run: "Run") -> str:
    """By which ablation, and under which protocol."""
    if run.ablation is None:
        return ""
    return f"Ablation {run.ablation}{f', protocol {run.protocol}' if run.protocol else ''}. "


def _sign(side: "Side") -> str:
    """Which scores carry the behaviour: of a divergence, those that make it grow."""
    if side.run.metric is None:
        return ""
    return (
        f" One with a {'positive' if side.run.helpful_sign > 0 else 'negative'} score carries the behaviour."
    )


def _why_not_measured(side: "Side", ranked: "RankedEdges", prompt: "Prompt | None") -> str:
    if ranked.curve.num_rows:
        what = "the task" if prompt is None else "this prompt"
        return f"No effect to explain, on {what} the model does as well with every edge ablated."
    if side.run.source is not None:
        return "What circuits explain is not measured: an imported circuit comes without its model."
    if prompt is not None and side.task.curve.num_rows:
        return "What circuits explain is measured only for prompts that the task is not ranked by, and this is another."
    return "What circuits explain is not measured; 'wirescope extract' with --curves adds it."


def _start(panel: "Panel", crossing: str) -> int:
    """The size to begin with: the smallest measured one from which all sides explain enough, or first do."""

    def is_enough(row: dict[str, Any]) -> bool:
        return bool(row["explained"] >= _START_EFFECT)

    sizes = []
    for side in panel.sides:
        known = [row for row in side.task.curve.to_pylist() if row["explained"] is not None]
        enough = list(takewhile(is_enough, reversed(known)))[::-1]
        if crossing == "first":
            enough = list(filter(is_enough, known))
        if not enough:
            return _START
        sizes.append(int(enough[0]["requested"]))
    return max(sizes)


def _packed(values: ArrayLike, form: str) -> str:
    return b64encode(np.asarray(values).astype(form).tobytes()).decode()


def _embedded(data: dict[str, Any]) -> str:
    """JSON that is safe inside a script element: ASCII, and without the characters that HTML reads."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _variables() -> str:
    """The theme as CSS variables: by what the reader's system prefers, unless the page says otherwise."""

    def block(theme: style.Theme) -> str:
        colours = {name: value for name, value in asdict(theme).items() if isinstance(value, str)}
        return "".join(f"--{name.replace('_', '-')}: {value}; " for name, value in colours.items())

    return (
        f":root {{ --fonts: {_font_family()}; color-scheme: light; {block(style.LIGHT)}}}\n"
        "@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) "
        f"{{ color-scheme: dark; {block(style.DARK)}}} }}\n"
        f":root[data-theme=dark] {{ color-scheme: dark; {block(style.DARK)}}}\n"
    )


def _font_family() -> str:
    return ", ".join(f"'{font}'" if " " in font else font for font in style.FONTS)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
