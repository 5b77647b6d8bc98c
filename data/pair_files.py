"""Files of prompt pairs: one a line as JSON, a list in JSON, or a table.

    {"clean": "...", "corrupted": "...", "correct": [" Mary"], "wrong": [" John"]}
    {"clean_ids": [5, 9], "corrupted_ids": [7, 9], "correct_ids": [3], "wrong_ids": [4, [6, 2]]}

Token ids of an answer of several tokens are a list of their own. A `.json` file is a list of such objects. A `.csv`
file has columns of these names; several answers in a cell are separated by `|`, or a JSON list, as token ids always
are. `-` is standard input, in any of these forms. Places in errors are lines of the file, counted from 1.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError
from .files import read_bounded
from .prompts import IDS, TEXT, Answer, Pair, Prompt, TextPair, begun, refuse, shown

_EXAMPLE = '{"clean": "...", "corrupted": "...", "correct": [" Mary"], "wrong": [" John"]}'
_MOST_BYTES = 1 << 28
"""Of a file of prompts; what is longer, or never ends, is none."""


def read_pairs(file: Path | str, limit: int | None = None) -> list[Pair]:
    """Read pairs from a file, or the first of them; all that are no pairs are one error, with their lines."""
    found = scan_pairs(file, limit).values()
    refuse([pair for pair in found if isinstance(pair, InputError)], len(found))
    return [pair for pair in found if not isinstance(pair, InputError)]


def scan_pairs(file: Path | str, limit: int | None = None) -> dict[str, Pair | InputError]:
    """What a file has, by place, such as "line 7 of 'pairs.jsonl'": a pair, or what is wrong with it."""
    name = "standard input" if str(file) == "-" else f"'{file}'"
    found: dict[str, Pair | InputError] = {}
    for place, record in _records(_content(file, name), Path(file).suffix.lower()):
        if len(found) == limit:
            break
        where = f"{place} of {name}"
        try:
            found[where] = _pair(record, where)
        except InputError as error:
            found[where] = error
    if not found:
        raise InputError(f"{begun(name)} has no prompts: it needs a JSON object a line, such as {_EXAMPLE}")
    return found


def _content(file: Path | str, name: str) -> str:
    """The text of a file, of which no more is read than a file of prompts can have."""
    try:
        if str(file) == "-":
            content = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            content = read_bounded(file, _MOST_BYTES, pipes=True)
        if len(content) > _MOST_BYTES:
            raise InputError(
                f"{begun(name)} has more than {_MOST_BYTES >> 20} MB, too much for prompts: is it the right file?"
            )
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"There is no file {name} with prompts.") from error
    except (OSError, ValueError) as error:  # a path may have a null character
        if isinstance(error, InputError):
            raise
        raise InputError(f"{begun(name)} cannot be read as prompts: {error}.") from error


def _records(text: str, suffix: str) -> Iterator[tuple[str, Any]]:
    """Places and what is there, or the error that it is; the form is that of the suffix, or what it looks like."""
    begin = text.lstrip()[:1]
    if suffix == ".csv" or (suffix not in (".json", ".jsonl") and begin not in ("", "[", "{")):
        return _rows(text)
    if suffix != ".jsonl" and begin == "[":
        return _items(text)
    return _lines(text)


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"line {number}", _decoded(line)


def _items(text: str) -> Iterator[tuple[str, Any]]:
    """The items of a list in JSON; the first thing that is not JSON is the last."""
    space, decoder = re.compile(r"\s*"), json.JSONDecoder()

    def after_space(at: int) -> int:
        return space.match(text, at).end()  # type: ignore[union-attr] # it always matches

    at, line, counted = text.index("[") + 1, 1, 0
    number = 0
    while (at := after_space(at)) < len(text) and text[at] != "]":
        line, counted, number = line + text.count("\n", counted, at), at, number + 1
        place = f"item {number} (line {line})"
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield place, InputError(f"is not JSON: {_reason(error)}.")
            return
        yield place, record
        at = after_space(at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            break
    if text[at : at + 1] != "]" or text[at + 1 :].strip():
        line += text.count("\n", counted, at)
        yield f"line {line}", InputError("is not JSON: the list of pairs does not end as one, with ].")


def _rows(text: str) -> Iterator[tuple[str, Any]]:
    """The rows of a table, by its first row, which names the columns."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"line {line}", InputError(f"is not a row of a .csv file: {error}.")
            return
        if not any(row):
            continue
        if header is None:
            header = [name.strip() for name in row]
            if not any({*keys[:2]} <= {*header} for keys in (TEXT, IDS)):
                yield (
                    f"line {line}",
                    InputError(
                        f"does not name the columns of a .csv file: it needs {', '.join(TEXT)}, or {', '.join(IDS)}."
                    ),
                )
                return
        elif len(row) != len(header):
            yield (
                f"line {line}",
                InputError(f"has {len(row)} cells, and the first line names {len(header)} columns."),
            )
        else:
            yield f"line {line}", {name: _cell(name, cell) for name, cell in zip(header, row, strict=True)}


