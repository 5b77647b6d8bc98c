"""Sparse post-training on the command line: its messages, its report, and being stopped."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import encoded, needing_torch, put, say
from .progress import Bar
from .stopping import saying

if TYPE_CHECKING:
    from ..extract.sparsify import Report


def run_sparsify(recipe: dict[str, Any], *, out: Path, **options: Any) -> None:
    """Train, and say what came of it."""
    with needing_torch("Sparse post-training"):
        from ..extract import ExtractionError
        from ..extract.sparsify import sparsify
        from ..extract.training import Recipe
    bar = Bar()
    try:
        stopped = f"Stopped. What was done is in '{out}.partial'; the same command goes on from there."
        with bar, saying(stopped):
            report = sparsify(recipe=Recipe(**recipe), out=out, listener=bar, **options)
    except ExtractionError as error:
        say(f"wirescope: {error}")
        raise typer.Exit(1) from error
    if report is not None:
        _conclude(report, out)


def _conclude(report: "Report", out: Path) -> None:
    import pyarrow as pa

    rows = [
        {"measure": f"loss, {kind}", "dense": dense, "sparse": sparse, "at_most": dense + report.epsilon}
        for kind, (dense, sparse) in report.losses.items()
    ]
    for task, (dense, sparse) in report.tasks.items():
        for measure in ("accuracy", "top1", "prob_diff"):
            values = {"dense": getattr(dense, measure), "sparse": getattr(sparse, measure)}
            rows.append({"measure": f"{measure}, {task}", **values, "at_most": None})
    rows.append({"measure": "open gates", "dense": 1.0, "sparse": report.open_gates, "at_most": None})
    put(encoded(pa.Table.from_pylist(rows), "table"), None)
    say(
        f"'{out}': the sparsest model that met the constraint on held-out text, after {report.kept_step:,} of "
        f"{report.steps:,} steps: {100 * report.open_gates:.2f} % of the gates are open."
    )
    if report.kept_step < report.steps / 2:
        say("No later one is sparser and still within it: give more --steps, or less --slack.")
    say(f"Next: wirescope extract --model {out} --task ioi --store circuits")
