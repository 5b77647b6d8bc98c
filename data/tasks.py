"""Tasks: generators of prompt pairs that work for any tokenizer.

A task draws with a seed from those words of its lists that the model's tokenizer encodes as the task needs: names that
are one token each, say, so that clean and corrupted prompts have the same length. Where a tokenizer cannot do it, the
error says why. Of the names it takes those that the model knows, where it knows enough of them: a model of children's
stories has tokens for names that it has hardly seen, and cannot repeat. The four tasks, and what is corrupted:

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
from math import perm

from ..errors import InputError, did_you_mean
from . import words
from .prompts import Encode, Prompt, TextPair, Vocabulary, encode_pairs

_MOST = 1_000_000
"""Pairs of a task in a call."""
_NAMES_ENOUGH = 5
_YEARS_ENOUGH = 60
"""A century serves if so many of its years are the century's token and another one."""


@dataclass(frozen=True)
class Task:
    """A task: its name, what it is in a line, and its pairs, without end, for a model."""

    name: str
    about: str
    pairs: Callable[[random.Random, Vocabulary], Iterator[TextPair]]
    count: Callable[[Vocabulary], int]
    """How many different pairs there are for a model."""


def make_task(name: str, vocabulary: Vocabulary, count: int, seed: int = 0) -> list[Prompt]:
    """So many different pairs of a task; a seed gives the same ones again, and fewer of them if fewer are asked for."""
    check_task(name)
    if vocabulary.encode is None:
        raise InputError(
            f"The task '{name}' is made of text, but the model has no tokenizer: put one into its folder, or give "
            "prompts as token ids with --prompts."
        )
    task = TASKS[name]
    drawn = task.pairs(random.Random(seed), vocabulary)  # noqa: S311
    pairs = {next(drawn): None}  # which says why a tokenizer cannot do it
    there = task.count(vocabulary)
    if count > min(there, _MOST):
        most = f", and a call takes {_MOST:,} at most" if there > _MOST else ""
        raise InputError(
            f"The task '{name}' has {there:,} different prompts for this tokenizer{most}: {count:,} are too many."
        )
    while len(pairs) < count:
        pairs[next(drawn)] = None
    return encode_pairs(list(pairs), vocabulary)


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

    alone = Vocabulary(size=0, context=0, encode=encode)
    return next(TASKS[name].pairs(random.Random(0), alone))  # noqa: S311


def _ioi(
    task: str, templates: Sequence[str], between: int, swap: bool, rng: random.Random, vocabulary: Vocabulary
) -> Iterator[TextPair]:
    names, places, things = _ioi_words(vocabulary)
    if len(names) < _NAMES_ENOUGH:
        raise InputError(
            f"The task '{task}' needs five names that are one token each; this tokenizer has {len(names)} of its "
            f"{len(words.NAMES)} ({', '.join(names) or 'none'})."
        )
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


def known_names(vocabulary: Vocabulary) -> list[str]:
    """Names of the tasks that are one token each and that the model knows; where it knows too few, all of them."""
    names = _single_tokens(words.NAMES, "When", _encode(vocabulary))
    known = names if vocabulary.known is None else vocabulary.known(names)
    return known if len(known) >= _NAMES_ENOUGH else names


def _ioi_words(vocabulary: Vocabulary) -> tuple[list[str], list[str], list[str]]:
    """Names, places and things."""
    encode = _encode(vocabulary)
    places, things = (_told_apart(some, encode) for some in (words.PLACES, words.OBJECTS))
    return known_names(vocabulary), places, things


def _encode(vocabulary: Vocabulary) -> Encode:
    assert vocabulary.encode is not None, "tasks are made of text"  # noqa: S101
    return vocabulary.encode


def _ioi_count(templates: Sequence[str], between: int, swap: bool, vocabulary: Vocabulary) -> int:
    names, places, things = map(len, _ioi_words(vocabulary))
    filled = len(templates) * places * things * perm(len(words.MEANWHILE), between)
    return filled * 2 * perm(names, 2) * (1 if swap else perm(names - 2, 3))


