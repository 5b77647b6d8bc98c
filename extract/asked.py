"""What a call asks a model to be scored on: a file of prompts, or a task."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..data import Pair, Prompt, Vocabulary, check_task, encode_pairs, make_task, scan_pairs
from ..errors import InputError
from .metrics import contexts_of
from .models import load_vocabulary
from .settings import Settings

_TASK_PROMPTS = 100


@dataclass(frozen=True)
class Asked:
    """Pairs of a file, by their places, or else a task's name and how many to make."""

    name: str
    pairs: Mapping[str, Pair | InputError] | None
    count: int
    seed: int | None
    """Of a task."""
    settings: Settings
    file: str | None = None
    """Where the pairs are from, as it was given."""

    def encoded(self, vocabulary: Vocabulary) -> list[Prompt]:
        """The prompts, as a model reads them."""
        if self.pairs is None:
            prompts = make_task(self.name, vocabulary, self.count, self.seed or 0)
        else:
            prompts = encode_pairs(
                self.pairs,
                vocabulary,
                metric=self.settings.metric,
                first_token=self.settings.first_token,
            )
        self._check_attention(prompts)
        return prompts

    def _check_attention(self, prompts: list[Prompt]) -> None:
        several = [
            i for i, prompt in enumerate(prompts) if len(contexts_of(prompt, self.settings.metric)) > 1
        ]
        if several and "attention" in self.settings.levels:
            where = list(self.pairs)[several[0]] if self.pairs else f"prompt {several[0]}"
            raise InputError(
                f"At the level 'attention' units are pairs of positions of one text, and an answer of several tokens "
                f"has several ({where}): choose --first-token, or leave the level out."
            )


def ask(
    model: str, prompts: Path | str | None, task: str | None, limit: int | None, seed: int, settings: Settings
) -> Asked:
    """Read what can be read, and refuse what makes no sense, before anything is loaded."""
    if (prompts is None) == (task is None):
        raise InputError("Give either --task NAME or --prompts FILE: what the model is scored on.")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit} leaves no prompts.")
    if not 0 <= seed < 1 << 63:
        raise InputError(f"The seed is {seed}: choose one from 0 to {(1 << 63) - 1}.")
    if task is not None:
        check_task(task)
        return Asked(task, None, limit or _TASK_PROMPTS, seed, settings)
    pairs = scan_pairs(str(prompts), limit)
    name = "stdin" if str(prompts) == "-" else Path(str(prompts)).stem
    asked = Asked(name, pairs, len(pairs), None, settings, str(prompts))
    if broken := {place: pair for place, pair in pairs.items() if isinstance(pair, InputError)}:
        vocabulary = None
        with suppress(InputError):  # whatever is wrong with the model, first the prompts
            vocabulary = load_vocabulary(model)
        found = asked if vocabulary else replace(asked, pairs=broken)
        found.encoded(vocabulary or Vocabulary(0, 0, None))
    return asked
