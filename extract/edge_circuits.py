"""Circuits of edges, for less than a pass of the model.

What a slot v reads is the ablated stream and, for each kept edge, what its source does otherwise:

    x_v = ablated x_v + sum over kept u -> v of (act_u - ablated_u)

- A node that no kept edge runs into keeps its ablated value and is not computed, nor is a q, k or v that none runs
  into. What matters at the last position only is computed only there (`needed_everywhere`).
- Changes are kept in the stream's space, [row, source, position, d_model], and summed over the sources that a slot
  keeps or, where these are most of them, over those that it does not. They are centred where norms centre, so that a
  norm is a division by a length, which can come after the projection.
- Circuits of many sizes run together, each MLP for those rows only that need it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from ..graphs import Wiring, needed_everywhere, on_a_path
from ..graphs.wiring import Ids, Mask
from .ablated import Ablated
from .circuits import Row, first, prompts_of
from .edges import Reader, Workspace, find_readers
from .models import is_accelerator
from .parts import Parts
from .taps import Taps

_Index = NDArray[np.integer[Any]]


class EdgeCircuits:
    """Circuits of edges, by id. It keeps the memory that it works in."""

    def __init__(self, taps: Taps, wiring: Wiring) -> None:
        self.taps, self.parts, self.wiring = taps, taps.parts, wiring
        self.readers = find_readers(taps.parts, wiring)
        self.memory = Workspace()

    def top(self, order: Ids, k: int) -> Mask:
        """The first k that lie on a path."""
        return on_a_path(self.wiring, first(order, k))

    @torch.no_grad()
    def __call__(self, ablated: Ablated, rows: Sequence[Row]) -> Tensor:
        """The metric of each row. Rows of one circuit share a mask, the very same array: it is looked at once."""
        prompt = prompts_of(ablated, rows)
        return ablated.batch.metric(_Pass(self, ablated, prompt, rows).final(), prompt)


class _Pass:
    """One pass over the wiring, for some rows."""

    def __init__(self, circuits: EdgeCircuits, ablated: Ablated, prompt: Tensor, rows: Sequence[Row]) -> None:
        self._circuits, self._parts, self._wiring = circuits, circuits.parts, circuits.wiring
        self._ablated, self._prompt = ablated, prompt
        self._last_position = ablated.last[prompt]
        masks = {id(row.kept): row.kept for row in rows}
        self._masks = list(masks.values())
        number = {key: i for i, key in enumerate(masks)}
        self._mask_of = np.array([number[id(row.kept)] for row in rows])
        """[row]"""
        self._own_everywhere = np.stack([needed_everywhere(self._wiring, mask) for mask in self._masks])
        """[mask, node]"""
        self._kept = np.logical_or.reduce(self._masks)
        self._everywhere = needed_everywhere(self._wiring, self._kept)
        """[node]: in all circuits put together."""
        sources = self._wiring.sources
        used = np.isin(sources, self._wiring.edge_src[self._kept])
        shape = ablated.input.shape[1:]
        self._full = self._sources("full", used & self._everywhere[sources], shape)
        """What sources change at all positions, [row, source, position, d_model], where that is needed."""
        self._last = self._sources("last", used, shape[1:])
        """What sources change at the last position, [row, source, d_model]."""

    def _sources(self, name: str, chosen: Mask, shape: Sequence[int]) -> "_Sources":
        ranks = np.flatnonzero(chosen)
        shape = (len(self._mask_of), 2 + len(ranks), *shape)
        return _Sources(ranks, self._circuits.memory(name, shape, self._ablated.input))

    def final(self) -> Tensor:
        """The final states, [row, d_model]."""
        rows = np.arange(len(self._mask_of))
        self._write(0, rows, self._change(self._ablated.clean_input[self._prompt], self._ablated.input, rows))
        *readers, logits = self._circuits.readers
        *streams, stream = self._ablated.streams
        for i, (reader, base) in enumerate(zip(readers, streams, strict=True)):
            if i % 2:
                self._run_mlp(i // 2, reader, base)
            else:
                self._run_heads(i // 2, reader, base)
        (read,) = self._read(self._last, logits, np.array([logits.column]), stream, rows)
        return self._parts.norm.module.forward(read)

    def _run_heads(self, layer: int, reader: Reader, base: Tensor) -> None:
        """Compute the heads of a layer that kept edges run into."""
        heads = self._parts.shape.heads
        letter, head = np.divmod(np.arange(3 * heads), heads)  # q of all heads, then k, then v
        column = reader.column + (head if reader.width == heads else 3 * head + letter)
        kept = np.asarray(_block(self._kept, reader).any(axis=0))[column]
        if not kept.any():
            return
        wide = (letter > 0) | self._everywhere[self._wiring.slot_node[reader.stage.slots]][column]
        projected = {
            module: output[self._prompt] for module, output in self._ablated.projected[layer].items()
        }
        rows = np.arange(len(self._mask_of))
        for sources, some in ((self._full, kept & wide), (self._last, kept & ~wide)):
            if some.any():
                read = self._read(sources, reader, column[some], base, rows)
                self._project(reader, read, letter[some], head[some], projected)
        z = self._circuits.taps.attend(
            layer, self._ablated.call, projected, self._ablated.prefix_of(self._prompt)
        )
        self._write_heads(layer, self._change(z, self._ablated.z[layer], rows).unflatten(-1, (heads, -1)))

    def _run_mlp(self, layer: int, reader: Reader, base: Tensor) -> None:
        """Compute an MLP, for the rows in which a kept edge runs into it."""
        kept = np.array([_block(mask, reader)[:, reader.column].any() for mask in self._masks])
        if not kept.any():
            return
        rank = (layer + 1) * (self._parts.shape.heads + 1)
        node = self._wiring.slot_node[reader.stage.slots][reader.column]
        wide = self._own_everywhere[:, node]
        full, last = (np.flatnonzero(some[self._mask_of]) for some in (kept & wide, kept & ~wide))
        reads = [
            self._read(sources, reader, np.array([reader.column]), base, rows)[0]
            for sources, rows in ((self._full, full), (self._last, last))
        ]  # [row, position, d_model] and [row, d_model]
        tokens = [len(full) * self._ablated.input.shape[1], len(last)]
        block = self._parts.blocks[layer]
        stream = torch.cat([read.view(-1, self._parts.d_model) for read in reads])
        written = block.mlp.forward(block.mlp_norm.module.forward(stream)).split(tokens)
        ablated = self._ablated.mlp[layer]
        for sources in (self._full, self._last):
            sources.clear(rank)
        if len(full):
            self._write(rank, full, self._change(written[0].view_as(reads[0]), ablated, full))
        if len(last):
            self._write(rank, last, self._change(written[1], self._ablated.at_last(ablated), last))

    def _read(
        self, sources: "_Sources", reader: Reader, columns: _Index, base: Tensor, rows: _Index
    ) -> Tensor:
        """What slots of a reader read in these rows: [slot, row, position, d_model] or [slot, row, d_model]."""
        at_last = sources is self._last
        base = (self._ablated.at_last(base) if at_last else base)[self._prompt]
        changes, ranks = sources.before(reader.stage.sources, centred(self._parts, base))
        name = "read at last" if at_last else "read"
        read = self._circuits.memory(name, (len(columns), len(rows), *changes.shape[2:]), changes)
        sums: dict[int, _Sum] = {}
        for i, row in enumerate(rows.tolist()):
            mask = self._mask_of[row]
            if mask not in sums:
                sums[mask] = _Sum(_block(self._masks[mask], reader)[np.ix_(ranks, columns)].T, changes)
            sums[mask](changes[row], read[:, i])
        return read

    def _project(
        self, reader: Reader, read: Tensor, letter: _Index, head: _Index, projected: dict[nn.Module, Tensor]
    ) -> None:
        """Put q, k and v of what slots read where their projections would have put them."""
        flat = read.flatten(1, -2)  # [slot, token, d_model]
        length = torch.linalg.vector_norm(flat, dim=-1, keepdim=True, dtype=torch.float32)
        inverse = (length.square() / self._parts.d_model + reader.norm.eps).rsqrt()  # [slot, token, 1]
        for i, projection in enumerate(reader.reads):
            own = np.flatnonzero(letter == i)
            if not len(own):
                continue
            some, heads = slice(own[0], own[-1] + 1), torch.from_numpy(head[own]).to(flat.device)
            weight = projection.weight  # [key/value head, d_head, d_model]
            weight = _picked(weight, head[own] // (self._parts.shape.heads // len(weight)))
            if reader.norm.gain is not None:
                weight = weight * reader.norm.gain
            value = torch.bmm(flat[some], weight.transpose(1, 2)) * inverse[some]
            if reader.rest is not None:
                value += reader.rest[i, heads, None]
            there = projection.take(projected[projection.module])  # [row, position, head, d_head]
            value = value.to(there.dtype).unflatten(1, read.shape[1:-1])
            if read.dim() == 4:
                there[:, :, heads] = value.permute(1, 2, 0, 3)
            else:
                row = torch.arange(len(there), device=there.device)[:, None]
                there[row, self._last_position[:, None], heads] = value.transpose(0, 1)

    def _write_heads(self, layer: int, change: Tensor) -> None:
        """Keep what heads change, from [row, position, head, d_head], in the stream's space."""
        heads = self._parts.shape.heads
        ranks = range(1 + layer * (heads + 1), (layer + 1) * (heads + 1))
        weight = self._parts.out_weight(layer)
        row = torch.arange(len(change), device=change.device)
        for sources, z in ((self._full, change), (self._last, change[row, self._last_position])):
            there, own = sources.at(ranks)
            if len(own):
                some = own - ranks.start
                # [head, token, d_head] x [head, d_head, d_model]
                product = torch.bmm(
                    z[..., torch.from_numpy(some).to(z.device), :].flatten(0, -3).transpose(0, 1),
                    centred(self._parts, _picked(weight, some)),
                )
                there.copy_(product.view_as(there.transpose(0, 1)).transpose(0, 1))

    def _write(self, rank: int, rows: _Index, change: Tensor) -> None:
        """Keep what a source changes in these rows: [row, position, d_model], or [row, d_model] at the last."""
        change = centred(self._parts, change)
        index = torch.from_numpy(rows).to(change.device)
        if change.dim() == 3:
            self._full.put(rank, index, change)
            change = change[torch.arange(len(index), device=index.device), self._last_position[index]]
        self._last.put(rank, index, change)

    def _change(self, now: Tensor, ablated: Tensor, rows: _Index) -> Tensor:
        """What these rows do otherwise than their prompts ablated; half precision would round it."""
        prompt = self._prompt[torch.from_numpy(rows).to(self._prompt.device)]
        return (now.float() - ablated[prompt].float()).to(now.dtype)


