"""Prompt pairs: what they are, how they are read from a file, and what must hold of them.

A file has one pair a line, as JSON, as text or as token ids:

    {"clean": "...", "corrupted": "...", "correct": [" Mary"], "wrong": [" John"]}
    {"clean_ids": [5, 9], "corrupted_ids": [7, 9], "correct_ids": [3], "wrong_ids": [4]}

Text becomes tokens by a function that the caller supplies: nothing here knows tokenizers.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..graphs import InputError
from .schema import TABLES

_TEXT = ("clean", "corrupted", "correct", "wrong")
_IDS = tuple(f"{key}_ids" for key in _TEXT)
_EXAMPLE = '{"clean": "...", "corrupted": "...", "correct": [" Mary"], "wrong": [" John"]}'


@dataclass(frozen=True)
class TextPair:
    """A pair as text, before it is tokens. The answers follow the prompt: " Mary", with its space."""

    clean: str
    corrupted: str
    correct: tuple[str, ...]
    wrong: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A pair as tokens, and its text where there is one."""

    clean_ids: tuple[int, ...]
    corrupted_ids: tuple[int, ...]
    correct_ids: tuple[int, ...]
    wrong_ids: tuple[int, ...]
    text: TextPair | None = None


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


def read_pairs(file: Path | str, limit: int | None = None) -> list[TextPair | Prompt]:
    """Read pairs from a file of JSON lines; what is not a pair is an error with the number of its line."""
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}' with prompts.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{file}' cannot be read as prompts: {error}.") from error
    pairs = [
        _pair(line, f"line {number} of '{file}'") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not pairs:
        raise InputError(f"'{file}' has no prompts: it needs a JSON object a line, such as {_EXAMPLE}")
    return pairs[:limit]


def encode_pairs(pairs: Sequence[TextPair | Prompt], vocabulary: Vocabulary) -> list[Prompt]:
    """Pairs as tokens, each checked; a prompt's number in an error is its id in the store."""
    prompts = []
    for number, pair in enumerate(pairs):
        prompt = _encoded(pair, vocabulary, f"Prompt {number}") if isinstance(pair, TextPair) else pair
        _check(prompt, vocabulary, f"Prompt {number}")
        prompts.append(prompt)
    return prompts


def _encoded(pair: TextPair, vocabulary: Vocabulary, where: str) -> Prompt:
    """A pair of texts as tokens. An answer is the one token that it adds to the clean prompt."""
    encode = vocabulary.encode
    if encode is None:
        raise InputError(
            f"{where} is text, but the model has no tokenizer: give token ids (clean_ids, corrupted_ids, "
            "correct_ids, wrong_ids), or put a tokenizer into the model's folder."
        )
    clean = encode(pair.clean)

    def answer(text: str) -> int:
        with_answer = encode(pair.clean + text)
        if with_answer[: len(clean)] == clean and len(with_answer) == len(clean) + 1:
            return with_answer[-1]
        same = next(
            (i for i, (a, b) in enumerate(zip(clean, with_answer, strict=False)) if a != b), len(clean)
        )
        tokens = [vocabulary.name(token) for token in with_answer[same:]]
        raise InputError(
            f"{where} has an answer that is not one token after the prompt: {text!r} makes its end {tokens}; "
            "choose another answer (most tokenizers want it to begin with a space)."
        )

    return Prompt(
        clean_ids=tuple(clean),
        corrupted_ids=tuple(encode(pair.corrupted)),
        correct_ids=tuple(answer(text) for text in pair.correct),
        wrong_ids=tuple(answer(text) for text in pair.wrong),
        text=pair,
    )


def pair_lines(prompts: Sequence[Prompt]) -> bytes:
    """Pairs as a file of JSON lines, as `read_pairs` reads it."""
    lines = [
        asdict(prompt.text) if prompt.text else {key: getattr(prompt, key) for key in _IDS}
        for prompt in prompts
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of the token ids of all prompts."""
    ids = [[getattr(prompt, key) for key in _IDS] for prompt in prompts]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def prompt_table(
    prompts: Sequence[Prompt],
    first: int,
    metric_clean: Sequence[float],
    metric_corrupted: Sequence[float],
    name: Callable[[int], str] = str,
) -> pa.Table:
    """Rows of the table `prompts`, numbered from `first`; `name` makes a token readable."""
    rows = []
    for number, prompt in enumerate(prompts, first):
        text = {key: getattr(prompt.text, key, None) for key in _TEXT}
        ids = {key: getattr(prompt, key) for key in _IDS}
        tokens = [name(token) for token in prompt.clean_ids]
        rows.append({"prompt_id": number, "clean_tokens": tokens} | text | ids)
    table = pa.Table.from_pylist(rows, schema=TABLES["prompts"])
    for column, values in (("metric_clean", metric_clean), ("metric_corrupted", metric_corrupted)):
        at = table.schema.get_field_index(column)
        table = table.set_column(at, column, pa.array(values, type=pa.float32()))
    return table


def _pair(line: str, where: str) -> TextPair | Prompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where[0].upper()}{where[1:]} is not JSON: {error}.") from error
    if isinstance(record, dict) and record.keys() >= set(_IDS):
        clean, corrupted, correct, wrong = (_ids(record[key], key, where) for key in _IDS)
        return Prompt(clean_ids=clean, corrupted_ids=corrupted, correct_ids=correct, wrong_ids=wrong)
    if isinstance(record, dict) and record.keys() >= set(_TEXT):
        for key in ("clean", "corrupted"):
            if not _is_text(record[key]):
                raise InputError(f"'{key}' in {where} is {record[key]!r}: it must be a text.")
        return TextPair(
            record["clean"],
            record["corrupted"],
            _texts(record["correct"], "correct", where),
            _texts(record["wrong"], "wrong", where),
        )
    raise InputError(
        f"{where[0].upper()}{where[1:]} is not a pair of prompts: it needs {', '.join(_TEXT)}, or {', '.join(_IDS)}."
    )


def _ids(value: Any, key: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(item) is int for item in value):
        raise InputError(f"'{key}' in {where} is {value!r}: it must be a list of token ids.")
    return tuple(value)


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not value or not all(_is_text(item) and item for item in value):
        raise InputError(f"'{key}' in {where} is {value!r}: it must be a list of answers.")
    return tuple(value)


def _is_text(value: Any) -> bool:
    """Whether it is a string that can be written: JSON can name half a character, which no text has."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _check(prompt: Prompt, vocabulary: Vocabulary, where: str) -> None:
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
    for key in _IDS:
        for token in getattr(prompt, key):
            if not 0 <= token < vocabulary.size:
                raise InputError(
                    f"{where} has the token id {token} in {key}; the model knows 0 to {vocabulary.size - 1}."
                )
    for key in ("correct_ids", "wrong_ids"):
        answers = getattr(prompt, key)
        if twice := [token for token in set(answers) if answers.count(token) > 1]:
            raise InputError(
                f"{where} has {vocabulary.name(twice[0])!r} more than once in {key.removesuffix('_ids')}."
            )
    if both := set(prompt.correct_ids) & set(prompt.wrong_ids):
        names = ", ".join(repr(vocabulary.name(token)) for token in sorted(both))
        raise InputError(f"{where} has {names} among the correct answers and among the wrong ones.")
