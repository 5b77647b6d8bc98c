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


def run_facts(runs: Sequence[Run]) -> list[str]:
    """How the scores were made and what they are of, each thing once."""
    facts = {
        (
            f"Scores by {run.method or 'an unknown method'}"
            + (f" in {run.steps} steps" if run.steps else "")
            + f" of the metric {run.metric or 'of the file'}; {run.shape.n_edges:,} residual edges, "
            + f"{_INPUTS[run.shape.inputs]}."
        ): None
        for run in runs
    }
    return list(facts)


def sentence(text: str) -> str:
    """With a capital letter, unless it is a name that has none.

    >>> sentence("sparse GPT-2"), sentence("")
    ('Sparse GPT-2', '')
    """
    return text[:1].upper() + text[1:]
