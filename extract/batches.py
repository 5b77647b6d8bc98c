"""What a step of sparse post-training reads: documents, in parts, and the predictions that its loss is of.

Of each kind of text a step has the same number of documents, drawn at random. Every other one is read without noise, as
the finished model would read it; in the next step these are the others. A step can be cut into parts that are run one
after the other: nothing but memory depends on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..data import Documents
from .predictions import drawn_positions
from .recipe import Recipe

_LOGITS_A_STEP = 1 << 25
_FIRST, _FIRST_TOKENS = 16, 256


@dataclass(frozen=True)
class Text:
    """One kind of text, as token ids."""

    train: Documents
    held_out: Documents


@dataclass(frozen=True)
class Part:
    """Some documents, padded to one length."""

    ids: Tensor
    """[document, position]."""
    real: Tensor
    """Whether a token is one, [document, position]."""
    kind: Tensor
    """The number of each document's kind, [document]."""
    noisy: Tensor
    """Whether its gates have noise, [document]."""
    drawn: Tensor
    """The predictions that count, [document, position - 1]."""

    @property
    def kinds_drawn(self) -> Tensor:
        """The number of the kind of each prediction that counts, [prediction]."""
        return self.each(self.kind)

    def each(self, values: Tensor) -> Tensor:
        """What a document has, [document], for each of its predictions that count, [prediction]."""
        return values[:, None].expand_as(self.drawn)[self.drawn]

    @property
    def pairs(self) -> int:
        """Pairs of a token with itself or one before it."""
        lengths = self.real.sum(1)
        return int((lengths * (lengths + 1) // 2).sum())


class Batches:
    """The batches of one of several processes."""

    def __init__(
        self,
        kinds: Mapping[str, Text],
        recipe: Recipe,
        vocabulary: int,
        *,
        process: int,
        processes: int,
        device: torch.device,
    ) -> None:
        self._kinds, self._recipe, self._device = list(kinds.values()), recipe, device
        self._process, self._processes = process, processes
        self._most = recipe.positions or max(1, _LOGITS_A_STEP // vocabulary)
        """Predictions of a step."""

    def of_step(self, step: int) -> list[Part]:
        """The parts of a step: sorted by length where they are several, so that few tokens are padding."""
        documents = self._drawn(step)
        noisy = [(i + step) % 2 == 0 for i in range(len(documents))]
        order = list(range(len(documents)))
        if self._recipe.accumulate > 1:
            order.sort(key=lambda i: len(documents[i][1]))
        cuts = np.array_split(order, min(self._recipe.accumulate, len(order)))
        parts = [self._part([documents[i] for i in cut], [noisy[i] for i in cut]) for cut in cuts]
        longest = max(part.drawn.shape[1] for part in parts)
        chosen = drawn_positions(
            torch.cat([pad(part.drawn, (0, longest - part.drawn.shape[1])) for part in parts]),
            torch.cat([part.kind for part in parts]),
            self._most,
            len(self._kinds),
        ).split([len(part.ids) for part in parts])
        return [
            Part(part.ids, part.real, part.kind, part.noisy, own[:, : part.drawn.shape[1]])
            for part, own in zip(parts, chosen, strict=True)
        ]

    def held_out(self) -> Iterator[Part]:
        """This process's share of what is held out, without noise; all of its predictions count."""
        size = max(1, self._recipe.batch_size // self._recipe.accumulate)
        for number, text in enumerate(self._kinds):
            own = sorted(text.held_out[self._process :: self._processes], key=len)
            for first in range(0, len(own), size):
                some = own[first : first + size]
                yield self._part([(number, document) for document in some], [False] * len(some))

    def first(self) -> Part:
        """Some documents of all kinds, cut short, to look at before the training."""
        size = max(_FIRST, len(self._kinds))
        turns = (
            (number, text.train[i][:_FIRST_TOKENS])
            for i in range(size)
            for number, text in enumerate(self._kinds)
            if i < len(text.train)
        )
        some = list(islice(turns, size))
        return self._part(some, [False] * len(some))

    def _drawn(self, step: int) -> list[tuple[int, tuple[int, ...]]]:
        """The documents of a step, each with the number of its kind."""
        rng = np.random.default_rng([self._recipe.seed, step, self._process])
        each = max(1, self._recipe.batch_size // len(self._kinds))
        return [
            (number, text.train[i])
            for number, text in enumerate(self._kinds)
            for i in rng.choice(len(text.train), min(each, len(text.train)), replace=False)
        ]

    def _part(self, documents: Sequence[tuple[int, tuple[int, ...]]], noisy: Sequence[bool]) -> Part:
        """Documents as tensors; all of their predictions count."""
        longest, device = max(len(ids) for _, ids in documents), self._device
        ids = torch.tensor([[*own, *[0] * (longest - len(own))] for _, own in documents], device=device)
        lengths = torch.tensor([len(own) for _, own in documents], device=device)
        real = torch.arange(longest, device=device) < lengths[:, None]
        kind = torch.tensor([number for number, _ in documents], device=device)
        return Part(ids, real, kind, torch.tensor(noisy, device=device), real[:, 1:])
