"""What captions of all figures say: units, and how runs were made."""

from collections.abc import Sequence

from ..data import MEMBERSHIP, PROTOCOLS, Performance, Run, doubted
from ..graphs import Inputs
from ..queries import Curve, whole_units

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
    """What the units are and how they were scored, each thing once; where runs differ, of which run it is said."""
    facts: dict[str, dict[str, None]] = {}
    for run in runs:
        what = f" Edges run from component to component; there are {run.shape.n_edges:,}, {_INPUTS[run.shape.inputs]}."
        facts.setdefault(_scored(run) + (what if level == "edge" else ""), {})[run.run] = None
    said = list(facts) if len(facts) < 2 else [f"{', '.join(of)}: {text}" for text, of in facts.items()]
    return [*said, *dict.fromkeys(_protocol(run.protocol) for run in runs if run.protocol)]


def smaller_fact(name: str, curve: Curve, threshold: float) -> str:
    """Which ablation a curve is by, of those of its protocol, and why."""
    others = [ablation for ablation in curve.among if ablation != curve.ablation]
    if not others:
        return f"{name}: ablation {curve.ablation}, the only one that was measured."
    k, beaten = curve.among[curve.ablation], [curve.among[other] for other in others]
    both = [f"{a} ({whole_units(at):,})" for a, at in curve.among.items() if at is not None]
    if k is None:
        return f"{name}: ablation {curve.ablation}; {threshold:g} is reached by none of {' and '.join(curve.among)}."
    if all(at is None for at in beaten):
        return (
            f"{name}: ablation {curve.ablation}; by {' and '.join(others)} the curve does not stay at {threshold:g}, "
            "or there is no effect to explain."
        )
    where = f"where curves stay at {threshold:g}"
    return f"{name}: ablation {curve.ablation}, the smaller of {' and '.join(both)}, {where}."


def run_line(name: str, run: Run, performance: Performance, measured: int | None = None) -> str:
    """Which run a name stands for, on how many prompts it was measured, and how well its model does the task."""
    prompts = performance.prompts if measured is None else measured
    said = [f"{name}: run {run.run}, {prompts_of(prompts)}"]
    if run.only_correct:
        said[0] += f", of the {run.prompts:,} among {run.prompts_tried:,} that the model gets right"
    if performed := performance.said(run.metric):
        said += [
            performed if prompts == performance.prompts else f"of its {performance.prompts:,}, {performed}"
        ]
    return "; ".join(said) + "."


def doubt_lines(names: Sequence[str], doubts: Sequence[Sequence[str]]) -> list[str]:
    """Which of the models do not do the task."""
    return [f"{name} {doubted(why)}." for name, why in zip(names, doubts, strict=True) if why]


def prompts_of(count: int) -> str:
    """So many prompts.

    >>> prompts_of(1), prompts_of(30)
    ('1 prompt', '30 prompts')
    """
    return f"{count:,} prompt{'s' * (count != 1)}"


def _protocol(name: str) -> str:
    """What a protocol asks; one of another version is named only."""
    return f"Protocol {name}: {PROTOCOLS[name].asks}." if name in PROTOCOLS else f"Protocol {name}."


def _scored(run: Run) -> str:
    """How a run's units were scored; a circuit of a file may not say it."""
    if run.sign == MEMBERSHIP:
        return f"Edges are those of an imported circuit ({run.source}), which has no scores."
    method = f"{run.method} in {run.steps} steps" if run.steps else run.method
    stated = [f"by {method}"] * (method is not None) + [f"of the metric {run.metric}"] * (
        run.metric is not None
    )
    unstated = [what for what, known in (("method", method), ("metric", run.metric)) if known is None]
    if run.ablation:
        stated.append(f"with the ablation {run.ablation}")
    if run.source is not None:
        stated.append(f"of an imported circuit ({run.source})")
    if unstated:
        stated.append(f"{' and '.join(unstated)} not stated")
    return f"Scores are {', '.join(stated)}."
