"""Extraction on the command line: its messages, and being stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import needing_torch, say
from .progress import Bar

if TYPE_CHECKING:
    from ..extract import Outcome


def run_extract(settings: dict[str, Any], *, store: Path, **options: Any) -> None:
    """Extract, and say what happens."""
    with needing_torch("Extraction"):
        from ..extract import Settings, extract
    bar = Bar()
    with stopping(store, bar), bar:
        outcome = extract(settings=Settings(**settings), store=store, listener=bar, **options)
    if bar.leads:
        _conclude(outcome, store)


@contextmanager
def stopping(store: Path, bar: Bar) -> Iterator[None]:
    """Around an extraction and its bar: say what is left of it when it is stopped or fails."""
    from ..extract import ExtractionError

    try:
        yield
    except KeyboardInterrupt:
        if bar.leads:
            say(f"\nStopped. What is finished stays in '{store}'; the same command goes on from there.")
        raise typer.Exit(1) from None
    except ExtractionError as error:
        say(f"wirescope: {error} What is finished is in '{store}'; the same command goes on from there.")
        raise typer.Exit(1) from error


def _conclude(outcome: "Outcome", store: Path) -> None:
    done = [f"{outcome.fresh:,} prompts scored"] if outcome.fresh else []
    done += [f"{outcome.circuits:,} circuits measured"] if outcome.circuits else []
    if done:
        say(f"Run '{outcome.run}' in '{store}': {', '.join(done)}.")
        if outcome.circuits:
            _say_reach(outcome.run, store)
        say(f"Next: wirescope top --store {store} --run {outcome.run} --k 20")
    else:
        say(f"Run '{outcome.run}' is in '{store}' already, from the same call; nothing was written.")
    if outcome.undefined:
        shown = ", ".join(map(str, outcome.undefined[:10])) + (", ..." if len(outcome.undefined) > 10 else "")
        say(
            f"wirescope: the metric is the same clean and corrupted for {len(outcome.undefined)} of "
            f"{outcome.prompts} prompts ({shown}): there is no effect to explain, their explained effect is undefined."
        )


def _say_reach(run: str, store: Path) -> None:
    """Say how many units it takes, ranked in each way."""
    from ..queries import ask, open_store

    for curve in ask(open_store(store), "reach", run=run).to_pylist():
        k = "not reached" if curve["k"] is None else f"about {curve['k']:,.0f} of {curve['units']:,}"
        say(
            f"  {curve['threshold']} of the effect, {curve['level']}, {curve['ablation']}, ranked by "
            f"{curve['ranking']}: {k}"
        )
