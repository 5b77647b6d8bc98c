"""Gates in training: what makes attention sparse.

A gated head lets query i read key j only where its gate is open. The gate is made of the attention's own logit and a
bias that the head learns, so a dense model needs no new weights but one number a head:

    gate_ij = [ l_ij + b > 0 ]         l_ij = q_i.k_j * scaling

In training the gate is drawn: logistic noise is added to its logit, so that it is open with probability
``sigmoid(l_ij + b)``. Its gradient is that of the sigmoid of the noisy logit (straight-through). What is to become
small is the expected share of open gates, the mean of these probabilities over all pairs that attention may use.
Some documents are read without noise: the gates are then those of the finished model, and so is its loss.
"""

import torch
from torch import Tensor, nn


class Gates(nn.Module):
    """The gates of a model, one bias a head; it notes how many are open."""

    def __init__(self, layers: int, heads: int, bias: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((layers, heads), bias))
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
        counted = allowed & self._real[:, None, :, None]
        probability = torch.sigmoid(logit) if self.training else (logit > 0).float()
        self._open.append((probability * counted).sum())
        self._pairs.append(counted.expand_as(logit).sum())
        if not self.training:
            return probability.to(logits.dtype)
        noise = torch.rand_like(logit).logit_(eps=1e-6) * self._noisy[:, None, None, None]  # logistic
        soft = torch.sigmoid(logit + noise)
        return (soft + ((soft > 0.5).float() - soft).detach()).to(logits.dtype)

    def counts(self) -> tuple[Tensor, Tensor]:
        """How many gates were open in the last pass, in training the expected number, and how many there were."""
        return torch.stack(self._open).sum(), torch.stack(self._pairs).sum()

    def share(self) -> Tensor:
        """The share of gates that were open."""
        is_open, pairs = self.counts()
        return is_open / pairs

    def biases(self) -> list[list[float]]:
        """As a config keeps them, [layer][head]."""
        return self.bias.detach().cpu().double().tolist()
