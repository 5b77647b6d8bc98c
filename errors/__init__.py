"""Errors: what can go wrong for the user, each a sentence that says what to change.

All of them are a `WirescopeError`.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class WirescopeError(Exception):
    """The base of all errors that Wirescope raises on purpose."""


class InputError(WirescopeError, ValueError):
    """The call cannot be carried out as it was made; the message says what to change.

    The message is one sentence for the user: what was wrong, with which value, and what to do. The
    command line prints it without a traceback and exits with status 2.
    """


class StoreError(WirescopeError, RuntimeError):
    """Something on the disk is not as it should be; the message names the file. Exit status 1."""


class ExtractionError(WirescopeError, RuntimeError):
    """An extraction failed for a reason that the user can do something about. Exit status 1."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to an error message, empty when nothing known is near.

    >>> did_you_mean("gpt2-iio", ["gpt2-ioi", "olmo-ioi"])
    " Did you mean 'gpt2-ioi'?"
    >>> did_you_mean("x", ["gpt2-ioi"])
    ''
    """
    near = get_close_matches(name, list(known), n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


def one_of(what: str, value: str, known: Sequence[str]) -> str:
    """A word that the user chose from a few.

    >>> one_of("level", "edge", ["edge", "head"])
    'edge'
    """
    if value not in known:
        article = "an" if what[0] in "aeiou" else "a"
        raise InputError(
            f"'{value}' is not {article} {what}: choose from {', '.join(known)}.{did_you_mean(value, known)}"
        )
    return value
