"""What a student and its dense model predict at some positions: cross-entropies, their divergence, and the gradient.

With a large vocabulary the logits are most of the work and nearly all of the memory of a training step. So the loss is
of some positions of a step, drawn at random: its mean over them is the mean over all in expectation. And logits are
made a few rows at a time, each gone before the next. With p of the student and p' of the dense model,

    loss = a CE + b KL(p' || p)        d loss / d logits = (a + b) p - b p' - a [token]

is known in closed form, so the gradient at the final states is made in the same go, and nothing else is kept. The
unembedding gets no gradient: it is not trained.
"""

from typing import Any

import torch
from torch import Tensor

_LOGITS_AT_A_TIME = 1 << 22


def drawn_positions(counted: Tensor, kind: Tensor, most: int, kinds: int) -> Tensor:
    """Of the predictions that there are, [document, position - 1], at most so many, an equal share for each kind.

    Of a kind each prediction is as likely to be among them as any other.
    """
    if int(counted.sum()) <= most:
        return counted
    chosen = torch.zeros_like(counted)
    for number in range(kinds):
        places = (counted & (kind == number)[:, None]).nonzero()
        some = places[torch.randperm(len(places), device=places.device)[: max(1, most // kinds)]]
        chosen[some[:, 0], some[:, 1]] = True
    return chosen


class Compared(torch.autograd.Function):
    """The weighted loss of a student at some positions, summed over them, and what it consists of.

    From final states [position, d_model] of the student and of the dense model, the unembedding [token, d_model], the
    tokens that come next, and the weights of cross-entropy and divergence, [position] each, to the loss, and without
    gradients the student's cross-entropy, the dense model's, and the divergence, [position] each.
    """

    @staticmethod
    def forward(
        context: Any,
        student: Tensor,
        dense: Tensor,
        unembedding: Tensor,
        tokens: Tensor,
        entropy_weight: Tensor,
        divergence_weight: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Make logits a few rows at a time, and the gradient at the student's states with them."""
        rows = max(1, _LOGITS_AT_A_TIME // len(unembedding))
        found, gradients = [], []
        for own, other, token, a, b in zip(
            *(x.split(rows) for x in (student, dense, tokens, entropy_weight, divergence_weight)), strict=True
        ):
            logs = (own @ unembedding.T).float().log_softmax(-1)  # [row, token]
            dense_logs = (other @ unembedding.T).float().log_softmax(-1)
            chances, at = dense_logs.exp(), token[:, None]
            found.append(
                torch.stack(
                    [
                        -logs.gather(1, at)[:, 0],
                        -dense_logs.gather(1, at)[:, 0],
                        torch.linalg.vecdot(chances, dense_logs - logs),
                    ]
                )
            )
            if not context.needs_input_grad[0]:
                continue
            slope = logs.exp_().mul_((a + b)[:, None]).addcmul_(chances, b[:, None], value=-1)
            slope.scatter_add_(1, at, -a[:, None])
            gradients.append(slope.to(unembedding.dtype) @ unembedding)
        own_entropy, dense_entropy, divergence = torch.cat(found, 1)
        if gradients:
            context.save_for_backward(torch.cat(gradients).to(student.dtype))
        context.mark_non_differentiable(own_entropy, dense_entropy, divergence)
        loss = (entropy_weight * own_entropy + divergence_weight * divergence).sum()
        return loss, own_entropy, dense_entropy, divergence

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient is there already."""
        (at_states,) = context.saved_tensors
        return gradient * at_states, None, None, None, None, None
