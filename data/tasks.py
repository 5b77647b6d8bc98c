"""Tasks: generators of prompt pairs that work for any tokenizer.

A task draws with a seed from those words of its lists that the model's tokenizer encodes as the task needs: names that
are one token each, say, so that clean and corrupted prompts have the same length. Where a tokenizer cannot do it, the
error says why. The four tasks, and what is corrupted:

`ioi`, indirect object identification (Wang et al., 2022). Three other names, all different, take the places of Mary,
John and John: the prompt is as long, and says nothing about whom the answer could be.

    When Mary and John went to the store, John gave a drink to       -> " Mary", not " John"

`ioi-long`, the same with three sentences between, which name nobody. These templates are Wirescope's own.

    One day, Mary and John went to the store early in the morning. [...] In the end, John gave a drink to    -> " Mary"

`greater-than` (Hanna et al., 2023): every later year of the century is right, all others wrong. The year becomes 01.

    The war lasted from the year 1732 to the year 17       -> "33" ... "99", not "00" ... "32"

`docstring` (Heimersheim and Janiak, 2023): the argument whose turn it is, not the others. The definition gets other
arguments, the docstring stays.

    def port(self, load, size, files, last): [...] :param size: unit dark :param       -> " files"

`ioi-swap` and `ioi-long-swap` have the same clean prompts as theirs, but the two names change roles in the corrupted
one: "Mary gave a drink to", where the right answer is the wrong one.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..graphs import InputError, did_you_mean
from . import words
from .prompts import Encode, Prompt, TextPair, Vocabulary, encode_pairs

_STALE = 2_000
"""After so many draws without a new prompt there are taken to be no others."""
_YEARS_ENOUGH = 60
"""A century serves if so many of its years are the century's token and another one."""


@dataclass(frozen=True)
class Task:
    """A task: its name, what it is in a line, and its pairs, without end, for a tokenizer."""

    name: str
    about: str
    pairs: Callable[[random.Random, Encode], Iterator[TextPair]]


def make_task(name: str, vocabulary: Vocabulary, count: int, seed: int = 0) -> list[Prompt]:
    """So many different pairs of a task; a seed gives the same ones again, and fewer of them if fewer are asked for."""
    check_task(name)
    if vocabulary.encode is None:
        raise InputError(
            f"The task '{name}' is made of text, but the model has no tokenizer: put one into its folder, or give "
            "prompts as token ids with --prompts."
        )
    pairs: dict[TextPair, None] = {}
    stale = 0
    for pair in TASKS[name].pairs(random.Random(seed), vocabulary.encode):  # noqa: S311
        stale = stale + 1 if pair in pairs else 0
        pairs[pair] = None
        if len(pairs) == count:
            return encode_pairs(list(pairs), vocabulary)
        if stale == _STALE:
            break
    raise InputError(
        f"The task '{name}' has only about {len(pairs)} different prompts for this tokenizer, not {count}."
    )


def check_task(name: str) -> None:
    """Refuse a task that there is not."""
    if name not in TASKS:
        raise InputError(
            f"There is no task '{name}'; the tasks are {', '.join(TASKS)}, and --prompts takes a file of your own."
            f"{did_you_mean(name, TASKS)}"
        )


def task_title(name: str | None) -> str:
    """What a task is called in a figure.

    >>> task_title("greater-than"), task_title("ioi-long")
    ('Greater Than', 'IOI Long')
    """
    words = (name or "unnamed task").replace("_", "-").split("-")
    return " ".join(word.upper() if word == "ioi" else word[:1].upper() + word[1:] for word in words)


def example(name: str) -> TextPair:
    """A pair of a task, as for a tokenizer that has a token for every word and for two digits.

    >>> example("greater-than").clean
    'The struggle lasted from the year 1755 to the year 17'
    """
    check_task(name)
    ids: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        return [ids.setdefault(word, len(ids)) for word in re.findall(r"\d\d|\w+|\S", text)]

    return next(TASKS[name].pairs(random.Random(0), encode))  # noqa: S311


def _ioi(
    task: str, templates: Sequence[str], between: int, swap: bool, rng: random.Random, encode: Encode
) -> Iterator[TextPair]:
    names = _single_tokens(words.NAMES, "When", encode)
    if len(names) < 5:
        raise InputError(
            f"The task '{task}' needs five names that are one token each; this tokenizer has {len(names)} of its "
            f"{len(words.NAMES)} ({', '.join(names) or 'none'})."
        )
    places, things = (_told_apart(some, encode) for some in (words.PLACES, words.OBJECTS))
    while True:
        template = rng.choice(templates)
        filled = {"place": rng.choice(places), "thing": rng.choice(things)}
        if between:
            filled["between"] = " ".join(rng.sample(words.MEANWHILE, between))
        a, b, *others = rng.sample(names, 5)
        first, second = (a, b) if rng.random() < 0.5 else (b, a)  # who is named first
        clean = template.format(a=first, b=second, c=b, **filled)
        instead = (first, second, a) if swap else others
        corrupted = template.format(**dict(zip("abc", instead, strict=True)), **filled)
        yield TextPair(clean, corrupted, (f" {a}",), (f" {b}",))


