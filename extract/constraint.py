"""The pace of sparse post-training: what an open gate costs, by how much worse than the dense model a student is.

Each kind of text has an excess (`Recipe`), smoothed over some steps, and a bound on it. The kind that is nearest to its
bound decides:

    headroom = min over kinds of (allowed - excess) / allowed,   cut to [-1, 1]
    cost    <- cost * exp(0.02 headroom)                          (slow)
    price    = cost * clip(1/2 + 2 headroom, 0, 1)                (at once)
    pace     = min(1, 2 |headroom|)

The price of an open share of 1 is what the loss has for it. Steps of Adam are of one size whatever the price, so the
learning rate of the gates' biases is multiplied by the pace. So gates are closed no faster than the loss can bear: the
nearer a kind is to its bound the slower, and from a quarter beyond it on they cost nothing, and are free to open again.
Kinds beyond their bounds also count more in the loss.

The excess is seen on the documents of a step, without noise. On these a student may become better than on others: the
gap to held-out text, as last seen there, is added.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .recipe import Recipe

_SMOOTHING = 0.95
_PATIENCE = 100
"""Steps without a price after which an excess that still grows is not the gates' doing,"""
_RUIN = 0.05
"""if it has grown by so much since; or by slack and bound together, if these are more."""
_PACE = 0.02
_LEAST, _MOST = 0.02, 25.0
"""Costs of an open share of 1; the most is times the weight of the loss, which is 1 + distill."""
_LEAST_ALLOWED = 1e-3


class Constraint:
    """What an open gate costs, and how much each kind of text counts."""

    def __init__(self, recipe: Recipe, kinds: Sequence[str]) -> None:
        self._recipe, self._kinds = recipe, list(kinds)
        self._cost = recipe.cost
        self._gap = torch.zeros(len(kinds))
        self._excess: Tensor | None = None
        self._beyond = torch.zeros(len(kinds))
        self._excess_then = torch.zeros(len(kinds))  # when open gates last began to cost nothing
        self.price = recipe.cost
        self.pace = 1.0
        """What the learning rate of the biases is multiplied by."""
        self.free_for = 0
        """Steps for which open gates have cost nothing, until now."""
        self.weights = torch.ones(len(kinds))
        """How much each kind counts in the loss, 1 on average, [kind]."""

    def update(self, excess: Tensor, step: int) -> None:
        """Take in the excess of a step, by kind; NaN where it is not known."""
        before = excess.nan_to_num(0.0) if self._excess is None else self._excess
        self._excess = torch.where(excess.isnan(), before, _SMOOTHING * before + (1 - _SMOOTHING) * excess)
        allowed = torch.tensor(
            [max(self._recipe.allowed_at(step, kind), _LEAST_ALLOWED) for kind in self._kinds]
        )
        now = self._excess + self._gap
        beyond = self._beyond = (now - allowed) / allowed
        headroom = -float(beyond.max().clamp(-1, 1))
        most = _MOST * (1 + self._recipe.distill)
        self._cost = min(max(self._cost * math.exp(_PACE * headroom), _LEAST), most)
        self.price = self._cost * min(max(0.5 + 2 * headroom, 0.0), 1.0)
        self.pace = min(1.0, 2 * abs(headroom))
        self.weights = beyond.clamp(-1, 1.5).exp()
        self.weights /= self.weights.mean()
        if self.price:
            self.free_for = 0
        else:
            self._excess_then = self._excess_then if self.free_for else now
            self.free_for += 1

    def held_out(self, excess: Tensor) -> None:
        """Take in the excess on held-out text, by kind."""
        if self._excess is not None:
            self._gap = (self._gap + excess - self._excess) / 2

    def excess_of(self, kind: str) -> float:
        """The smoothed excess of a kind, with its gap to held-out text; NaN before the first step."""
        return (
            math.nan if self._excess is None else float((self._excess + self._gap)[self._kinds.index(kind)])
        )

    @property
    def ruined(self) -> str | None:
        """The kind whose excess goes on growing though open gates have long cost nothing, if any does.

        A control has no gates that could do it harm: there it is a kind whose excess is no number.
        """
        if self._excess is None:
            return None
        broken = ~self._excess.isfinite()
        if broken.any():
            return self._kinds[int(broken.int().argmax())]
        if self._recipe.control:
            return None
        grown = (self._excess + self._gap - self._excess_then).where(self._beyond > 0, -math.inf)
        worst = int(grown.argmax())
        much = max(_RUIN, self._recipe.slack + self._recipe.bound(self._kinds[worst]))
        return self._kinds[worst] if self.free_for >= _PATIENCE and float(grown[worst]) > much else None

    def state(self) -> dict[str, Any]:
        """All that it needs to go on."""
        return {
            "excess": self._excess,
            "gap": self._gap,
            "weights": self.weights,
            "then": self._excess_then,
            "numbers": [self._cost, self.price, self.pace, self.free_for],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._excess = None if state["excess"] is None else state["excess"].cpu()
        self._gap, self.weights, self._excess_then = (
            state[name].cpu() for name in ("gap", "weights", "then")
        )
        self._cost, self.price, self.pace, self.free_for = state["numbers"]
