"""Gates in training: what makes attention sparse.

A gated head lets query i read key j only where its gate is open. The gate is made of the attention's own logit and a
bias that the head learns, so a dense model needs no new weights but one number a head:

    z_i = sum_j p_ij g_ij v_j      p = softmax_j(l_ij),  g_ij = [ l_ij + b > 0 ],  l_ij = q_i.k_j * scaling

In training the gate is drawn: logistic noise is added to its logit, so that it is open with probability
``sigmoid(l_ij + b)``. Its gradient is that of the sigmoid of the noisy logit (straight-through). What is to become
small is the expected share of open gates, the mean of these probabilities over all pairs that attention may use.
Some documents are read without noise: the gates are then those of the finished model, and so is its loss.

The pairs of a long document are many more numbers than all else in a layer, and several are needed for each. So they
are made for one document at a time, at its own length, and again in the backward pass, noise included; none is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class _Document:
    """How one document of a batch is read."""

    length: int
    """Tokens; what comes after them is padding."""
    seed: int | None
    """Of the noise of its gates; None: they have none."""


class _GatedAttention(torch.autograd.Function):
    """z [document, head, position, d_head], 0 at padding, and the expected number of open gates (see above)."""

    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        allowed: Tensor,
        scaling: float,
        documents: Sequence[_Document],
    ) -> tuple[Tensor, Tensor]:
        context.save_for_backward(query, key, value, bias, allowed)
        context.scaling, context.documents = scaling, documents
        z, is_open = torch.zeros_like(query), []
        with torch.autocast(query.device.type, enabled=False):
            for one, document in enumerate(documents):
                own = slice(document.length)
                pairs = _Pairs(
                    query[one, :, own], key[one, :, own], bias, allowed[own, own], scaling, document
                )
                z[one, :, own] = (pairs.pattern * pairs.gate).to(value.dtype) @ value[one, :, own]
                is_open.append((torch.sigmoid(pairs.logit) * pairs.allowed).sum())
        return z, torch.stack(is_open).sum()

    @staticmethod
    def backward(context: Any, dz: Tensor, d_open: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, allowed = context.saved_tensors
        scaling = context.scaling
        d_query, d_key, d_value = (torch.zeros_like(x) for x in (query, key, value))
        d_bias = torch.zeros_like(bias)
        for one, document in enumerate(context.documents):
            own = slice(document.length)
            q, k, v, dz_own = (x[one, :, own] for x in (query, key, value, dz))  # [head, position, d_head]
            pairs = _Pairs(q, k, bias, allowed[own, own], scaling, document)
            weights = pairs.pattern * pairs.gate
            d_value[one, :, own] = weights.to(dz.dtype).mT @ dz_own
            d_weights = (dz_own @ v.mT).float()  # [head, query, key]
            through = weights * d_weights
            d_logits = through.addcmul_(pairs.pattern, through.sum(-1, keepdim=True), value=-1)
            d_gate = pairs.pattern * d_weights * _slope(pairs.noisy)
            d_gate += d_open * _slope(pairs.logit) * pairs.allowed
            d_bias += d_gate.sum((1, 2))
            d_logits += d_gate
            d_logits *= scaling
            d_query[one, :, own] = d_logits.to(k.dtype) @ k
            d_key[one, :, own] = d_logits.to(q.dtype).mT @ q
        return d_query, d_key, d_value, d_bias, None, None, None


class _Pairs:
    """The pairs of tokens of one document in a layer, each [head, query, key]."""

    def __init__(
        self, query: Tensor, key: Tensor, bias: Tensor, allowed: Tensor, scaling: float, document: _Document
    ) -> None:
        logits = (query @ key.mT).float() * scaling
        self.allowed = allowed
        self.pattern = logits.masked_fill(~allowed, -torch.inf).softmax(-1)
        self.logit = logits + bias[:, None, None]
        """The gate's."""
        self.noisy = self.logit if document.seed is None else self.logit + _noise(logits, document.seed)
        self.gate = self.noisy > 0


def _noise(like: Tensor, seed: int) -> Tensor:
    """Logistic."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.rand(like.shape, generator=generator, device=like.device).logit_(eps=1e-6)


def _slope(logit: Tensor) -> Tensor:
    """The derivative of the sigmoid."""
    soft = torch.sigmoid(logit)
    return soft * (1 - soft)


class Gates(nn.Module):
    """The gates of a model, one bias a head; it notes how many are open."""

    def __init__(self, biases: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(biases.float().clone())  # [layer, head]
        self._never_close = bool((biases == torch.inf).all())
        self._documents: list[_Document] = []
        self._open: list[Tensor] = []
        self._pairs: list[Tensor] = []

    def begin(self, real: Tensor, noisy: Tensor) -> None:
        """Begin a pass; `real` [document, position] tells tokens from padding, `noisy` [document] where to draw."""
        seeds = torch.randint(2**62, (len(real),))
        self._documents = [
            _Document(length, seed if drawn else None)
            for length, seed, drawn in zip(real.sum(1).tolist(), seeds.tolist(), noisy.tolist(), strict=True)
        ]
        self._open, self._pairs = [], []

    def forward(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scaling: float
    ) -> Tensor:
        """Attention through the gates, z [document, head, position, d_head]; in training they have a gradient.

        Queries, keys and values are [document, head, position, d_head]; `allowed` [query, key] is what attention may
        use.
        """
        bias, heads = self.bias[layer], query.shape[1]
        query, key = query.to(value.dtype), key.to(value.dtype)
        self._pairs.append(
            torch.stack([allowed[: own.length, : own.length].sum() * heads for own in self._documents]).sum()
        )
        if self._never_close:  # plain attention, then, for which there are kernels
            self._open.append(self._pairs[-1])
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=allowed, scale=scaling
            )
        if self.training:
            documents = [
                own if own.seed is None else _Document(own.length, own.seed + layer)
                for own in self._documents
            ]
            z, is_open = _GatedAttention.apply(query, key, value, bias, allowed, scaling, documents)
            self._open.append(is_open)
            return z
        z = torch.zeros_like(query)
        for one, document in enumerate(self._documents):
            own = slice(document.length)
            pairs = _Pairs(
                query[one, :, own],
                key[one, :, own],
                bias,
                allowed[own, own],
                scaling,
                _Document(document.length, None),
            )
            z[one, :, own] = (pairs.pattern * pairs.gate).to(value.dtype) @ value[one, :, own]
            self._open.append((pairs.gate & pairs.allowed).sum())
        return z

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
