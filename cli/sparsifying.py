"""Sparse post-training on the command line: its messages, its report, and being stopped."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import ExtractionError, InputError
from .output import encoded, needing_torch, put, say
from .progress import Bar
from .stopping import saying

if TYPE_CHECKING:
    from ..extract.sparsify import Report

PICTURE = "sparsify.svg"
_LEARNT = 0.1
"""Nats by which a loss has to fall to be called learnt."""


def run_sparsify(recipe: dict[str, Any], *, out: Path, **options: Any) -> None:
    """Train, and say what came of it."""
    with needing_torch("Sparse post-training"):
        from ..extract.recipe import Recipe
        from ..extract.sparsify import sparsify
        from ..extract.training import LAST, PROGRESS
    bar, partial = Bar(), out.with_name(f"{out.name}.partial")
    try:
        with bar, saying(lambda: _stopped(partial / LAST)):
            report = sparsify(recipe=Recipe(**recipe), out=out, listener=bar, **options)
    except ExtractionError as error:
        say(f"wirescope: {error}")
        progress = partial / PROGRESS
        if bar.leads and progress.is_file():
            _draw(json.loads(progress.read_text()), progress.parent)
        raise typer.Exit(1) from error
    if report is not None:
        _conclude(report, out)
        _draw(asdict(report), out)
        say(f"Next: wirescope extract --model {out} --task ioi --store circuits")


def _stopped(last: Path) -> str:
    """What is said when a training is stopped: it is kept as it was at the last look at held-out text."""
    if last.is_file():
        return f"Stopped. The same command goes on from the last look at held-out text, which '{last.parent}' keeps."
    return "Stopped. There was no look at held-out text yet: the same command begins anew."


def epsilons(given: Sequence[str]) -> dict[str, Any]:
    """What --epsilon says: a bound of all kinds of text, bounds of single ones, or both.

    >>> epsilons(["0.02", "ioi=0.05"])
    {'epsilons': {'ioi': 0.05}, 'epsilon': 0.02}
    """
    found: dict[str, Any] = {"epsilons": {}}
    for text in given:
        kind, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError as error:
            raise InputError(f"--epsilon {text} is no number of nats: write 0.01, or KIND=0.01.") from error
        if kind:
            found["epsilons"][kind] = value
        else:
            found["epsilon"] = value
    return found


def _conclude(report: "Report", out: Path) -> None:
    import pyarrow as pa

    rows = []
    for kind, (dense, sparse) in report.losses.items():
        bounded, epsilon = report.bounds[kind]
        at_most = dense + epsilon if bounded == "loss" else None
        rows.append({"measure": f"loss, {kind}", "dense": dense, "sparse": sparse, "at_most": at_most})
        if bounded == "divergence":
            diverged = {"dense": 0.0, "sparse": report.divergences[kind], "at_most": epsilon}
            rows.append({"measure": f"divergence, {kind}", **diverged})
    for task, judged in report.tasks.items():
        for measure in ("accuracy", "top1", "prob_diff"):
            values = {
                name: getattr(of, measure) for name, of in zip(("dense", "sparse"), judged, strict=True)
            }
            rows.append({"measure": f"{measure}, {task}", **values, "at_most": None})
    rows.append({"measure": "open gates", "dense": 1.0, "sparse": report.open_gates, "at_most": None})
    put(encoded(pa.Table.from_pylist(rows), "table"), None)
    if report.control:
        say(
            f"'{out}': the dense model after {report.steps:,} more steps without gates, to compare a twin with."
        )
        return
    say(
        f"'{out}': the sparsest model that met the constraint on held-out text, after {report.kept_step:,} of "
        f"{report.steps:,} steps: {100 * report.open_gates:.2f} % of the gates are open."
    )
    if report.kept_step < report.steps / 2:
        say("No later one is sparser and still within it: give more --steps, or less --slack.")
    for kind, (dense, sparse) in report.losses.items():
        if report.bounds[kind][0] == "loss" and sparse < dense - _LEARNT:
            say(
                f"wirescope: the loss on {kind} fell by {dense - sparse:.2f} nats: the model has learnt this text, and "
                f"the bound binds nothing; --divergence {kind} bounds the divergence from the dense model instead."
            )


def _draw(record: Mapping[str, Any], folder: Path) -> None:
    """Draw the course of a training into a folder, where there is what draws."""
    if find_spec("matplotlib") is None:
        return
    from ..viz import draw_training, save_curves

    save_curves(draw_training(record), folder / PICTURE)
    say(f"Its course is drawn in '{folder / PICTURE}'.")
