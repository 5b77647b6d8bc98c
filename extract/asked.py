"""What a call asks a model to be scored on: a file of prompts, or a task."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data import Prompt, TextPair, Vocabulary, check_task, encode_pairs, make_task, read_pairs
from ..graphs import InputError

_TASK_PROMPTS = 100


@dataclass(frozen=True)
class Asked:
    """Pairs of a file, or else a task's name and how many to make."""

    name: str
    pairs: Sequence[TextPair | Prompt] | None
    count: int
    seed: int | None
    """Of a task."""

    def encoded(self, vocabulary: Vocabulary) -> list[Prompt]:
        """The prompts, as a model reads them."""
        if self.pairs is not None:
            return encode_pairs(self.pairs, vocabulary)
        return make_task(self.name, vocabulary, self.count, self.seed or 0)


def ask(prompts: Path | str | None, task: str | None, limit: int | None, seed: int) -> Asked:
    """Read what can be read, and refuse what makes no sense, before anything is loaded."""
    if (prompts is None) == (task is None):
        raise InputError("Give either --task NAME or --prompts FILE: what the model is scored on.")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit} leaves no prompts.")
    if task is not None:
        check_task(task)
        return Asked(task, None, limit or _TASK_PROMPTS, seed)
    pairs = read_pairs(str(prompts), limit)
    return Asked(Path(str(prompts)).stem, pairs, len(pairs), None)
