"""Tasks: generators of prompt pairs that work for any tokenizer.

A task draws with a seed from those words of its lists that the model's tokenizer encodes as the task needs: names that
are one token each, so that clean and corrupted prompts have the same length. Where a tokenizer cannot do it, the error
says why.

`ioi`, indirect object identification (Wang et al., 2022):

    When Mary and John went to the store, John gave a drink to       -> " Mary", not " John"

The corrupted prompt has three other names, all different, in the places of Mary, John and John: it is as long, and says
nothing about whom the answer could be.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ..graphs import InputError, did_you_mean
from .prompts import Encode, Prompt, TextPair, Vocabulary, encode_pairs


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NAMES = _words("""
Aaron Adam Alan Alex Alice Amy Anderson Andre Andrew Andy Anna Anthony Arthur Austin Blake Brandon Brian Carter Charles
Charlie Christian Christopher Clark Cole Collins Connor Crew Crystal Daniel David Dean Edward Elizabeth Emily Eric Eva
Ford Frank George Georgia Graham Grant Henry Ian Jack Jacob Jake James Jamie Jane Jason Jay Jennifer Jeremy Jessica John
Jonathan Jordan Joseph Joshua Justin Kate Kelly Kevin Kyle Laura Leon Lewis Lisa Louis Luke Madison Marco Marcus Maria
Mark Martin Mary Matthew Max Michael Michelle Morgan Patrick Paul Peter Prince Rachel Richard River Robert Roman Rose
Ruby Russell Ryan Samuel Sarah Scott Sean Simon Stephen Steven Sullivan Taylor Thomas Tom Tyler Victoria Warren William
""")
_PLACES = _words("store garden restaurant school hospital office house station park library beach market")
_OBJECTS = _words("ring kiss bone basketball computer necklace drink snack book letter flower ball")
_IOI = (
    "Then, {a} and {b} went to the {place}. {c} gave a {thing} to",
    "When {a} and {b} went to the {place}, {c} gave a {thing} to",
    "After {a} and {b} went to the {place}, {c} gave a {thing} to",
    "Then, {a} and {b} had a long talk at the {place}. {c} gave a {thing} to",
    "While {a} and {b} were working at the {place}, {c} decided to give a {thing} to",
    "Friends {a} and {b} found a {thing} at the {place}. {c} gave the {thing} to",
)


_STALE = 2_000
"""After so many draws without a new prompt there are taken to be no others."""


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
    for pair in TASKS[name](random.Random(seed), vocabulary.encode):  # noqa: S311
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


def _ioi(rng: random.Random, encode: Encode) -> Iterator[TextPair]:
    names = _single_tokens(_NAMES, "When", encode)
    if len(names) < 5:
        raise InputError(
            f"The task 'ioi' needs five names that are one token each; this tokenizer has {len(names)} of its "
            f"{len(_NAMES)} ({', '.join(names) or 'none'})."
        )
    while True:
        template = rng.choice(_IOI)
        words = {"place": rng.choice(_PLACES), "thing": rng.choice(_OBJECTS)}
        a, b, *others = rng.sample(names, 5)
        if rng.random() < 0.5:  # who is named first
            clean = template.format(a=a, b=b, c=b, **words)
        else:
            clean = template.format(a=b, b=a, c=b, **words)
        corrupted = template.format(**dict(zip("abc", others, strict=True)), **words)
        yield TextPair(clean, corrupted, (f" {a}",), (f" {b}",))


def _single_tokens(words: Sequence[str], before: str, encode: Encode) -> list[str]:
    """The words that are one token after another word."""
    start = encode(before)
    tokens = {}
    for word in words:
        ids = encode(f"{before} {word}")
        if ids[:-1] == start:
            tokens[word] = ids[-1]
    shared = Counter(tokens.values())  # a token that several words have says that they are not known
    return [word for word, token in tokens.items() if shared[token] == 1]


TASKS: dict[str, Callable[[random.Random, Encode], Iterator[TextPair]]] = {"ioi": _ioi}
