"""What captions of all figures say: units, and how runs were made."""

from collections.abc import Sequence

from ..data import Run
from ..graphs import Inputs

_UNITS = {"edge": "edges", "head": "heads", "attention": "attention edges"}
_INPUTS = {
    Inputs.SPLIT: "q, k and v of each head apart",
    Inputs.MERGED: "one input a head",
    Inputs.GROUPED: "q of each head, k and v of each key/value head",
}


def unit_name(level: str) -> str:
    """What the units of a level are called, many of them."""
    return _UNITS[level]


def run_facts(runs: Sequence[Run], level: str) -> list[str]:
    """What the units are and how they were scored, each thing once."""
    facts: dict[str, None] = {}
    for run in runs:
        how = (
            f"{run.method} in {run.steps} steps" if run.steps else run.method or "a method that is not known"
        )
        what = f" Edges run from component to component; there are {run.shape.n_edges:,}, {_INPUTS[run.shape.inputs]}."
        scored = f"Scores are by {how}, of the metric {run.metric or 'that is not known'}."
        facts[scored + (what if level == "edge" else "")] = None
    return list(facts)


def sentence(text: str) -> str:
    """With a capital letter, unless it is a name that has none.

    >>> sentence("sparse GPT-2"), sentence("")
    ('Sparse GPT-2', '')
    """
    return text[:1].upper() + text[1:]
