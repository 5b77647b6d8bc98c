"""How well a model does a task: by its best guess, and by what it gives to right and wrong answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from ..data import Prompt
from .parts import Parts

_PROMPTS_AT_A_TIME = 32


@dataclass(frozen=True)
class Accuracy:
    """Of a model on a task."""

    accuracy: float
    """The share of prompts whose likeliest next token, of all tokens, is a right answer."""
    prob_diff: float
    """The mean probability of right answers less that of wrong ones."""


@torch.no_grad()
def accuracy(parts: Parts, prompts: Sequence[Prompt]) -> Accuracy:
    """Run a model on clean prompts."""
    guessed, differences = 0, 0.0
    by_length = sorted(prompts, key=lambda prompt: len(prompt.clean_ids))
    for _, same in groupby(by_length, key=lambda prompt: len(prompt.clean_ids)):
        own = list(same)
        for first in range(0, len(own), _PROMPTS_AT_A_TIME):
            some = own[first : first + _PROMPTS_AT_A_TIME]
            for prompt, chances in zip(some, _next(parts, some), strict=True):
                guessed += int(chances.argmax()) in prompt.correct_ids
                right, wrong = (
                    float(chances[list(ids)].sum()) for ids in (prompt.correct_ids, prompt.wrong_ids)
                )
                differences += right - wrong
    return Accuracy(guessed / len(prompts), differences / len(prompts))


def _next(parts: Parts, prompts: Sequence[Prompt]) -> Tensor:
    """The probabilities of the next token, [prompt, token], after prompts of one length."""
    device = next(parts.base.parameters()).device
    ids = torch.tensor([prompt.clean_ids for prompt in prompts], device=device)
    hidden = parts.base(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
    chances: Tensor = parts.unembed(hidden).float().softmax(-1)
    return chances
