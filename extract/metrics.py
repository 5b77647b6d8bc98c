"""Metrics: how much a model prefers the correct answers, from what its last norm gives at last positions.

    logit_diff = logsumexp(log p of the correct) - logsumexp(log p of the wrong)
    prob_diff  = p(correct) - p(wrong), each summed over its answers
    kl         = KL(clean distribution || distribution) of the next token, over the whole vocabulary; takes no answers

An answer of several tokens has the probability that the model gives to all of them, each after the prompt and those
before it:

    log p(a_1 .. a_n) = sum over t of log p(a_t | prompt, a_1 .. a_t-1)

What a token is read after is a *context*: the prompt, and the beginning of an answer. Answers that begin alike share
contexts, and a prompt whose answers are one token each has one, itself. Each runs as a text of its own, of which the
last position matters alone, and the metric puts a prompt's contexts together.

Log-probabilities differ from logits by what is the same for all answers to one context. So where no prompt has more
than one, `logit_diff` needs the answers' rows of the unembedding only; it multiplies them in float32. All else takes
the model's own logits, which half precision rounds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..data import Answer, Prompt


def contexts_of(prompt: Prompt, metric: str) -> list[Answer]:
    """What follows a prompt in each of its contexts, the prompt itself first."""
    answers = () if metric == "kl" else (*prompt.correct_answers, *prompt.wrong_answers)
    begun = {(): None} | {answer[:end]: None for answer in answers for end in range(len(answer))}
    return list(begun)


def longest_context(prompt: Prompt, metric: str) -> int:
    """How many tokens a prompt's longest context has."""
    return len(prompt.clean_ids) + max(map(len, contexts_of(prompt, metric)))


class Metric:
    """A metric on a batch of prompts: call it on final states [context, d_model], get [prompt]."""

    def __init__(
        self, name: str, unembed: nn.Module, prompts: Sequence[Prompt], device: torch.device
    ) -> None:
        self._name, self._unembed, self._device = name, unembed, device
        contexts = [contexts_of(prompt, name) for prompt in prompts]
        self._counts = [len(own) for own in contexts]
        self._clean: Tensor | None = None
        self._steps: tuple[Tensor, Tensor, Tensor] | None = None
        if max(self._counts) > 1:
            self._steps = _steps(prompts, contexts, device)
        elif name != "kl":
            self._answers = [
                _padded(ids, device)
                for ids in ([p.correct_ids for p in prompts], [p.wrong_ids for p in prompts])
            ]

    @property
    def needs_clean(self) -> bool:
        """Whether it has to be told what the clean run gave: `kl` is measured from it."""
        return self._name == "kl"

    def set_clean(self, state: Tensor) -> None:
        """Say what the clean run gave."""
        if self.needs_clean:
            self._clean = self._logits(state.detach()).log_softmax(-1)

    def __call__(self, state: Tensor, prompts: Sequence[int] | None = None) -> Tensor:
        """The metric in float32. `prompts` says whose states they are, each with all its contexts.

        Without it, they are the prompts in order; a batch of one prompt takes its states any number of times.
        """
        if self._steps is not None:
            return self._of_contexts(state, *self._steps, prompts)
        own = slice(None) if prompts is None else torch.tensor(prompts, device=self._device)
        if self._name == "kl":
            assert self._clean is not None
            clean = self._clean[own]
            return (clean.exp() * (clean - self._logits(state).log_softmax(-1))).sum(-1)
        if self._name == "prob_diff":
            probabilities = self._logits(state).softmax(-1)
            correct, wrong = (
                (probabilities.gather(-1, ids[own].expand(len(state), -1)) * real[own]).sum(-1)
                for ids, real in self._answers
            )
            return correct - wrong
        correct, wrong = (
            # [row, answer, d_model] . [row, d_model]
            (self._weight[ids[own]].float() @ state.float()[..., None])[..., 0]
            .masked_fill(~real[own], -torch.inf)
            .logsumexp(-1)
            for ids, real in self._answers
        )
        return correct - wrong

    def _of_contexts(
        self, state: Tensor, context: Tensor, token: Tensor, real: Tensor, prompts: Sequence[int] | None
    ) -> Tensor:
        """The metric where answers have several tokens, which are [side, prompt, answer, token]."""
        if prompts is None:
            alone = len(self._counts) == 1
            prompts = [0] * (len(state) // self._counts[0]) if alone else range(len(self._counts))
        first = [0]
        for prompt in prompts[:-1]:
            first.append(first[-1] + self._counts[prompt])
        own = torch.tensor(prompts, device=self._device)
        at = context[:, own] + torch.tensor(first, device=self._device)[:, None, None]
        logits = (self._weight[token[:, own]].float() * state.float()[at]).sum(-1)
        steps = logits - self._logits(state).logsumexp(-1)[at]
        answers = steps.masked_fill(~real[:, own], 0).sum(-1)  # [side, row, answer]
        there = real[:, own, :, 0]
        if self._name == "prob_diff":
            correct, wrong = (answers.exp() * there).sum(-1)
        else:
            correct, wrong = answers.masked_fill(~there, -torch.inf).logsumexp(-1)
        return correct - wrong

    @property
    def _weight(self) -> Tensor:
        weight: Tensor = self._unembed.weight  # type: ignore[assignment]
        return weight

    def _logits(self, state: Tensor) -> Tensor:
        return self._unembed(state).float()


def _padded(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Answers [prompt, answer] and which of them are real."""
    longest = max(map(len, ids))
    rows = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids], device=device)
    real = torch.tensor([[i < len(row) for i in range(longest)] for row in ids], device=device)
    return rows, real


def _steps(
    prompts: Sequence[Prompt], contexts: Sequence[Sequence[Answer]], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """By token of each answer, [side, prompt, answer, token]: its context, itself, and whether it is real."""
    sides = [[prompt.correct_answers for prompt in prompts], [prompt.wrong_answers for prompt in prompts]]
    answers = [answer for side in sides for own in side for answer in own]
    shape = (2, len(prompts), max(len(own) for side in sides for own in side), max(map(len, answers)))
    context, token = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    real = torch.zeros(shape, dtype=torch.bool)
    for i, side in enumerate(sides):
        for j, own in enumerate(side):
            for k, answer in enumerate(own):
                after = [contexts[j].index(answer[:end]) for end in range(len(answer))]
                context[i, j, k, : len(answer)] = torch.tensor(after)
                token[i, j, k, : len(answer)] = torch.tensor(answer)
                real[i, j, k, : len(answer)] = True
    return context.to(device), token.to(device), real.to(device)