def _greater_than(rng: random.Random, vocabulary: Vocabulary) -> Iterator[TextPair]:
    encode = _encode(vocabulary)
    events, centuries = _events(encode)
    usable = list(centuries)
    if not usable:
        tokens = len(encode("year 1732")) - len(encode("year"))
        raise InputError(
            "The task 'greater-than' needs years that are a token for the century and one for two digits; this "
            f"tokenizer makes {tokens} of 1732, and has no century in which {_YEARS_ENOUGH} years are so."
        )
    while True:
        event, century = rng.choice(events), rng.choice(usable)
        years = centuries[century]
        year = rng.choice(_first_years(years))
        clean, corrupted = (
            words.GREATER_THAN.format(event=event, century=century, year=own) for own in (year, 1)
        )
        later = tuple(f"{other:02d}" for other in years if other > year)
        earlier = tuple(f"{other:02d}" for other in years if other <= year)
        if later:
            yield TextPair(clean, corrupted, later, earlier)


def _greater_than_count(vocabulary: Vocabulary) -> int:
    events, centuries = _events(_encode(vocabulary))
    return len(events) * sum(
        sum(year < max(years) for year in _first_years(years)) for years in centuries.values()
    )


def _events(encode: Encode) -> tuple[list[str], dict[int, list[int]]]:
    """Events, and the years of those centuries that serve."""
    centuries = {century: _years(century, encode) for century in range(11, 21)}
    usable = {c: years for c, years in centuries.items() if 1 in years and len(years) >= _YEARS_ENOUGH}
    return _told_apart(words.EVENTS, encode), usable


def _first_years(years: Sequence[int]) -> list[int]:
    """The years that something can have lasted from."""
    return [year for year in years if 1 < year < 99]


def _docstring(rng: random.Random, vocabulary: Vocabulary) -> Iterator[TextPair]:
    arguments, functions, about = _docstring_words(_encode(vocabulary))
    if len(arguments) < 8:
        raise InputError(
            "The task 'docstring' needs eight names of arguments that are one token each; this tokenizer has "
            f"{len(arguments)} of its {len(words.ARGUMENTS)} ({', '.join(arguments) or 'none'})."
        )
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


def _docstring_count(vocabulary: Vocabulary) -> int:
    arguments, functions, about = map(len, _docstring_words(_encode(vocabulary)))
    return functions * perm(arguments, 8) * perm(about, 7)


def _docstring_words(encode: Encode) -> tuple[list[str], list[str], list[str]]:
    """Arguments, functions and what is said of them."""
    functions, about = (_told_apart(some, encode) for some in (words.FUNCTIONS, words.DESCRIPTIONS))
    return _single_tokens(words.ARGUMENTS, "self,", encode), functions, about


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


def _ioi_task(
    name: str, about: str, templates: Sequence[str], *, between: int = 0, swap: bool = False
) -> Task:
    own = (templates, between, swap)
    return Task(name, about, partial(_ioi, name, *own), partial(_ioi_count, *own))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "greater-than",
            "a year of the same century after the one that is named",
            _greater_than,
            _greater_than_count,
        ),
        _ioi_task("ioi", "who gets it: the name that was not repeated", words.IOI),
        Task("docstring", "the argument whose turn it is in the docstring", _docstring, _docstring_count),
        _ioi_task(
            "ioi-long", "ioi with three sentences between, which name nobody", words.IOI_LONG, between=3
        ),
        _ioi_task("ioi-swap", "ioi, corrupted by letting the two names change roles", words.IOI, swap=True),
        _ioi_task("ioi-long-swap", "ioi-long, corrupted likewise", words.IOI_LONG, between=3, swap=True),
    )
}
MAIN_TASKS = ("greater-than", "ioi", "docstring", "ioi-long")
"""The four that models are compared on; the others are variants."""
