"""Extraction on the command line: its progress bar, its messages, and being stopped."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import needing_torch, say

if TYPE_CHECKING:
    from ..extract import Outcome


def run_extract(settings: dict[str, Any], *, store: Path, **options: Any) -> None:
    """Extract, and say what happens."""
    with needing_torch("Extraction"):
        from ..extract import ExtractionError, Settings, extract
    bar = _Bar()
    try:
        with bar:
            outcome = extract(settings=Settings(**settings), store=store, listener=bar, **options)
    except KeyboardInterrupt:
        if bar.leads:
            say(f"\nStopped. What is finished stays in '{store}'; the same command goes on from there.")
        raise typer.Exit(1) from None
    except ExtractionError as error:
        say(f"wirescope: {error} What is finished is in '{store}'; the same command goes on from there.")
        raise typer.Exit(1) from error
    if bar.leads:
        _conclude(outcome, store)


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


class _Bar:
    """A progress bar on a terminal, lines where there is none; only the first of several processes shows it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.leads = os.environ.get("RANK", "0") == "0"
        shown = self.leads and sys.stderr is not None and sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(file=sys.stderr),
            disable=not shown,
        )
        self._task: Any = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, plan: str, what: str, total: int, done: int) -> None:
        """Say what is about to happen, and start a bar."""
        if not self.leads:
            return
        self.note(plan)
        if done:
            self.note(f"{done:,} of {total:,} {what} are done already.")
        self._task = self._progress.add_task(what, total=total, completed=done, rate="")
        self._progress.start()

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._task is not None:
            bar = self._progress.tasks[-1]
            self._progress.update(self._task, completed=min(bar.completed + count, bar.total or 0))
            speed = bar.finished_speed or bar.speed
            self._progress.update(self._task, rate=f"{speed:.1f}/s" if speed else "")

    def note(self, message: str) -> None:
        """Say something above the bar."""
        if self._progress.disable:
            say(message)
        else:
            self._progress.console.print(message, markup=False, highlight=False, soft_wrap=True)
