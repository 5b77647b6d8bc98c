"""How well a model does a task: whether it is right about a prompt, and by what it gives to right and wrong answers.

It is *right* if it gives the correct answers together more than the wrong ones (`logit_diff` above 0); where no wrong
ones are named, if the likeliest of all tokens is a correct answer. The *rank* of an answer is the place of its first
token among all tokens, 1 for the likeliest; a prompt has that of its best correct answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import nan

import torch
from torch import Tensor

from ..data import Prompt
from .metrics import Metric
from .parts import Parts, matrix

_PROMPTS_AT_A_TIME = 32
_LOGITS_AT_A_TIME = 1 << 22


@dataclass(frozen=True)
class Accuracy:
    """Of a model on a task."""

    accuracy: float
    """The share of prompts on which it is right."""
    top1: float
    """The share of prompts whose likeliest next token, of all tokens, is a correct answer."""
    prob_diff: float
    """The mean probability of correct answers less that of wrong ones."""


@torch.no_grad()
def accuracy(parts: Parts, prompts: Sequence[Prompt]) -> Accuracy:
    """Run a model on clean prompts that name right and wrong answers, of one token each."""
    sums = torch.zeros(3)
    by_length = sorted(prompts, key=lambda prompt: len(prompt.clean_ids))
    for _, same in groupby(by_length, key=lambda prompt: len(prompt.clean_ids)):
        own = list(same)
        for first in range(0, len(own), _PROMPTS_AT_A_TIME):
            some = own[first : first + _PROMPTS_AT_A_TIME]
            state = _last(parts, some)
            right, rank = judge(parts, state, some, [range(i, i + 1) for i in range(len(some))])
            difference = Metric("prob_diff", parts.unembed, some, state.device)(state)
            sums += torch.stack([right.sum(), (rank == 1).sum(), difference.sum()]).cpu()
    found, top1, prob_diff = (sums / len(prompts)).tolist()
    return Accuracy(found, top1, prob_diff)


@torch.no_grad()
def judge(
    parts: Parts, state: Tensor, prompts: Sequence[Prompt], contexts: Sequence[range]
) -> tuple[Tensor, Tensor]:
    """Whether a model is right (1) or wrong (0) about prompts, and its ranks, from final states [context, d_model].

    `contexts` are those of each prompt, itself first. Where there are none but that, answers count by their first
    token. Both are NaN for a prompt that names no answers.
    """
    rank = state.new_full((len(prompts),), nan, dtype=torch.float32)
    named = [i for i, prompt in enumerate(prompts) if prompt.correct_ids]
    if named:
        ends = state[[contexts[i][0] for i in named]]
        rank[named] = _ranks(parts, ends, [prompts[i].correct_ids for i in named])
    right = torch.where(rank.isnan(), rank, (rank == 1).float())
    against = [i for i in named if prompts[i].wrong_ids]
    if against:
        compared = [prompts[i] if len(contexts[i]) > 1 else _first_tokens(prompts[i]) for i in against]
        metric = Metric("logit_diff", parts.unembed, compared, state.device)
        right[against] = (metric(state[[own for i in against for own in contexts[i]]]) > 0).float()
        alike = [
            i for i, one in zip(against, compared, strict=True) if {*one.correct_ids} == {*one.wrong_ids}
        ]
        right[[i for i in alike if len(contexts[i]) == 1]] = nan  # first tokens do not tell answers apart
    return right, rank


def _first_tokens(prompt: Prompt) -> Prompt:
    correct, wrong = (
        tuple((token,) for token in dict.fromkeys(ids)) for ids in (prompt.correct_ids, prompt.wrong_ids)
    )
    return replace(prompt, correct_answers=correct, wrong_answers=wrong)


def _ranks(parts: Parts, state: Tensor, answers: Sequence[Sequence[int]]) -> Tensor:
    """The place of the best of its answers among all tokens, for each row: [row]; a few rows of logits at a time."""
    longest = max(map(len, answers))
    ids = torch.tensor([[*some, *[some[0]] * (longest - len(some))] for some in answers], device=state.device)
    rows = max(1, _LOGITS_AT_A_TIME // matrix(parts.unembed).shape[1])
    found = []
    for some, own in zip(state.split(rows), ids.split(rows), strict=True):
        logits = parts.unembed(some)  # [row, token]
        best = logits.gather(-1, own).amax(-1, keepdim=True)
        found.append((logits > best).sum(-1) + 1)
    return torch.cat(found).float()


def _last(parts: Parts, prompts: Sequence[Prompt]) -> Tensor:
    """Final states [prompt, d_model] at the last position of prompts of one length."""
    device = next(parts.base.parameters()).device
    ids = torch.tensor([prompt.clean_ids for prompt in prompts], device=device)
    state: Tensor = parts.base(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
    return state