def _cell(name: str, cell: str) -> Any:
    """A cell as JSON would have it."""
    if name in IDS or (name in TEXT[2:] and cell.startswith("[")):
        return _decoded(cell) if cell.strip() else []
    if name in TEXT[2:]:
        return cell.split("|") if cell else []
    return cell


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return InputError(f"is not JSON: {_reason(error)}.")


def _reason(error: Exception) -> str:
    """What a decoder says, without the place in what it was given, which is not that in the file."""
    return str(error).partition(": line ")[0]


def _pair(record: Any, where: str) -> Pair:
    if isinstance(record, InputError):
        raise InputError(f"{begun(where)} {record}")
    if isinstance(record, dict):
        for key, value in record.items():
            if isinstance(value, InputError):
                raise InputError(f"'{key}' in {where} {value}")
        if record.keys() >= {*IDS} or (record.keys() >= {*IDS[:2]} and not record.keys() >= {*TEXT[:2]}):
            return Prompt(
                clean_ids=_ids(record["clean_ids"], "clean_ids", where),
                corrupted_ids=_ids(record["corrupted_ids"], "corrupted_ids", where),
                correct_answers=_answers(record.get("correct_ids"), "correct_ids", where),
                wrong_answers=_answers(record.get("wrong_ids"), "wrong_ids", where),
            )
        if record.keys() >= {*TEXT[:2]}:
            for key in TEXT[:2]:
                if not _is_text(record[key]):
                    raise InputError(f"'{key}' in {where} is {shown(record[key])}: it must be a text.")
            return TextPair(
                record["clean"],
                record["corrupted"],
                _texts(record.get("correct"), "correct", where),
                _texts(record.get("wrong"), "wrong", where),
            )
    raise InputError(
        f"{begun(where)} is not a pair of prompts: it needs {', '.join(TEXT)}, or {', '.join(IDS)}."
    )


def _ids(value: Any, key: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(item) is int for item in value):
        raise InputError(f"'{key}' in {where} is {shown(value)}: it must be a list of token ids.")
    return tuple(value)


def _answers(value: Any, key: str, where: str) -> tuple[Answer, ...]:
    """Answers as token ids, each one or a list of several; none where there is nothing."""
    answers = [] if value is None else value
    if isinstance(answers, list):
        answers = [answer if isinstance(answer, list) else [answer] for answer in answers]
        if all(answer and all(type(item) is int for item in answer) for answer in answers):
            return tuple(map(tuple, answers))
    raise InputError(
        f"'{key}' in {where} is {shown(value)}: it must be a list of answers, each a token id or a list of several."
    )


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(value, list) or not all(_is_text(item) and item for item in value):
        raise InputError(f"'{key}' in {where} is {shown(value)}: it must be a list of answers.")
    return tuple(value)


def _is_text(value: Any) -> bool:
    """Whether it is a string that can be written: JSON can name half a character, which no text has."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
