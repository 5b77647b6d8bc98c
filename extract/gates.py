"""Gates in training: what makes attention sparse.

A gated head lets query i read key j only where its gate is open. The gate is made of the attention's own logit and a
bias that the head learns, so a dense model needs no new weights but one number a head:

    gate_ij = [ l_ij + b > 0 ]         l_ij = q_i.k_j * scaling

In training the gate is drawn: logistic noise is added to its logit, so that it is open with probability
``sigmoid(l_ij + b)``. Its gradient is that of the sigmoid of the noisy logit (straight-through). What is to become
small is the expected share of open gates, the mean of these probabilities over all pairs that attention may use.
Some documents are read without noise: the gates are then those of the finished model, and so is its loss.
"""

from typing import Any

import torch
from torch import Tensor, nn


class _Drawn(torch.autograd.Function):
    """1 where a logit is above 0, else 0; its gradient is that of the sigmoid."""

    @staticmethod
    def forward(context: Any, logit: Tensor) -> Tensor:
        """Keep the sigmoid alone: it is as large as all of the attention."""
        soft = torch.sigmoid(logit)
        context.save_for_backward(soft)
        return (logit > 0).to(logit.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (soft,) = context.saved_tensors
        return torch.ops.aten.sigmoid_backward(gradient, soft)


class Gates(nn.Module):
    """The gates of a model, one bias a head; it notes how many are open."""

    def __init__(self, biases: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(biases.float().clone())  # [layer, head]
        self._real: Tensor
        self._noisy: Tensor
        self._open: list[Tensor] = []
        self._pairs: list[Tensor] = []

    def begin(self, real: Tensor, noisy: Tensor) -> None:
        """Begin a pass; `real` [prompt, position] tells tokens from padding, `noisy` [prompt] where to draw."""
        self._real, self._noisy, self._open, self._pairs = real, noisy, [], []

    def forward(self, layer: int, logits: Tensor, allowed: Tensor) -> Tensor:
        """The gates of a layer, [prompt, head, query, key], each 0 or 1; in training they have a gradient."""
        logit = logits.float() + self.bias[layer][:, None, None]
        counted = allowed & self._real[:, None, :, None]  # [prompt, 1, query, key]
        probability = torch.sigmoid(logit) if self.training else (logit > 0).float()
        self._open.append((probability.sum(1, keepdim=True) * counted).sum())
        self._pairs.append(counted.sum() * logit.shape[1])
        if not self.training:
            return probability.to(logits.dtype)
        return _Drawn.apply(logit + self._noise(logit)).to(logits.dtype)

    def _noise(self, logit: Tensor) -> Tensor:
        """Logistic, for the noisy documents; nothing is drawn for the others."""
        noise = torch.zeros_like(logit)
        noise[self._noisy] = torch.rand_like(logit[self._noisy]).logit_(eps=1e-6)
        return noise

    def counts(self) -> tuple[Tensor, Tensor]:
        """How many gates were open in the last pass, in training the expected number, and how many there were."""
        return torch.stack(self._open).sum(), torch.stack(self._pairs).sum()

    def biases(self) -> list[list[float]]:
        """As a config keeps them, [layer][head]."""
        return self.bias.detach().cpu().double().tolist()


class FirstBiases(nn.Module):
    """Stands in for gates in one pass of a dense model, and finds biases with which they are all but open.

    A head's bias is where its gates are expected to cut off a given share of its attention,

        sum_ij p_ij (1 - sigmoid(l_ij + b)) / sum_ij p_ij = closed,

    found by bisection. Heads differ in the size of their logits, so one number for all of them would leave some closed
    from the start and others open for long.
    """

    _STEPS = 40
    _FURTHEST = 100.0

    def __init__(self, layers: int, heads: int, closed: float, real: Tensor) -> None:
        super().__init__()
        self.found = torch.zeros(layers, heads)
        self._closed, self._real = closed, real

    def forward(self, layer: int, logits: Tensor, allowed: Tensor) -> Tensor:
        """All gates open, [prompt, head, query, key]."""
        gates = torch.ones_like(logits)
        logits = logits.float()
        counted = allowed & self._real[:, None, :, None]
        pattern = logits.masked_fill(~allowed, -torch.inf).softmax(-1) * counted
        total = pattern.sum((0, 2, 3))
        low = torch.full_like(total, -self._FURTHEST)
        high = -low
        for _ in range(self._STEPS):
            middle = (low + high) / 2
            cut = (pattern * torch.sigmoid(-logits - middle[:, None, None])).sum((0, 2, 3)) / total
            low, high = (
                torch.where(cut < self._closed, low, middle),
                torch.where(cut < self._closed, middle, high),
            )
        self.found[layer] = high.cpu()
        return gates
