"""Extraction on the command line: its messages, and being stopped."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import typer

from ..errors import ExtractionError
from .output import emit, needing_torch, say
from .progress import Bar
from .stopping import saying

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..extract import Outcome, Planned, Settings

_LOOK = {"edge": "", "head": " --level head", "attention": " --level attention --prompt 0"}
"""How to look at the units of a level."""


def run_extract(protocol: str | None, settings: dict[str, Any], *, store: Path, **options: Any) -> None:
    """Extract, and say what happens."""
    with needing_torch("Extraction"):
        from ..extract import extract_each, settings_under
    bar = Bar()
    with stopping(store), bar:
        each = settings_under(protocol, **settings)
        outcomes = extract_each(settings=each, store=store, listener=bar, **options)
    if bar.leads:
        for outcome in outcomes:
            _conclude(outcome, store)


def run_plan(
    protocol: str | None,
    settings: dict[str, Any],
    *,
    memory: str | None,
    tflops: float | None,
    **options: Any,
) -> None:
    """Print the memory that an extraction would need, and say what it would do; one of several processes does."""
    if os.environ.get("RANK", "0") != "0":
        return
    with needing_torch("Extraction"):
        from ..data import parse_bytes
        from ..extract import TERMS, left_out, plan_each, settings_under
    each = settings_under(protocol, **settings)
    planned = plan_each(settings=each, memory=None if memory is None else parse_bytes(memory), **options)
    for message in left_out(each):
        say(message)
    made, (shortest, longest) = planned.plan, planned.lengths
    tokens = f"{shortest} to {longest}" if shortest < longest else str(longest)
    say(
        f"{planned.model} ({planned.model_type}): {made.shape}, {made.edges:,} edges, {made.dtype}; {made.prompts:,} "
        f"prompts of {tokens} tokens, {made.batch_size} at a time; about {_size(made.disk)} on disk."
    )
    flop = made.passes * made.flop
    time = "" if tflops is None else f", {flop / tflops / 1e12:,.0f} s at {tflops:g} TFLOP/s"
    say(
        f"{_together(each)} as much work as {made.passes:,.0f} forward passes over all prompts, of "
        f"{made.flop / 1e12:.3g} TFLOP each{time}."
    )
    names = [phase.name for phase in made.phases]
    rows = [("weights", [sum(made.weights)] * len(names))]
    rows += [(term, [phase.terms.get(term, 0) for phase in made.phases]) for term in TERMS]
    rows += [("all", [sum(made.weights) + phase.peak for phase in made.phases])]
    if len(made.blocks) > 1:
        rows += [
            (f"on device {i}, {blocks} blocks", [made.on(i, phase) for phase in made.phases])
            for i, blocks in enumerate(made.blocks)
        ]
    table = [
        {"memory": what} | dict(zip(names, map(_size, sizes), strict=True))
        for what, sizes in rows
        if any(sizes)
    ]
    emit(pa.Table.from_pylist(table), "table", None, wide=True)
    if planned.memory is not None:
        say(_room(planned))


def _together(settings: "Mapping[str, Settings]") -> str:
    """How many runs the work is of, as the beginning of a sentence about it."""
    if len(settings) == 1:
        return "About"
    return f"{len(settings)} runs ({', '.join(own.ablation for own in settings.values())}), together about"


def _room(planned: "Planned") -> str:
    """Whether it fits."""
    made, room = planned.plan, _size(planned.memory or 0)
    each = f"{len(made.blocks)} devices with {room} each" if len(made.blocks) > 1 else f"{room}"
    if planned.largest is None:
        return f"It does not fit {each}, not even one at a time."
    if planned.largest < made.batch_size:
        return f"It does not fit {each}; with --batch-size {planned.largest} it does."
    return f"It fits {each}."


def _size(size: float) -> str:
    """Bytes as one reads them.

    >>> _size(13_775_000_000), _size(2_500_000), _size(0)
    ('13.8 GB', '2.5 MB', '0.0 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


@contextmanager
def stopping(store: Path) -> Iterator[None]:
    """Around an extraction: say what is left of it when it is stopped or fails."""
    try:
        with saying(
            lambda: f"Stopped. What is finished stays in '{store}'; the same command goes on from there."
        ):
            yield
    except ExtractionError as error:
        say(f"wirescope: {error} What is finished is in '{store}'; the same command goes on from there.")
        raise typer.Exit(1) from error


def _conclude(outcome: "Outcome", store: Path) -> None:
    done = [f"{outcome.fresh:,} prompts scored"] if outcome.fresh else []
    done += [f"{outcome.circuits:,} circuits measured"] if outcome.circuits else []
    if done:
        say(f"Run '{outcome.run}' in '{store}': {', '.join(done)}.")
        if outcome.circuits:
            _say_reach(outcome, store)
        say(f"Next: wirescope top --store {store} --run {outcome.run}{_LOOK[outcome.levels[0]]} --k 20")
    else:
        say(f"Run '{outcome.run}' is in '{store}' already, from the same call; nothing was written.")
    if outcome.undefined:
        shown = ", ".join(map(str, outcome.undefined[:10])) + (", ..." if len(outcome.undefined) > 10 else "")
        say(
            f"wirescope: the metric is the same clean and corrupted for {len(outcome.undefined)} of "
            f"{outcome.prompts} prompts ({shown}): there is no effect to explain, their explained effect is undefined."
        )


def _say_reach(outcome: "Outcome", store: Path) -> None:
    """Say how many units it takes, ranked in each way; not where the model does not do the task."""
    from ..data import read_catalog
    from ..queries import ask, curve_doubts, falls_again, open_store, whole_units

    catalog = read_catalog(store)
    connection, run = open_store(catalog), catalog.run(outcome.run)
    doubts = curve_doubts(connection, run, outcome.performance)
    for (level, ablation), why in doubts.items():
        if why:
            say(f"  no size is named for {level}, {ablation}: {', and '.join(why)}")
    for curve in ask(connection, "reach", run=outcome.run).to_pylist():
        if doubts[curve["level"], curve["ablation"]]:
            continue
        k = (
            "not reached"
            if curve["k"] is None
            else f"about {whole_units(curve['k']):,} of {curve['units']:,}"
        )
        if curve["ragged"]:
            k += f" ({falls_again(curve['threshold'], curve['first_k'], curve['k'])})"
        say(
            f"  {curve['threshold']} of the effect, {curve['level']}, {curve['ablation']}, ranked by "
            f"{curve['ranking']}: {k}"
        )
