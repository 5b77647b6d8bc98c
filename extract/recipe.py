"""The recipe of sparse post-training: how long, how fast, and how far from the dense model a student may get."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import InputError

_DECAY = 0.8
"""Share of the steps, the last ones, over which learning rates and slack go to zero."""
_WARM_UP = 30


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a sparse twin. The *excess* of a kind of text is how much worse than the dense model a student is.

    It is the growth of the cross-entropy or, for kinds that are `divergent`, the divergence of the student's
    predictions from the dense model's; in nats a token either way.
    """

    steps: int = 3_000
    epsilon: float = 0.01
    """Largest excess of a finished model, on held-out text of each kind."""
    epsilons: Mapping[str, float] = field(default_factory=dict)
    """The same for single kinds."""
    divergent: tuple[str, ...] = ()
    """Kinds whose excess is the divergence, beside those of tasks: narrow ones, whose cross-entropy falls by learning
    them."""
    slack: float = 0.1
    """Excess beyond half of that while gates are being closed. Weights get used to closed gates only while these are
    closed, and high learning rates have a price of their own, so a bound that is kept all the time keeps many gates
    open. Both go to zero over the last four fifths of the steps."""
    batch_size: int = 32
    """Documents a step and process, the same number of each kind."""
    accumulate: int = 1
    """Parts that a step's documents are run in, one after the other, sorted by length (gradient accumulation)."""
    positions: int | None = None
    """Predictions a step that the loss is of, drawn at random; None: as many as make 2^25 logits."""
    context: int = 256
    """Tokens a document at most."""
    learning_rate: float | None = None
    """None: what a range test finds."""
    gate_rate: float = 0.02
    """Learning rate of the gates' biases."""
    closed: float = 0.05
    """Share of the attention of each head that its gates are expected to cut off at first; sets the first biases."""
    cost: float = 1.0
    """Price of an open share of 1 at first, in nats."""
    distill: float = 1.0
    """Weight of the divergence from the dense model's predictions beside the cross-entropy."""
    lora: int | None = None
    """Rank of the low-rank adapters that are trained instead of all weights, and merged at the end."""
    control: bool = False
    """Whether to train without gates: what the result does otherwise than the dense model is due to more training. The
    learning rate has to be that of the twin's training: a range test without gates would find another."""
    evaluate_every: int = 100
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Share of the learning rates that a step has: all, but for the first ones and the last."""
        return min(1.0, (step + 1) / _WARM_UP, self.left_at(step))

    def left_at(self, step: int) -> float:
        """1 until the last steps begin, 0 at their end."""
        return min(1.0, (self.steps - step) / (_DECAY * self.steps))

    def bound(self, kind: str) -> float:
        """Largest excess of a finished model on held-out text of a kind."""
        return self.epsilons.get(kind, self.epsilon)

    def allowed_at(self, step: int, kind: str) -> float:
        """Excess that a kind may have as yet; half of the bound at the end, so that held-out text keeps all of it."""
        return self.bound(kind) / 2 + self.slack * self.left_at(step)

    def check(self) -> None:
        """Refuse what makes no sense."""
        for name, value in {"": self.epsilon, **self.epsilons}.items():
            if not 0 <= value < math.inf:
                raise InputError(
                    f"--epsilon {name + '=' if name else ''}{value} is no number from 0: the sparse model may be worse "
                    "than the dense one by epsilon nats a token; 0.01 is usual."
                )
        for name in ("steps", "batch_size", "accumulate", "positions", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}: it must be at least 1.")
        if self.context < 2:
            raise InputError(f"--context {self.context} leaves nothing to predict: it must be at least 2.")
        if self.lora is not None and self.lora < 1:
            raise InputError(f"--lora {self.lora} is no rank: it must be at least 1.")
        for name in ("slack", "distill", "gate_rate", "cost"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"--{name.replace('_', '-')} is {value}: it must be a number from 0.")
        if self.learning_rate is not None and not 0 <= self.learning_rate < 1:
            raise InputError(f"--learning-rate {self.learning_rate} is no learning rate: 1e-4 is one.")
        if self.control and self.learning_rate is None:
            raise InputError(
                "A control is trained at the learning rate of its twin: give --learning-rate, the one that the twin's "
                "training said, or that its sparsify.json has as learning_rate."
            )
        if not 0 < self.closed < 1:
            raise InputError(f"closed is {self.closed}: it is a share of the attention, between 0 and 1.")

    def check_kinds(self, kinds: Iterable[str]) -> None:
        """Refuse bounds of kinds of text that there are not."""
        there = list(kinds)
        for option, named in (("--epsilon", self.epsilons), ("--divergence", self.divergent)):
            if unknown := [kind for kind in named if kind not in there]:
                raise InputError(
                    f"{option} names '{unknown[0]}', but the kinds of text are {', '.join(there)}."
                )
