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
        scored = f"Scores are by {how}, of the metric {run.metric or 'that is not known'}" + (
            f", with the ablation {run.ablation}." if run.ablation else "."
        )
        facts[scored + (what if level == "edge" else "")] = None
    return list(facts)


def number(k: float) -> str:
    """How many units, as a reader says it.

    >>> number(4.8341), number(107.2), number(3531.6)
    ('4.83', '107', '3,532')
    """
    return f"{k:,.0f}" if k >= 100 else f"{k:.3g}"


def prompts_of(count: int) -> str:
    """So many prompts.

    >>> prompts_of(1), prompts_of(30)
    ('1 prompt', '30 prompts')
    """
    return f"{count:,} prompt{'s' * (count != 1)}"
