"""Exact scores: replace one unit's value by its ablated one, run the rest of the model again, see what the metric says.

Nothing is estimated, and it takes a run from the unit's layer on for every unit: for small models, short prompts, and
to judge the other methods by. Units of one layer run together, as rows of a batch that differ in one place each. A unit
that ablation does not change at all scores exactly zero and is not run. A unit is changed in all contexts of a prompt
at once, each of which is a row.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..graphs import Wiring
from .accuracy import judge
from .attribution import Attention, Batch, Means, Scores, attention_of, find_deltas, to_array
from .edges import Deltas, Reader, expand_sources, find_readers
from .taps import Edit, Tape, Taps


class Exact:
    """Exact scores of one model in one setting."""

    def __init__(
        self,
        taps: Taps,
        wiring: Wiring,
        *,
        levels: Sequence[str],
        ablation: str = "corrupt",
        means: Means | None = None,
    ) -> None:
        self._taps, self._parts, self._wiring = taps, taps.parts, wiring
        self._levels, self._ablation, self._means = levels, ablation, means

    @torch.no_grad()
    def __call__(self, batch: Batch, rows: int) -> Scores:
        """Score a batch of one prompt, so many units at a time."""
        attention = "attention" in self._levels
        clean, corrupted = (
            self._taps.run(ids, Tape(last=batch.last(), again=True, attention={} if attention else None))
            for ids in (batch.clean, batch.corrupted)
        )
        batch.metric.set_clean(clean.final)
        metric_clean = batch.metric(clean.final)
        right, rank = judge(self._parts, clean.final, batch.prompts, batch.contexts)
        deltas = find_deltas(self._parts, clean, corrupted, batch.everywhere(), self._ablation, self._means)
        contexts = len(batch.lengths)

        def change(edits: Iterator[tuple[Tensor, Edit]], units: int) -> NDArray[np.float32]:
            scores = metric_clean.new_zeros(units)
            for own, edit in edits:
                if len(own) == 0:
                    continue
                # measured from a row of the same batch: kernels round differently at another size
                metric = batch.metric(self._taps.rerun(clean, edit.with_unchanged(contexts)))
                scores[own] = metric[1:] - metric[0]
            return to_array(scores)

        shape = self._parts.shape
        pairs = batch.longest * (batch.longest + 1) // 2
        return Scores(
            metric_clean=to_array(metric_clean),
            metric_corrupted=to_array(batch.metric(corrupted.final)),
            right=to_array(right),
            answer_rank=to_array(rank),
            edge=change(self._edges(deltas, contexts, rows), self._wiring.n_edges)[None]
            if "edge" in self._levels
            else None,
            head=change(self._heads(deltas, contexts, rows), shape.layers * shape.heads)[None]
            if "head" in self._levels
            else None,
            attention=[
                Attention(
                    *_weights(clean),
                    change(self._pairs(clean, corrupted, rows), shape.layers * shape.heads * pairs).reshape(
                        shape.layers, shape.heads, pairs
                    ),
                )
            ]
            if attention
            else None,
        )

    def _edges(self, deltas: Deltas, contexts: int, rows: int) -> Iterator[tuple[Tensor, Edit]]:
        """Edge ids and their edits."""
        positions = len(deltas.input)
        written = deltas.input.new_empty(len(self._wiring.sources), positions, self._parts.d_model)
        expand_sources(self._parts, deltas, slice(0, positions), centred=False, out=written)
        changed = written.flatten(1).any(1).nonzero()[:, 0]
        dtype = self._parts.out_weight(0).dtype
        for i, reader in enumerate(find_readers(self._parts, self._wiring)):
            layer = i // 2  # attention and MLP of each layer, then the logits
            sources = changed[changed < reader.stage.sources]
            cells = torch.cartesian_prod(sources, torch.arange(reader.width, device=sources.device))
            for some in cells.split(rows):
                source, slot = some.T
                edge = reader.stage.first + source * reader.stage.width + reader.column + slot
                delta = written[source].to(dtype).unflatten(1, (contexts, -1)).flatten(0, 1)
                yield edge, self._edit(layer, reader, delta, slot.repeat_interleave(contexts))

    def _edit(self, layer: int, reader: Reader, delta: Tensor, slot: Tensor) -> Edit:
        if not reader.reads:
            return Edit(layer, "mlp" if layer < self._parts.shape.layers else "logits", delta)
        heads = self._parts.shape.heads
        mask = torch.zeros(len(slot), heads, 3, dtype=torch.bool, device=slot.device)
        row = torch.arange(len(slot), device=slot.device)
        if reader.width == heads:
            mask[row, slot] = True
        else:
            mask[row, slot // 3, slot % 3] = True
        return Edit(layer, "reads", delta, mask)

    def _heads(self, deltas: Deltas, contexts: int, rows: int) -> Iterator[tuple[Tensor, Edit]]:
        """Heads, numbered layer by layer, and their edits."""
        heads = self._parts.shape.heads
        for layer, z in enumerate(deltas.z):
            z = z.to(deltas.input.device)  # [position, head, d_head]
            changed = z.transpose(0, 1).flatten(1).any(1).nonzero()[:, 0]
            for some in changed.split(rows):
                delta = z.new_zeros(len(some), *z.shape)
                row = torch.arange(len(some), device=z.device)
                delta[row, :, some] = z.transpose(0, 1)[some]
                delta = delta.unflatten(1, (contexts, -1)).flatten(0, 1)
                yield layer * heads + some, self._z_edit(layer, delta)

    def _pairs(self, clean: Tape, corrupted: Tape, rows: int) -> Iterator[tuple[Tensor, Edit]]:
        """Attention edges, numbered by layer, head and pair, and their edits."""
        heads = self._parts.shape.heads
        for layer in range(self._parts.shape.layers):
            change = -_messages_of(clean, layer)  # [head, query, key, d_head]
            if self._ablation != "zero":
                change += _messages_of(corrupted, layer)
            query, key = torch.tril_indices(*change.shape[1:3], device=change.device)
            flat = change[:, query, key]  # [head, pair, d_head]
            changed = flat.any(-1)  # [head, pair]
            if layer == self._parts.shape.layers - 1:
                changed &= query == query[-1]  # what other positions receive there goes nowhere
            head, pair = changed.nonzero().T
            for some in torch.arange(len(head), device=head.device).split(rows):
                delta = change.new_zeros(len(some), change.shape[1], heads, change.shape[-1])
                row = torch.arange(len(some), device=head.device)
                delta[row, query[pair[some]], head[some]] = flat[head[some], pair[some]]
                unit = (layer * heads + head[some]) * flat.shape[1] + pair[some]
                yield unit, self._z_edit(layer, delta)

    def _z_edit(self, layer: int, delta: Tensor) -> Edit:
        """An edit of z by [row, position, head, d_head]."""
        return Edit(layer, "z", delta.flatten(2).to(self._parts.out_weight(layer).dtype))


def _messages_of(tape: Tape, layer: int) -> Tensor:
    """p_ij g_ij v_j of a tape's one prompt: [head, query, key, d_head] in float32."""
    pattern, gate, value = attention_of(tape, layer)
    return ((pattern * gate)[0, ..., None] * value[0, :, None]).to(tape.input.device)


def _weights(tape: Tape) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Pattern and gate of a tape's one prompt, each [layer, head, pair]."""
    layers = range(len(tape.z))
    pattern, gate = (
        torch.stack([attention_of(tape, layer)[which][0].to(tape.input.device) for layer in layers])
        for which in (0, 1)
    )
    query, key = torch.tril_indices(*pattern.shape[-2:], device=pattern.device)
    return to_array(pattern[..., query, key]), to_array(gate[..., query, key])