class _Sources:
    """What some sources, by rank, change in each row. In front of them, streams for sums to start from:
    the ablated one, and the one with all changes.
    """

    def __init__(self, ranks: _Index, changes: Tensor) -> None:
        self._ranks, self._changes = ranks, changes  # [row, 2 + source, ...]
        self._total = torch.zeros_like(changes[:, 0])
        self._summed = 0

    def before(self, stage: int, base: Tensor) -> tuple[Tensor, _Index]:
        """The changes by the first sources of the wiring, behind the two streams, and the ranks of these sources."""
        count = int(np.searchsorted(self._ranks, stage))
        if count > self._summed:
            self._total += self._changes[:, 2 + self._summed : 2 + count].sum(1)
            self._summed = count
        self._changes[:, 0] = base
        torch.add(base, self._total, out=self._changes[:, 1])
        return self._changes[:, : 2 + count], self._ranks[:count]

    def at(self, ranks: range) -> tuple[Tensor, _Index]:
        """Where those of these ranks are that are kept, and which they are."""
        begin, end = np.searchsorted(self._ranks, [ranks.start, ranks.stop])
        return self._changes[:, 2 + begin : 2 + end], self._ranks[begin:end]

    def put(self, rank: int, rows: Tensor, change: Tensor) -> None:
        """Set what a source changes in these rows, if it is kept."""
        there, _ = self.at(range(rank, rank + 1))
        if there.shape[1]:
            there[rows, 0] = change

    def clear(self, rank: int) -> None:
        """Let a source change nothing in any row."""
        self.at(range(rank, rank + 1))[0].zero_()


