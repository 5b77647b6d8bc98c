"""What keeps a query from going on for ever: Ctrl-C ends it at once, and so does a limit of time."""

import threading
import time
from collections.abc import Callable
from math import isfinite
from typing import TypeVar

from ..errors import InputError, StoreError

Answer = TypeVar("Answer")

_LOOK = 0.1
"""Seconds from one look at a query to the next."""
_PATIENCE = 5.0
"""Seconds that a query has to end in once it was told to; a few functions of the engine do not listen."""


class LimitError(StoreError):
    """A query that took more time or memory than it may. Exit status 1."""


def stoppable(work: Callable[[], Answer], stop: Callable[[], None], timeout: float | None) -> Answer:
    """The outcome of work that `stop` ends, from another thread: at Ctrl-C, or when it has taken so many seconds.

    While an engine works, Python has no say in the thread that waits for it: the work is done in one of its own.
    """
    if timeout is None and threading.current_thread() is not threading.main_thread():
        return work()  # Ctrl-C is the main thread's
    answers: list[Answer] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def do() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=do).start()
    until = None if timeout is None else time.monotonic() + timeout
    try:
        # by looks: a signal that comes just before a wait begins does not end it
        while not done.wait(_LOOK if until is None else min(_LOOK, max(0.0, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                raise LimitError(
                    f"The query was given up after {timeout:g} seconds; ask for less, or allow more with --timeout."
                )
    except BaseException:  # whatever a signal means here
        _end(done, stop)
        raise
    if errors:
        raise errors[0]
    return answers[0]


def check_timeout(timeout: float | None) -> None:
    """Refuse what is no span of time."""
    if timeout is not None and not (isfinite(timeout) and 0 < timeout <= threading.TIMEOUT_MAX):
        raise InputError(f"The timeout is {timeout:g}; it must be a number of seconds, more than 0.")


def _end(done: threading.Event, stop: Callable[[], None]) -> None:
    """Stop the work, more than once: it may be between two queries."""
    until = time.monotonic() + _PATIENCE
    while not done.is_set() and time.monotonic() < until:
        stop()
        done.wait(0.05)
