"""Progress on standard error: a bar on a terminal, lines where there is none."""

import os
import sys
from typing import Any

from .output import say, shown


class Bar:
    """A progress bar on a terminal, lines where there is none; only the first of several processes shows it.

    A brief one tells no plans, and goes away when it is done.
    """

    def __init__(self, *, brief: bool = False) -> None:
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
            TextColumn("{task.fields[status]}"),
            console=Console(file=sys.stderr),
            disable=not shown,
            transient=brief,
        )
        self._brief = brief
        self._task: Any = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, plan: str, what: str, total: int, done: int) -> None:
        """Say what is about to happen, and start a bar."""
        if not self.leads:
            return
        if not self._brief:
            self.note(plan)
            if done:
                self.note(f"{done:,} of {total:,} {what} are done already.")
        self._task = self._progress.add_task(what, total=total, completed=done, rate="", status="")
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
            self._progress.console.print(shown(message), markup=False, highlight=False, soft_wrap=True)

    def status(self, text: str) -> None:
        """Say how it stands, behind the bar."""
        if self._task is not None:
            self._progress.update(self._task, status=shown(text))
