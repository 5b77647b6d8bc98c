"""How figures look: colours, sizes, fonts and lines of curves, diagrams and the explorer.

Colours are those of Okabe and Ito, which readers who do not see all colours can tell apart. Those of a pair are about
equally dark, so where lines cross a second sign tells them apart as well, for a print in grey: markers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INK, SOFT_INK, GRID = "#222222", "#757575", "#E4E4E4"
"""Of text and outlines, of what is less important, and of lines behind the data."""
IDLE, IDLE_INK = "#EDEDED", "#C8C8C8"
"""A node that no circuit uses, and its outline."""
RANDOM = "#9A9A9A"
"""The ranking that is none."""

PAIRS = (("#0072B2", "#D55E00"), ("#009E73", "#CC79A7"), ("#56B4E9", "#E69F00"))
"""A dense model and its sparse twin; then those of the second pair in a figure, and of the third."""

TITLE, LABEL, SMALL = 9.0, 8.0, 6.0
"""Sizes of text, in points."""
FONTS = ("DejaVu Sans", "Helvetica", "Arial", "sans-serif")
"""The first comes with matplotlib, and so is there on a machine that has no fonts."""

PAD = 4.32
"""Around a wiring diagram, in points."""
FIGURE_WIDTH = 6.75
"""Of a row of panels, in inches: the text of a two-column paper."""
COLUMN_WIDTH, PAGE_WIDTH = 392.0, 468.0
"""Of a wiring diagram, in points: the text of a one-column conference paper, and of a page."""


@dataclass(frozen=True)
class Role:
    """What a thing in a figure is called, whose it is, and whether it is the sparse one of a pair."""

    label: str
    family: str
    sparse: bool


def roles_of(labels: Sequence[str], gated: Sequence[bool]) -> list[Role]:
    """The roles of a panel: of two, the first is the sparse one; else those are whose models have gates.

    >>> roles_of(["Sparse GPT-2", "GPT-2"], [True, False])[1]
    Role(label='GPT-2', family='GPT-2', sparse=False)
    """
    sparse = (True, False) if len(labels) == 2 else gated
    return [Role(label, labels[-1], is_sparse) for label, is_sparse in zip(labels, sparse, strict=True)]


def colours(roles: Iterable[Role]) -> dict[str, str]:
    """A colour for every label: that of its place in its pair, or the next that is free.

    >>> gpt2 = [Role("Sparse GPT-2", "GPT-2", True), Role("GPT-2", "GPT-2", False)]
    >>> colours([*gpt2, *gpt2, Role("OLMo-7B", "OLMo-7B", False)])
    {'Sparse GPT-2': '#D55E00', 'GPT-2': '#0072B2', 'OLMo-7B': '#009E73'}
    """
    found: dict[str, str] = {}
    families: list[str] = []
    every = [colour for pair in PAIRS for colour in pair]
    for role in roles:
        if role.family not in families:
            families.append(role.family)
        wanted = PAIRS[families.index(role.family) % len(PAIRS)][role.sparse]
        if role.label not in found:
            free = [colour for colour in (wanted, *every) if colour not in found.values()]
            found[role.label] = (free or every)[0]
    return found


def weight(strength: float, count: int) -> float:
    """How visible an edge is, from 0 to 1: by its share of the strongest score, and by how many edges there are.

    >>> weight(1.0, 100), round(weight(0.25, 1000), 3)
    (1.0, 0.268)
    """
    crowding = min(1.0, (CROWD / max(count, 1)) ** CROWDING)
    return float(strength**0.5 * crowding)


CROWD, CROWDING = 250, 0.45
"""From so many edges on they are drawn fainter, by this power of their number."""
OPACITY, PEN = (0.12, 0.92), (0.25, 2.45)
"""Of the faintest edge and of the strongest; pens in points."""


def between(ends: tuple[float, float], share: float) -> float:
    """The value at a share of the way from one end to the other."""
    return ends[0] + (ends[1] - ends[0]) * share


@dataclass(frozen=True)
class Theme:
    """The colours of a page by day or by night, but those of the models."""

    paper: str
    ink: str
    soft_ink: str
    grid: str
    idle: str
    idle_ink: str
    lift: float
    """How far the colours of models are mixed with white, to be seen on this paper."""


LIGHT = Theme("#FFFFFF", INK, SOFT_INK, GRID, IDLE, IDLE_INK, lift=0.0)
DARK = Theme("#15171A", "#E8E8E8", "#A0A4A8", "#33373B", "#24272B", "#474C52", lift=0.25)
FADED = 0.14
"""How much is left of what is not looked at, where something is."""


def lifted(colour: str, share: float) -> str:
    """A colour mixed with white.

    >>> lifted("#0072B2", 0.25)
    '#4095C5'
    """
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(between((part, 255), share)):02X}" for part in parts)