class _Sum:
    """The sums that slots read: the ablated stream and what they keep, or all changes less what they do not keep."""

    def __init__(self, kept: Mask, like: Tensor) -> None:
        most = kept.mean(axis=1, keepdims=True) > 0.5 if kept.size else np.zeros((len(kept), 1), dtype=bool)
        weights = np.concatenate(
            [~most, most, np.where(most, -1.0 * ~kept, kept)], axis=1
        )  # [slot, 2 + source]
        self._weights = torch.from_numpy(weights).to(like)
        self._dense = is_accelerator(like.device)
        if not self._dense:
            slot, source = np.nonzero(weights)
            self._weights = self._weights[slot, source]
            self._source, self._begin = (
                torch.from_numpy(x) for x in (source, np.searchsorted(slot, np.arange(len(kept))))
            )

    def __call__(self, changes: Tensor, out: Tensor) -> None:
        """From [2 + source, ...] to [slot, ...]."""
        changes = changes.flatten(1)
        if self._dense:
            torch.mm(self._weights, changes, out=out.view(len(out), -1))
        else:  # most weights are zero: three times as fast where nothing else is done in parallel
            sums = embedding_bag(
                self._source, changes, self._begin, mode="sum", per_sample_weights=self._weights
            )
            out.copy_(sums.view_as(out))


def centred(parts: Parts, x: Tensor) -> Tensor:
    """x without its mean over d_model, if the model's norms take that away."""
    return x - x.mean(-1, keepdim=True) if parts.norm.centred else x


def _block(mask: Mask, reader: Reader) -> Mask:
    """Which edges of a reader's stage are kept, [source, slot]."""
    return mask[reader.stage.edges].reshape(reader.stage.sources, reader.stage.width)


def _picked(weight: Tensor, heads: _Index) -> Tensor:
    """[head, ...] of these heads, copied in the order of memory: against it takes several times as long."""
    if np.array_equal(heads, np.arange(len(weight))):
        return weight
    index = torch.from_numpy(heads).to(weight.device)
    if weight.stride(1) < weight.stride(2):
        return weight.transpose(1, 2).index_select(0, index).transpose(1, 2)
    return weight.index_select(0, index)
