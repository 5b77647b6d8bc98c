"""Being stopped: SIGINT (Ctrl-C) and SIGTERM end a command in the same way, at any moment and however often they come.

One sentence, nothing half-written, exit status 130 or 143. It is not left to an exception, which whatever runs may
catch, lose or be in the middle of cleaning up from: a signal ends the process then and there. That is safe because
files get their names when they are whole; what is under way is removed by the functions that Python calls at exit.

A signal that comes while the main thread is in a long call of another language waits for that call to return. So a
second thread hears of it as well, and ends the process in its place.

Nothing heavy is imported here: this is there before anything else is.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 0.2
"""Seconds that the main thread has to hear of a signal itself."""
_AT_MOST = 3.0
"""Seconds that cleaning up may take."""

_words: list[Callable[[], str]] = [lambda: "Stopped. No file is half-written."]
_once = threading.Lock()
_stopper: list[int] = []


def stop_on_signals() -> None:
    """Have signals end this process, from now on."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in SIGNALS:
        if (
            signal.getsignal(number) is not signal.SIG_IGN
        ):  # as nohup has it, or a shell for what runs behind it
            signal.signal(number, _heard)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(reading,), daemon=True).start()


def ignore_signals() -> None:
    """Have signals do nothing, from now on: all is done but for leaving."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def saying(words: Callable[[], str]) -> Iterator[None]:
    """Around some work: what is said when it is stopped, as it is then."""
    _words.append(words)
    try:
        yield
    finally:
        _words.pop()


def farewell() -> str:
    """What is said when the work under way is stopped; nothing by all but the first of several processes."""
    return _words[-1]() if os.environ.get("RANK", "0") == "0" else ""


def _heard(number: int, _: FrameType | None) -> None:
    _stop(number)


def _listen(reading: int) -> None:
    while number := os.read(reading, 1):
        if number[0] in SIGNALS and signal.getsignal(number[0]) is not signal.SIG_IGN:
            time.sleep(_PATIENCE)
            _stop(number[0])


def _stop(number: int) -> None:
    """End the process, once; another thread that is to do the same waits for that, and the same one goes on with it."""
    if not _once.acquire(blocking=False):
        while threading.get_ident() not in _stopper:
            time.sleep(1)
        return
    _stopper.append(threading.get_ident())
    status = 128 + number
    late = threading.Timer(_AT_MOST, os._exit, (status,))
    late.daemon = True
    late.start()
    with suppress(Exception):
        shown = sys.stderr is not None and sys.stderr.isatty()
        if words := farewell():
            # past Python's buffer, which may be in use; on a terminal, ^C is there already and a bar hid the cursor
            os.write(
                2, ("\x1b[?25h\n" if shown else "").encode() + f"{words}\n".encode(errors="backslashreplace")
            )
    with suppress(Exception):
        atexit._run_exitfuncs()
    os._exit(status)
