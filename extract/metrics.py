"""Metrics: how much a model prefers the correct answers, from what its last norm gives at the last position.

    logit_diff = logsumexp(logits of the correct) - logsumexp(logits of the wrong)
    prob_diff  = p(correct) - p(wrong), each summed over its answers
    kl         = KL(clean distribution || distribution), over the whole vocabulary

`logit_diff` needs the answers' rows of the unembedding only, and multiplies them in float32; the others take the
model's own logits, which half precision rounds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

METRICS = ("logit_diff", "prob_diff", "kl")


class Metric:
    """A metric on a batch of prompts: call it on final states [row, d_model], get [row]."""

    def __init__(
        self,
        name: str,
        unembed: nn.Module,
        correct: Sequence[Sequence[int]],
        wrong: Sequence[Sequence[int]],
        device: torch.device,
    ) -> None:
        self._name, self._unembed = name, unembed
        self._answers = [_padded(ids, device) for ids in (correct, wrong)]
        self._clean: Tensor | None = None

    @property
    def needs_clean(self) -> bool:
        """Whether it has to be told what the clean run gave: `kl` is measured from it."""
        return self._name == "kl"

    def set_clean(self, state: Tensor) -> None:
        """Say what the clean run gave."""
        if self.needs_clean:
            self._clean = self._logits(state.detach()).log_softmax(-1)

    def __call__(self, state: Tensor, prompt: Tensor | None = None) -> Tensor:
        """The metric in float32. `prompt` says whose state each row is; without it, rows are the prompts in order.

        A batch of one prompt takes any number of its states.
        """
        own = slice(None) if prompt is None else prompt
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
        weight: Tensor = self._unembed.weight  # type: ignore[assignment]
        correct, wrong = (
            # [row, answer, d_model] . [row, d_model]
            (weight[ids[own]].float() @ state.float()[..., None])[..., 0]
            .masked_fill(~real[own], -torch.inf)
            .logsumexp(-1)
            for ids, real in self._answers
        )
        return correct - wrong

    def _logits(self, state: Tensor) -> Tensor:
        return self._unembed(state).float()


def _padded(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Answers [prompt, answer] and which of them are real."""
    longest = max(map(len, ids))
    rows = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids], device=device)
    real = torch.tensor([[i < len(row) for i in range(longest)] for row in ids], device=device)
    return rows, real
