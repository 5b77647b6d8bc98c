"""Tasks: generators of prompt pairs that work for any tokenizer.

A task draws from word lists with a seed and keeps what the model's tokenizer encodes as the task needs: names that are
one token, clean and corrupted prompts of the same length. Where a tokenizer cannot do it, the error says why.

`ioi`, indirect object identification (Wang et al., 2022):

    When Mary and John went to the store, John gave a drink to       -> " Mary", not " John"

The corrupted prompt has three other names, all different, in the places of Mary, John and John: it is as long and says nothing
about whom the answer could be.
"""

import random
from collections.abc import Callable, Iterator

from ..graphs import InputError, did_you_mean
from .prompts import Prompt, TextPair, Vocabulary, encode_pairs

_NAMES = (
    "Aaron Adam Alan Alex Alice Amy Anderson Andre Andrew Andy Anna Anthony Arthur Austin Blake Brandon Brian Carter "
    "Charles Charlie Christian Christopher Clark Cole Collins Connor Crew Crystal Daniel David Dean Edward Elizabeth "
    "Emily Eric Eva Ford Frank George Georgia Graham Grant Henry Ian Jack Jacob Jake James Jamie Jane Jason Jay "
    "Jennifer Jeremy Jessica John Jonathan Jordan Joseph Joshua Justin Kate Kelly Kevin Kyle Laura Leon Lewis Lisa "
    "Louis Luke Madison Marco Marcus Maria Mark Martin Mary Matthew Max Michael Michelle Morgan Patrick Paul Peter "
    "Prince Rachel Richard River Robert Roman Rose Ruby Russell Ryan Samuel Sarah Scott Sean Simon Stephen Steven "
    "Sullivan Taylor Thomas Tom Tyler Victoria Warren William"
).split()
_PLACES = "store garden restaurant school hospital office house station park library beach market".split()
_OBJECTS = "ring kiss bone basketball computer necklace drink snack book letter flower ball".split()
_IOI = (
    "Then, {a} and {b} went to the {place}. {c} gave a {thing} to",
    "When {a} and {b} went to the {place}, {c} gave a {thing} to",
    "After {a} and {b} went to the {place}, {c} gave a {thing} to",
    "Then, {a} and {b} had a long talk at the {place}. {c} gave a {thing} to",
    "While {a} and {b} were working at the {place}, {c} decided to give a {thing} to",
    "Friends {a} and {b} found a {thing} at the {place}. {c} gave the {thing} to",
)


def make_task(name: str, vocabulary: Vocabulary, count: int, seed: int = 0) -> list[Prompt]:
    """So many different pairs of a task; a seed gives the same ones again, and fewer of them if fewer are asked for."""
    if name not in TASKS:
        raise InputError(
            f"There is no task '{name}'; the tasks are {', '.join(TASKS)}, and --prompts takes a file of your own."
            f"{did_you_mean(name, TASKS)}"
        )
    if vocabulary.encode is None:
        raise InputError(
            f"The task '{name}' is made of text, but the model has no tokenizer: put one into its folder, or give "
            "prompts as token ids with --prompts."
        )
    pairs: dict[TextPair, None] = {}
    drawn = 0
    for pair in TASKS[name](random.Random(seed), vocabulary):  # noqa: S311: nothing secret
        pairs[pair] = None
        drawn += 1
        if len(pairs) == count:
            return encode_pairs(list(pairs), vocabulary)
        if drawn > 20 * count:
            break
    raise InputError(f"The task '{name}' has only about {len(pairs)} different prompts for this tokenizer, not {count}.")


def _ioi(rng: random.Random, vocabulary: Vocabulary) -> Iterator[TextPair]:
    names = _single_tokens(_NAMES, "When", vocabulary)
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


def _single_tokens(words: list[str], before: str, vocabulary: Vocabulary) -> list[str]:
    """The words that are one token after another word."""
    encode = vocabulary.encode
    assert encode is not None
    start = encode(before)
    found = []
    for word in words:
        ids = encode(f"{before} {word}")
        if ids[:-1] == start:
            found.append(word)
    return found


TASKS: dict[str, Callable[[random.Random, Vocabulary], Iterator[TextPair]]] = {"ioi": _ioi}
