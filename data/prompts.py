"""Prompt pairs: what they are, how they are read from a file, and what must hold of them.

An answer is one token or several. What a metric does not need, a pair may lack: `kl` takes no answers.

Text becomes tokens by a function that the caller supplies: nothing here knows tokenizers.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from ..errors import InputError
from .schema import TABLES

TEXT = ("clean", "corrupted", "correct", "wrong")
IDS = tuple(f"{key}_ids" for key in TEXT)
_SHOWN_ERRORS = 10
_SHOWN_LETTERS = 100
"""Of a value in an error."""

Answer = tuple[int, ...]
"""The tokens of an answer, one or several."""


@dataclass(frozen=True)
class TextPair:
    """A pair as text, before it is tokens. The answers follow the prompt: " Mary", with its space."""

    clean: str
    corrupted: str
    correct: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A pair as tokens, and its text where there is one."""

    clean_ids: tuple[int, ...]
    corrupted_ids: tuple[int, ...]
    correct_answers: tuple[Answer, ...] = ()
    wrong_answers: tuple[Answer, ...] = ()
    text: TextPair | None = None

    @property
    def correct_ids(self) -> tuple[int, ...]:
        """The first token of each correct answer."""
        return tuple(answer[0] for answer in self.correct_answers)

    @property
    def wrong_ids(self) -> tuple[int, ...]:
        """The first token of each wrong answer."""
        return tuple(answer[0] for answer in self.wrong_answers)


Pair = TextPair | Prompt
Encode = Callable[[str], list[int]]
"""A whole prompt as token ids."""


@dataclass(frozen=True)
class Vocabulary:
    """What a model can read: prompts are made for it, and checked against it."""

    size: int
    context: int
    """The longest prompt, in tokens."""
    encode: Encode | None
    """None where there is no tokenizer, and prompts must be token ids."""
    name: Callable[[int], str] = str
    """A token, readable."""
    known: Callable[[Sequence[str]], list[str]] | None = None
    """Of words that are one token each, those that the model knows; None where there is no model to ask."""


def encode_pairs(
    pairs: Sequence[Pair] | Mapping[str, Pair | InputError],
    vocabulary: Vocabulary,
    *,
    metric: str | None = None,
    first_token: bool = False,
) -> list[Prompt]:
    """Pairs as tokens, all of them checked; what is wrong with any is in one error.

    Pairs of a file are named by their places there, others by their numbers, which are their ids in the store. With a
    metric, they must have the answers that it needs. With `first_token`, that is all that is left of answers.
    """
    prompts, errors = [], []
    named = pairs if isinstance(pairs, Mapping) else {f"prompt {i}": pair for i, pair in enumerate(pairs)}
    for where, pair in named.items():
        try:
            if isinstance(pair, InputError):
                raise pair
            prompt = _encoded(pair, vocabulary, where) if isinstance(pair, TextPair) else pair
            _check(prompt, vocabulary, where)
            _check_answers(prompt, vocabulary, where, metric)
            prompts.append(_cut(prompt, vocabulary, where) if first_token else prompt)
        except InputError as error:
            errors.append(error)
    refuse(errors, len(named))
    return prompts


def trailing_spaces(prompts: Sequence[Prompt], vocabulary: Vocabulary) -> int:
    """How many prompts end in a space that changes their tokens: answers follow it then, not the words before it."""
    encode = vocabulary.encode
    texts = [(prompt.text.clean, prompt.clean_ids) for prompt in prompts if prompt.text]
    spaced = [(text, ids) for text, ids in texts if text.endswith(" ")]
    return 0 if encode is None else sum(tuple(encode(text.rstrip(" "))) != ids for text, ids in spaced)


def pair_lines(prompts: Sequence[Prompt]) -> bytes:
    """Pairs as a file of JSON lines, as `read_pairs` reads it."""
    lines = [asdict(prompt.text) if prompt.text else _plain(prompt) for prompt in prompts]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of the token ids of all prompts."""
    ids = [list(_plain(prompt).values()) for prompt in prompts]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def _plain(prompt: Prompt) -> dict[str, Sequence[int | Answer]]:
    """Token ids as a file has them: an answer of one token is a number, one of several a list."""

    def plain(answers: Sequence[Answer]) -> list[int | Answer]:
        return [answer[0] if len(answer) == 1 else answer for answer in answers]

    own = (
        prompt.clean_ids,
        prompt.corrupted_ids,
        plain(prompt.correct_answers),
        plain(prompt.wrong_answers),
    )
    return dict(zip(IDS, own, strict=True))


def prompt_table(
    prompts: Sequence[Prompt],
    first: int,
    metric_clean: Sequence[float],
    metric_corrupted: Sequence[float],
    name: Callable[[int], str] = str,
    *,
    is_right: Sequence[bool | None] | None = None,
    answer_rank: Sequence[int | None] | None = None,
) -> pa.Table:
    """Rows of the table `prompts`, numbered from `first`; `name` makes a token readable."""
    rows = []
    for number, prompt in enumerate(prompts, first):
        text = {key: getattr(prompt.text, key, None) for key in TEXT}
        ids = {key: getattr(prompt, key) for key in (*IDS, "correct_answers", "wrong_answers")}
        tokens = [name(token) for token in prompt.clean_ids]
        rows.append({"prompt_id": number, "clean_tokens": tokens} | text | ids)
    table = pa.Table.from_pylist(rows, schema=TABLES["prompts"])
    measured: dict[str, Sequence[float | None]] = {
        "metric_clean": metric_clean,
        "metric_corrupted": metric_corrupted,
        "is_right": is_right or [],
        "answer_rank": answer_rank or [],
    }
    for column, values in measured.items():
        if len(values):
            at = table.schema.get_field_index(column)
            table = table.set_column(at, column, pa.array(values, type=table.schema.field(at).type))
    return table


def refuse(errors: Sequence[InputError], pairs: int) -> None:
    """Raise what is wrong with pairs, if anything is: the first few, each on a line, and how many more."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        more = len(errors) - _SHOWN_ERRORS
        lines = [
            f"{len(errors):,} of {pairs:,} pairs of prompts cannot be used:",
            *map(str, errors[:_SHOWN_ERRORS]),
            *([f"And {more:,} more."] if more > 0 else []),
        ]
        raise InputError("\n".join(lines))


