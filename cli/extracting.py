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
    if outcome.fresh:
        say(
            f"Run '{outcome.run}' in '{store}'. Next: wirescope top --store {store} --run {outcome.run} --k 20"
        )
    else:
        say(f"Run '{outcome.run}' is in '{store}' already, from the same call; nothing was written.")
    if outcome.undefined:
        shown = ", ".join(map(str, outcome.undefined[:10])) + (", ..." if len(outcome.undefined) > 10 else "")
        say(
            f"wirescope: the metric is the same clean and corrupted for {len(outcome.undefined)} of "
            f"{outcome.prompts} prompts ({shown}): there is no effect to explain, their explained effect is undefined."
        )


class _Bar:
    """A progress bar on a terminal, lines where there is none; only the first of several processes shows it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.leads = os.environ.get("RANK", "0") == "0"
        shown = self.leads and sys.stderr is not None and sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("prompts"),
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

    def begin(self, plan: str, prompts: int, done: int) -> None:
        """Say what is about to happen, and start the bar."""
        if not self.leads:
            return
        say(plan)
        if done:
            say(f"{done:,} of {prompts:,} prompts are done already.")
        self._task = self._progress.add_task("prompts", total=prompts, completed=done, rate="")
        self._progress.start()

    def advance(self, prompts: int) -> None:
        """Move the bar."""
        if self._task is not None:
            bar = self._progress.tasks[0]
            self._progress.update(self._task, completed=min(bar.completed + prompts, bar.total or 0))
            speed = self._progress.tasks[0].finished_speed or self._progress.tasks[0].speed
            self._progress.update(self._task, rate=f"{speed:.1f}/s" if speed else "")

    def note(self, message: str) -> None:
        """Say something above the bar."""
        if self._progress.disable:
            say(message)
        else:
            self._progress.console.print(message, markup=False, highlight=False, soft_wrap=True)
