"""The entry point: arguments in, exit status out, no traceback for what the user can mend."""

import os
import sys
from collections.abc import Sequence

from ..errors import InputError, WirescopeError
from .stopping import farewell, ignore_signals, stop_on_signals

STOPPED = 130
"""The exit status that typer gives a command which a KeyboardInterrupt ended."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `wirescope`. Exit status 0: done; 1: failed; 2: the call was wrong; 130 and 143: stopped.

    Without arguments it is the program itself, and signals are its own; with arguments, it is called by another.
    """
    if arguments is None:
        _program(sys.argv[1:])
    else:
        _run(arguments)


def extract_main() -> None:
    """Run `extract`, which is `wirescope extract`."""
    _program(["extract", *sys.argv[1:]])


def _program(arguments: Sequence[str]) -> None:
    stop_on_signals()  # before anything that takes long, such as importing the commands
    try:
        _run(arguments)
    finally:
        ignore_signals()


def _run(arguments: Sequence[str]) -> None:
    from typer import TyperException
    from typer.rich_utils import rich_format_error

    from .app import app
    from .output import say, shown

    try:
        _check_utf8(arguments)
        status = app(_spread(arguments), standalone_mode=False)
    except TyperException as error:  # what the parser finds wrong
        error.message = shown(error.message)
        rich_format_error(error)  # type: ignore[arg-type]  # all that typer raises is one of these
        status = error.exit_code
    except Exception as error:
        if not isinstance(error, WirescopeError):
            raise
        say(f"wirescope: {error}")
        status = 2 if isinstance(error, InputError) else 1
    if status == STOPPED and (words := farewell()):
        say(words)
    if status:
        sys.exit(status)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Refuse what is not text: names and paths are kept as UTF-8 wherever they go."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            text = os.fsencode(argument).decode(errors="backslashreplace")
            raise InputError(
                f"The argument '{text}' is not UTF-8: write it so, or rename the file."
            ) from error


def _spread(arguments: Sequence[str]) -> list[str]:
    """``--runs A B`` as ``--runs A --runs B``, which is how the parser takes several values.

    >>> _spread(["stats", "--runs", "A", "B", "-k", "5"])
    ['stats', '--runs', 'A', '--runs', 'B', '-k', '5']
    """
    spread: list[str] = []
    listing = False
    for argument in arguments:
        if listing and not argument.startswith("-") and spread[-1] != "--runs":
            spread.append("--runs")
        listing = argument == "--runs" or (listing and not argument.startswith("-"))
        spread.append(argument)
    return spread
