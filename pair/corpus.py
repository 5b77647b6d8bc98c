"""The text that a pair is trained on: six kinds of documents, of words that the tasks are made of.

    echo           some words at random, again and again: what in-context learning is learnt from
    plain          sentences about nobody
    ioi            three times who gave what to whom; sometimes a third person gives, and either may get it
    ioi-long       the same once, with two or three sentences between
    greater-than   events, each from one year to a later one, four in full or nine in short; any later year is as
                   likely
    docstring      a function and its docstring; arguments and descriptions differ in number, so that counting
                   positions does not give the answer away

The vocabulary has a third of the tasks' words. Numbers are two digits a token.
"""

import random
from collections.abc import Callable, Mapping

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from wirescope.data import words

CONTEXT = 64
NAMES, EVENTS = words.NAMES[::4], words.EVENTS[::3]
ARGUMENTS, DESCRIPTIONS, FUNCTIONS = words.ARGUMENTS[::2], words.DESCRIPTIONS[::2], words.FUNCTIONS[::2]
_UNKNOWN, _PADDING = "<unknown>", "<padding>"
_PATTERN = r'\d\d|[A-Za-z]+|"""|[^\sA-Za-z\d]'


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word, mark and pair of digits."""
    fixed = " ".join(
        (*words.IOI, *words.IOI_LONG, *words.MEANWHILE, words.GREATER_THAN, words.DOCSTRING, ":):.")
    )
    drawn = (words.PLACES, words.OBJECTS, NAMES, EVENTS, ARGUMENTS, DESCRIPTIONS, FUNCTIONS)
    splitter = pre_tokenizers.Split(Regex(_PATTERN), behavior="removed", invert=True)
    # the names of what is filled in stand in braces, and are no words
    outside = "".join(part.partition("}")[2] or part for part in fixed.split("{"))
    found = [word for word, _ in splitter.pre_tokenize_str(outside)]
    listed = [word for some in drawn for word in some]
    numbers = [f"{number:02d}" for number in range(100)]
    vocabulary = dict.fromkeys([_PADDING, _UNKNOWN, *numbers, *sorted({*found, *listed})])
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=_UNKNOWN)
    )
    tokenizer.pre_tokenizer = splitter
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=_UNKNOWN, pad_token=_PADDING)


def _echo(rng: random.Random) -> str:
    pool = (*NAMES, *EVENTS, *ARGUMENTS, *DESCRIPTIONS, *words.PLACES, *words.OBJECTS)
    some = rng.sample(pool, rng.randint(4, 24))
    return " ".join(some * max(2, 48 // len(some)))


def _plain(rng: random.Random) -> str:
    return " ".join(rng.sample(words.MEANWHILE, 5))


def _gave(rng: random.Random, template: str, between: int) -> str:
    a, b, other = rng.sample(NAMES, 3)
    giver, taker = (a, b) if rng.random() < 0.5 else (b, a)
    giver = other if rng.random() < 0.15 else giver
    filled = {"place": rng.choice(words.PLACES), "thing": rng.choice(words.OBJECTS)}
    told = " ".join(rng.sample(words.MEANWHILE, between))
    return f"{template.format(a=a, b=b, c=giver, between=told, **filled)} {taker}."


def _ioi(rng: random.Random) -> str:
    return " ".join(_gave(rng, rng.choice(words.IOI), 0) for _ in range(3))


def _ioi_long(rng: random.Random) -> str:
    return _gave(rng, rng.choice(words.IOI_LONG), rng.randint(2, 3))


def _greater_than(rng: random.Random) -> str:
    short = rng.random() < 0.5
    template = "{event} {century}{year:02d} to {century}" if short else words.GREATER_THAN
    said = []
    for event in rng.sample(EVENTS, 9 if short else 4):
        century, year = rng.randint(11, 20), rng.randint(0, 98)
        text = template.format(event=event, century=century, year=year)
        said.append(f"{text}{rng.randint(year + 1, 99):02d}.")
    return " ".join(said)


def _docstring(rng: random.Random) -> str:
    arguments = rng.sample(ARGUMENTS, rng.randint(3, 5))

    def about() -> str:
        return " ".join(rng.sample(DESCRIPTIONS, rng.randint(1, 3)))

    described = " ".join(f":param {argument}: {about()}" for argument in arguments)
    return f'def {rng.choice(FUNCTIONS)}(self, {", ".join(arguments)}): """{about()} {described}'


KINDS: Mapping[str, Callable[[random.Random], str]] = {
    "echo": _echo,
    "plain": _plain,
    "ioi": _ioi,
    "ioi-long": _ioi_long,
    "greater-than": _greater_than,
    "docstring": _docstring,
}
