"""Text to train on, as token ids.

A file is one kind of text, named after it. ``.jsonl`` has a document a line, ``{"text": "..."}``; longer ones are cut.
Any other file is one text, and cut into stretches of equal length. A file is read whole, so it has a bound.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from .files import read_bounded_text
from .prompts import Encode, Prompt

Documents = list[tuple[int, ...]]

_MOST = 1 << 30


def read_documents(file: Path | str, encode: Encode, context: int) -> Documents:
    """The documents of a file, as token ids, each of 2 to `context` tokens."""
    path = Path(file)
    try:
        text = read_bounded_text(path, _MOST)
    except FileNotFoundError as error:
        raise InputError(f"There is no text '{file}'.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{file}' cannot be read as text: {error}.") from error
    if path.suffix == ".jsonl":
        lines = (line for line in enumerate(text.split("\n"), 1) if line[1].strip())
        found = [part for line in lines for part in _cut(encode(_document(*line, file)), context)]
        documents = [document for document in found if len(document) > 1]
        if not documents:
            raise InputError(f'\'{file}\' has no documents: it needs a line {{"text": "..."}} for each.')
        return documents
    ids = encode(text)
    if len(ids) < context:
        raise InputError(
            f"'{file}' has {len(ids)} tokens, fewer than one stretch of {context}: give more text, or a smaller "
            "--context."
        )
    return _cut(ids[: len(ids) - len(ids) % context], context)


def task_documents(prompts: Sequence[Prompt]) -> Documents:
    """Clean prompts, each followed by one of its right answers, in turns."""
    return [
        (*prompt.clean_ids, *prompt.correct_answers[i % len(prompt.correct_answers)])
        for i, prompt in enumerate(prompts)
    ]


def _document(number: int, line: str, file: Path | str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Line {number} of '{file}' is not JSON: {error}.") from error
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise InputError(f'Line {number} of \'{file}\' is no document: write {{"text": "..."}}.')
    text: str = record["text"]
    return text


def _cut(ids: Sequence[int], context: int) -> Documents:
    return [tuple(ids[first : first + context]) for first in range(0, len(ids), context)]