def _encoded(pair: TextPair, vocabulary: Vocabulary, where: str) -> Prompt:
    """A pair of texts as tokens. An answer is the tokens that it adds to the clean prompt."""
    encode = vocabulary.encode
    if encode is None:
        raise InputError(
            f"{begun(where)} is text, but the model has no tokenizer: give token ids (clean_ids, corrupted_ids, "
            "correct_ids, wrong_ids), or put a tokenizer into the model's folder."
        )
    clean = encode(pair.clean)

    def answer(text: str) -> Answer:
        tokens = encode(pair.clean + text)
        if tokens[: len(clean)] == clean and len(tokens) > len(clean):
            return tuple(tokens[len(clean) :])
        same = next((i for i, (a, b) in enumerate(zip(clean, tokens, strict=False)) if a != b), len(tokens))
        own, other = ([vocabulary.name(token) for token in some[same:]] for some in (clean, tokens))
        how = f"turns its end from {own} into {other}" if own or other else "adds no token to it"
        raise InputError(
            f"{begun(where)} has an answer that the tokenizer does not tell from the prompt: {shown(text)} {how}; "
            f"choose another answer{'' if text[:1].isspace() else ', or let it begin with a space'}."
        )

    return Prompt(
        clean_ids=tuple(clean),
        corrupted_ids=tuple(encode(pair.corrupted)),
        correct_answers=tuple(map(answer, pair.correct)),
        wrong_answers=tuple(map(answer, pair.wrong)),
        text=pair,
    )


def _check(prompt: Prompt, vocabulary: Vocabulary, where: str) -> None:
    where = begun(where)
    clean, corrupted = len(prompt.clean_ids), len(prompt.corrupted_ids)
    if clean != corrupted:
        raise InputError(
            f"{where} has {clean} tokens clean and {corrupted} corrupted: both must have the same number."
        )
    if clean == 0:
        raise InputError(f"{where} is empty: it needs at least one token.")
    if clean > vocabulary.context:
        raise InputError(
            f"{where} has {clean} tokens, more than the {vocabulary.context} that the model takes: shorten it."
        )
    tokens = (
        prompt.clean_ids,
        prompt.corrupted_ids,
        sum(prompt.correct_answers, ()),
        sum(prompt.wrong_answers, ()),
    )
    for key, ids in zip(IDS, tokens, strict=True):
        for token in ids:
            if not 0 <= token < vocabulary.size:
                raise InputError(
                    f"{where} has the token id {shown(token)} in {key}; the model knows 0 to {vocabulary.size - 1}."
                )


def _check_answers(prompt: Prompt, vocabulary: Vocabulary, where: str, metric: str | None) -> None:
    where = begun(where)
    for what, answers in (("correct", prompt.correct_answers), ("wrong", prompt.wrong_answers)):
        if twice := [answer for answer in answers if answers.count(answer) > 1]:
            raise InputError(f"{where} has {_named(twice[0], vocabulary)} more than once in {what}.")
        if not answers and metric not in (None, "kl"):
            key = what if prompt.text else f"{what}_ids"
            raise InputError(
                f"{where} has no {what} answer, and the metric {metric} needs one: add it as '{key}', or choose "
                "--metric kl, which needs no answers."
            )
    if both := set(prompt.correct_answers) & set(prompt.wrong_answers):
        names = ", ".join(_named(answer, vocabulary) for answer in sorted(both))
        raise InputError(f"{where} has {names} among the correct answers and among the wrong ones.")
    longest = max(map(len, (*prompt.correct_answers, *prompt.wrong_answers)), default=1)
    if len(prompt.clean_ids) + longest - 1 > vocabulary.context:  # nothing comes after the last token
        raise InputError(
            f"{where} has {len(prompt.clean_ids)} tokens and an answer of {longest}, more than the "
            f"{vocabulary.context} that the model takes: shorten it."
        )


def _cut(prompt: Prompt, vocabulary: Vocabulary, where: str) -> Prompt:
    """A prompt with the first tokens of its answers, each once."""
    correct, wrong = (dict.fromkeys(ids) for ids in (prompt.correct_ids, prompt.wrong_ids))
    if both := [token for token in correct if token in wrong]:
        raise InputError(
            f"{begun(where)} has correct answers and wrong ones with the same first token, "
            f"{_named(both[:1], vocabulary)}: leave out --first-token, or choose other answers."
        )
    return replace(
        prompt,
        correct_answers=tuple((token,) for token in correct),
        wrong_answers=tuple((token,) for token in wrong),
    )


def _named(answer: Sequence[int], vocabulary: Vocabulary) -> str:
    """An answer, readable."""
    names = [vocabulary.name(token) for token in answer]
    return repr(names[0]) if len(names) == 1 else repr(names)


def shown(value: Any) -> str:
    """A value in an error; of a long one, the beginning."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."


def begun(where: str) -> str:
    """A place as the beginning of a sentence."""
    return where[:1].upper() + where[1:]
