"""The entry point: arguments in, exit status out, no traceback for what the user can mend."""

import sys
from collections.abc import Sequence

from .app import app
from .output import say


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `wirescope`. Exit status 0: done; 1: failed; 2: the call was wrong."""
    try:
        app(_spread(sys.argv[1:] if arguments is None else arguments))
    except Exception as error:
        from ..graphs import InputError, StoreError  # not above: it would slow down every --help

        if not isinstance(error, InputError | StoreError):
            raise
        say(f"wirescope: {error}")
        sys.exit(2 if isinstance(error, InputError) else 1)


def extract_main() -> None:
    """Run `extract`, which is `wirescope extract`."""
    main(["extract", *sys.argv[1:]])


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
