"""Circuits by intervention: what the metric is when only some units are kept, and all others carry ablated values.

A row is a prompt with the units that it keeps, in all its contexts; any rows run together. Circuits of heads and of
attention edges run the model itself, with z or messages replaced on the way: embedding and MLPs, and whatever else is
not of the level, stay live. Circuits of edges are in `edge_circuits`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..graphs.wiring import Ids, Mask
from .ablated import Ablated, rows_of
from .taps import Tape, Taps


@dataclass(frozen=True)
class Row:
    """A prompt of a batch, by its place there, and the units that it keeps."""

    prompt: int
    kept: Mask


@dataclass(frozen=True)
class ContextRow:
    """A context of a batch, by its place there, and the units that it keeps: those of its prompt."""

    context: int
    kept: Mask


class Circuits(Protocol):
    """Measures circuits of one level."""

    def top(self, order: Ids, k: int) -> Mask:
        """The units that the first k of a ranking keep, of all units that it ranks."""

    def __call__(self, ablated: Ablated, rows: Sequence[Row]) -> Tensor:
        """The metric of each row."""


class _Live:
    """Circuits that are passes of the model itself: all units that are asked for are kept."""

    def __init__(self, taps: Taps) -> None:
        self._taps, self._shape = taps, taps.parts.shape
        self.top = first

    @torch.no_grad()
    def __call__(self, ablated: Ablated, rows: Sequence[Row]) -> Tensor:
        """The metric of each row."""
        spread = by_context(ablated, rows)
        context = contexts_in(ablated, spread)
        tape = self._tape(ablated, spread, context)
        tape.prefix = ablated.prefix_of(context, range(self._shape.layers))
        tape.last = ablated.last[context]
        self._taps.run(ablated.batch.clean[context][:, ablated.start :], tape)
        return ablated.batch.metric(tape.final, [row.prompt for row in rows])

    def _tape(self, ablated: Ablated, rows: Sequence[ContextRow], context: Tensor) -> Tape:
        """What is replaced on the way."""
        raise NotImplementedError


class HeadCircuits(_Live):
    """Circuits of heads, [layer * head]; what a head carries is its z."""

    def _tape(self, ablated: Ablated, rows: Sequence[ContextRow], context: Tensor) -> Tape:
        heads = self._shape.heads
        kept = torch.from_numpy(np.stack([row.kept for row in rows])).to(context.device)
        kept = kept.unflatten(1, (-1, heads))  # [row, layer, head]

        def at(layer: int) -> tuple[Tensor, Tensor]:
            instead = rows_of(ablated.z[layer], context).unflatten(-1, (heads, -1))
            return kept[:, layer].to(instead.device), instead

        return Tape(heads=at)


class AttentionCircuits(_Live):
    """Circuits of attention edges, [layer * head * pair] of a row's own prompt, key not after query."""

    def _tape(self, ablated: Ablated, rows: Sequence[ContextRow], context: Tensor) -> Tape:
        heads, longest = self._shape.heads, ablated.batch.longest
        by_layer = [row.kept.reshape(self._shape.layers, heads, -1) for row in rows]
        pairs = [np.tril_indices(ablated.batch.lengths[row.context]) for row in rows]

        def at(layer: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
            kept = np.zeros((len(rows), heads, longest, longest), dtype=bool)
            for own, mask, (query, key) in zip(kept, by_layer, pairs, strict=True):
                own[:, query, key] = mask[layer]
            here = torch.from_numpy(kept[:, :, ablated.start :]).to(self._taps.parts.device(layer))
            if ablated.attention is None:
                return here, None
            pattern, gate, value = ablated.attention[layer]
            weights = pattern if gate is None else pattern * gate
            return here, (rows_of(weights, context), rows_of(value, context))

        return Tape(pairs=at)


def by_context(ablated: Ablated, rows: Sequence[Row]) -> list[ContextRow]:
    """Rows of prompts as rows of their contexts, one after another."""
    return [ContextRow(context, row.kept) for row in rows for context in ablated.batch.contexts[row.prompt]]


def contexts_in(ablated: Ablated, rows: Sequence[ContextRow]) -> Tensor:
    """[row]: which context each row is of."""
    return torch.tensor([row.context for row in rows], device=ablated.last.device)


def first(order: Ids, k: int) -> Mask:
    """The first k of a ranking, as a mask."""
    kept = np.zeros(len(order), dtype=bool)
    kept[order[:k]] = True
    return kept