def _greater_than(rng: random.Random, encode: Encode) -> Iterator[TextPair]:
    events = _told_apart(words.EVENTS, encode)
    centuries = {century: _years(century, encode) for century in range(11, 21)}
    usable = [century for century, years in centuries.items() if 1 in years and len(years) >= _YEARS_ENOUGH]
    if not usable:
        tokens = len(encode("year 1732")) - len(encode("year"))
        raise InputError(
            "The task 'greater-than' needs years that are a token for the century and one for two digits; this "
            f"tokenizer makes {tokens} of 1732, and has no century in which {_YEARS_ENOUGH} years are so."
        )
    while True:
        event, century = rng.choice(events), rng.choice(usable)
        years = centuries[century]
        year = rng.choice([year for year in years if 1 < year < 99])
        clean, corrupted = (
            words.GREATER_THAN.format(event=event, century=century, year=own) for own in (year, 1)
        )
        later = tuple(f"{other:02d}" for other in years if other > year)
        earlier = tuple(f"{other:02d}" for other in years if other <= year)
        if later:
            yield TextPair(clean, corrupted, later, earlier)


def _docstring(rng: random.Random, encode: Encode) -> Iterator[TextPair]:
    arguments = _single_tokens(words.ARGUMENTS, "self,", encode)
    if len(arguments) < 8:
        raise InputError(
            "The task 'docstring' needs eight names of arguments that are one token each; this tokenizer has "
            f"{len(arguments)} of its {len(words.ARGUMENTS)} ({', '.join(arguments) or 'none'})."
        )
    functions, about = (_told_apart(some, encode) for some in (words.FUNCTIONS, words.DESCRIPTIONS))
    while True:
        chosen = rng.sample(arguments, 8)
        own, others = chosen[:4], chosen[4:]
        described = rng.sample(about, 7)
        filled = {
            "function": rng.choice(functions),
            "about": " ".join(described[:3]),
            "first": own[0],
            "about_first": " ".join(described[3:5]),
            "second": own[1],
            "about_second": " ".join(described[5:]),
        }
        clean, corrupted = (
            words.DOCSTRING.format(arguments=", ".join(some), **filled) for some in (own, others)
        )
        wrong = tuple(f" {own[i]}" for i in (0, 1, 3))
        yield TextPair(clean, corrupted, (f" {own[2]}",), wrong)


def _single_tokens(some: Sequence[str], before: str, encode: Encode) -> list[str]:
    """The words that are one token after another word."""
    start = encode(before)
    tokens = {}
    for word in some:
        ids = encode(f"{before} {word}")
        if ids[:-1] == start:
            tokens[word] = ids[-1]
    shared = Counter(tokens.values())  # a token that several words have says that they are not known
    return [word for word, token in tokens.items() if shared[token] == 1]


def _told_apart(some: Sequence[str], encode: Encode) -> list[str]:
    """The words that a tokenizer tells from all others; where it knows none of them, all."""
    tokens = {word: tuple(encode(f"The {word}")) for word in some}
    shared = Counter(tokens.values())
    return [word for word in some if shared[tokens[word]] == 1] or list(some)


def _years(century: int, encode: Encode) -> list[int]:
    """The years of a century, from 0 to 99, that are one token behind the century's own."""
    before = encode(f"the year {century}")
    one_token = len(before) == len(encode("the year")) + 1
    tokens = {year: encode(f"the year {century}{year:02d}") for year in range(100 if one_token else 0)}
    behind = {year: ids[-1] for year, ids in tokens.items() if ids[:-1] == before}
    shared = Counter(behind.values())
    return [year for year, token in behind.items() if shared[token] == 1]


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("greater-than", "a year of the same century after the one that is named", _greater_than),
        Task("ioi", "who gets it: the name that was not repeated", partial(_ioi, "ioi", words.IOI, 0, False)),
        Task("docstring", "the argument whose turn it is in the docstring", _docstring),
        Task(
            "ioi-long",
            "ioi with three sentences between, which name nobody",
            partial(_ioi, "ioi-long", words.IOI_LONG, 3, False),
        ),
        Task(
            "ioi-swap",
            "ioi, corrupted by letting the two names change roles",
            partial(_ioi, "ioi-swap", words.IOI, 0, True),
        ),
        Task(
            "ioi-long-swap",
            "ioi-long, corrupted likewise",
            partial(_ioi, "ioi-long-swap", words.IOI_LONG, 3, True),
        ),
    )
}
MAIN_TASKS = ("greater-than", "ioi", "docstring", "ioi-long")
"""The four that models are compared on; the others are variants."""
