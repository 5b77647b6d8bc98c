"""Circuits of edges, for less than a pass of the model.

What a slot v reads is the ablated stream and, for each kept edge, what its source does otherwise:

    x_v = ablated x_v + sum over kept u -> v of (act_u - ablated_u)

- A node that no kept edge runs into keeps its ablated value and is not computed, nor is a q, k or v that none runs
  into. What matters at the last position only is computed only there (`needed_everywhere`).
- Changes are kept in the stream's space, [source, row, position, d_model], and summed over the sources that a slot
  keeps or, where these are most of them, over those that it does not. They are centred where norms centre, so that a
  norm is a division by a length, which can come after the projection.
- Circuits of many sizes run together, each MLP for those rows only that need it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from ..graphs import Wiring, needed_everywhere, on_a_path
from ..graphs.wiring import Ids, Mask
from .ablated import Ablated, rows_of
from .circuits import ContextRow, Row, by_context, contexts_in, first
from .edges import Reader, Workspace, find_readers
from .parts import Parts
from .taps import Taps

_Index = NDArray[np.integer[Any]]


class EdgeCircuits:
    """Circuits of edges, by id. It keeps the memory that it works in."""

    def __init__(self, taps: Taps, wiring: Wiring, *, dense: bool = False) -> None:
        self.taps, self.parts, self.wiring = taps, taps.parts, wiring
        self.dense = dense
        """Whether changes are summed by products, of all of them: an accelerator is faster so."""
        self.readers = find_readers(taps.parts, wiring)
        self.memory = Workspace()

    def top(self, order: Ids, k: int) -> Mask:
        """The first k that lie on a path."""
        return on_a_path(self.wiring, first(order, k))

    @torch.no_grad()
    def __call__(self, ablated: Ablated, rows: Sequence[Row]) -> Tensor:
        """The metric of each row, whose edges lie on paths, as those of `top` do.

        Rows of one circuit share a mask, the very same array, and come one after another: it is looked at once.
        """
        with self.memory.freed_on_failure():
            final = _Pass(self, ablated, by_context(ablated, rows)).final()
            return ablated.batch.metric(final, [row.prompt for row in rows])


class _Pass:
    """One pass over the wiring, for some rows."""

    def __init__(self, circuits: EdgeCircuits, ablated: Ablated, rows: Sequence[ContextRow]) -> None:
        self._circuits, self._parts, self._wiring = circuits, circuits.parts, circuits.wiring
        self._context = contexts_in(ablated, rows)
        self._ablated, self._home = ablated, self._context.device
        self._last_position = ablated.last[self._context]
        self._groups = [_Group(self._wiring, *group) for group in _groups(rows)]
        sources = self._wiring.sources
        kept = np.logical_or.reduce([group.kept for group in self._groups])
        used = np.isin(sources, self._wiring.edge_src[kept])
        everywhere = np.logical_or.reduce([group.everywhere for group in self._groups])[sources]
        shape = ablated.input.shape[1:]
        self._full = self._sources("full", used & everywhere, shape)
        """What sources change at all positions, [source, row, position, d_model], where that is needed."""
        self._last = self._sources("last", used, shape[1:])
        """What sources change at the last position, [source, row, d_model]."""

    def _sources(self, name: str, chosen: Mask, shape: Sequence[int]) -> "_Sources":
        ranks = np.flatnonzero(chosen)
        shape = (2 + len(ranks), len(self._context), *shape)
        return _Sources(ranks, self._circuits.memory(name, shape, self._ablated.input))

    def final(self) -> Tensor:
        """The final states, [row, d_model]."""
        rows = slice(0, len(self._context))
        self._write(
            0, rows, self._change(self._ablated.clean_input[self._context], self._ablated.input, rows)
        )
        *readers, logits = self._circuits.readers
        *streams, stream = self._ablated.streams
        for i, (reader, base) in enumerate(zip(readers, streams, strict=True)):
            if i % 2:
                self._run_mlp(i // 2, reader, base)
            else:
                self._run_heads(i // 2, reader, base)
        return self._parts.norm.module.forward(self._read(self._last, logits, stream, self._groups))

    def _run_heads(self, layer: int, reader: Reader, base: Tensor) -> None:
        """Compute the heads of a layer, with those q, k and v that kept edges run into.

        What some rows need, all get: a slot into which a row keeps nothing reads what it reads when ablated, and one
        that matters at the last position only is right there, which comes last.
        """
        heads = self._parts.shape.heads
        letter, head = np.divmod(np.arange(3 * heads), heads)  # q of all heads, then k, then v
        column = reader.column + (head if reader.width == heads else 3 * head + letter)
        node = self._wiring.slot_node[reader.stage.slots][column]
        kept = np.stack([_block(group.kept, reader)[:, column].any(axis=0) for group in self._groups])
        if not kept.any():
            return
        wide = np.stack([(letter > 0) | group.everywhere[node] for group in self._groups])  # [group, slot]
        projected = {
            module: rows_of(output, self._context)
            for module, output in self._ablated.projected[layer].items()
        }
        for sources, own in ((self._full, kept & wide), (self._last, kept & ~wide)):
            some = np.flatnonzero(own.any(axis=0))
            if not len(some):
                continue
            read = self._sums(sources, reader, base, self._groups, column[some])
            self._project(reader, read, letter[some], head[some], projected, sources is self._full)
        prefix = self._ablated.prefix_of(self._context, [layer])
        z = self._circuits.taps.attend(layer, self._ablated.call, projected, prefix)
        change = self._change(z, self._ablated.z[layer], slice(0, len(z)))
        self._write_heads(layer, change.unflatten(-1, (heads, -1)))

    def _run_mlp(self, layer: int, reader: Reader, base: Tensor) -> None:
        """Compute an MLP at once for all rows in which a kept edge runs into it."""
        node = self._wiring.slot_node[reader.stage.slots][reader.column]
        own = [group for group in self._groups if _block(group.kept, reader)[:, reader.column].any()]
        if not own:
            return
        places = [
            (sources, [group for group in own if bool(group.everywhere[node]) == wide])
            for sources, wide in ((self._full, True), (self._last, False))
        ]
        stream = torch.cat([self._read(sources, reader, base, some) for sources, some in places if some])
        block = self._parts.blocks[layer]
        stream = stream.to(self._parts.device(layer))
        written = block.mlp.forward(block.mlp_norm.module.forward(stream))  # [token, d_model]
        rank = (layer + 1) * (self._parts.shape.heads + 1)
        ablated = self._ablated.mlp[layer]
        for sources, _ in places:
            sources.clear(rank)
        end = 0
        for sources, some in places:
            instead = ablated if sources is self._full else self._ablated.at_last(ablated)
            for group in some:
                shape = (group.rows.stop - group.rows.start, *sources.shape)
                begin, end = end, end + prod(shape[:-1])
                change = self._change(written[begin:end].view(shape), instead, group.rows)
                self._write(rank, group.rows, change)

    def _read(self, sources: "_Sources", reader: Reader, base: Tensor, groups: Sequence["_Group"]) -> Tensor:
        """What an MLP or the logits read in the rows of some circuits, [token, d_model]."""
        (read,) = self._sums(sources, reader, base, groups, np.array([reader.column]))
        return read

    def _sums(
        self, sources: "_Sources", reader: Reader, base: Tensor, groups: Sequence["_Group"], columns: _Index
    ) -> Tensor:
        """What some slots of a reader read in the rows of some circuits, [slot, token, d_model]."""
        base = self._ablated.at_last(base) if sources is self._last else base
        base = rows_of(base, self._context).to(self._home)
        changes, ranks = sources.before(reader.stage.sources, _centred(self._parts, base))
        kept = [_block(group.kept, reader)[np.ix_(ranks, columns)].T for group in groups]
        return _summed(kept, [group.rows for group in groups], changes, dense=self._circuits.dense)

    def _project(
        self,
        reader: Reader,
        read: Tensor,
        letter: _Index,
        head: _Index,
        projected: dict[nn.Module, Tensor],
        wide: bool,
    ) -> None:
        """Put q, k and v of what slots read, [slot, token, d_model], where their projections would have put them."""
        # in the order of memory, against which it takes twice as long
        length = torch.linalg.vector_norm(read.transpose(0, 1), dim=-1, dtype=torch.float32).T[..., None]
        inverse = (length.square() / self._parts.d_model + reader.norm.eps).rsqrt()  # [slot, token, 1]
        for i, projection in enumerate(reader.reads):
            own = np.flatnonzero(letter == i)
            if not len(own):
                continue
            some = slice(own[0], own[-1] + 1)
            weight = projection.weight  # [key/value head, d_head, d_model]
            weight = _picked(weight, head[own] // (self._parts.shape.heads // len(weight)))
            if reader.norm.gain is not None:
                weight = weight * reader.norm.gain
            value = torch.bmm(read[some], weight.to(self._home).transpose(1, 2)).mul_(inverse[some])
            there = projection.take(projected[projection.module])  # [row, position, head, d_head]
            value, heads = value.to(there.device), torch.from_numpy(head[own]).to(there.device)
            if reader.rest is not None:
                value += reader.rest[i, heads, None]
            value = value.to(there.dtype)
            if wide:
                there[:, :, heads] = value.unflatten(1, there.shape[:2]).permute(1, 2, 0, 3)
            else:
                row = torch.arange(len(there), device=there.device)[:, None]
                there[row, self._last_position[:, None].to(there.device), heads] = value.transpose(0, 1)

    def _write_heads(self, layer: int, change: Tensor) -> None:
        """Keep what heads change, from [row, position, head, d_head], in the stream's space."""
        heads = self._parts.shape.heads
        ranks = range(1 + layer * (heads + 1), (layer + 1) * (heads + 1))
        row = torch.arange(len(change), device=change.device)
        _, used = self._last.at(ranks)  # at all positions, no others are
        weight = _picked(self._parts.out_weight(layer), used - ranks.start).to(self._home)
        weight = _centred(self._parts, weight)
        for sources, z in ((self._full, change), (self._last, change[row, self._last_position])):
            there, own = sources.at(ranks)
            if len(own):
                torch.bmm(
                    _picked(z.flatten(0, -3).transpose(0, 1), own - ranks.start),  # [head, token, d_head]
                    _picked(weight, np.searchsorted(used, own)),  # [head, d_head, d_model]
                    out=there.flatten(1, -2),
                )

    def _write(self, rank: int, rows: slice, change: Tensor) -> None:
        """Keep what a source changes in these rows: [row, position, d_model], or [row, d_model] at the last."""
        change = _centred(self._parts, change)
        if change.dim() == 3:
            self._full.put(rank, rows, change)
            change = change[torch.arange(len(change), device=change.device), self._last_position[rows]]
        self._last.put(rank, rows, change)

    def _change(self, now: Tensor, ablated: Tensor, rows: slice) -> Tensor:
        """What these rows do otherwise than their contexts ablated, at home."""
        return now.to(self._home) - rows_of(ablated, self._context[rows]).to(self._home)


class _Group:
    """A circuit and the rows that it runs in."""

    def __init__(self, wiring: Wiring, kept: Mask, rows: slice) -> None:
        self.kept, self.rows = kept, rows
        self.everywhere = needed_everywhere(wiring, kept)
        """[node]"""


class _Sources:
    """What some sources, by rank, change in each row. In front of them, streams for sums to start from:
    the ablated one, and the one with all changes.
    """

    def __init__(self, ranks: _Index, changes: Tensor) -> None:
        self._ranks, self._changes = ranks, changes  # [2 + source, row, ...]
        self.shape = changes.shape[2:]
        """Of what one source changes in one row."""
        self._total = torch.zeros_like(changes[0])
        self._summed = 0

    def before(self, stage: int, base: Tensor) -> tuple[Tensor, _Index]:
        """The changes by the first sources of the wiring, behind the two streams, and the ranks of these sources."""
        count = int(np.searchsorted(self._ranks, stage))
        if count > self._summed:
            self._total += self._changes[2 + self._summed : 2 + count].sum(0)
            self._summed = count
        self._changes[0] = base
        torch.add(base, self._total, out=self._changes[1])
        return self._changes[: 2 + count], self._ranks[:count]

    def at(self, ranks: range) -> tuple[Tensor, _Index]:
        """Where those of these ranks are that are kept, and which they are."""
        begin, end = np.searchsorted(self._ranks, [ranks.start, ranks.stop])
        return self._changes[2 + begin : 2 + end], self._ranks[begin:end]

    def put(self, rank: int, rows: slice, change: Tensor) -> None:
        """Set what a source changes in these rows, if it is among them."""
        there, _ = self.at(range(rank, rank + 1))
        there[:, rows] = change

    def clear(self, rank: int) -> None:
        """Let a source change nothing in any row."""
        self.at(range(rank, rank + 1))[0].zero_()


def _summed(kept: Sequence[Mask], rows: Sequence[slice], changes: Tensor, *, dense: bool) -> Tensor:
    """What slots read: the ablated stream and the changes that they keep, or all changes less those that they do not.

    By circuit, `kept` is [slot, source], in these `rows` of `changes`, [2 + source, row, ..., d_model]. The result is
    [slot, token, d_model], with the tokens of all these rows.
    """
    weights = [_weights(own) for own in kept]
    if dense:
        return torch.cat(
            [
                torch.tensordot(torch.from_numpy(own).to(changes), changes[:, some].flatten(1, -2), 1)
                for own, some in zip(weights, rows, strict=True)
            ],
            dim=1,
        )
    # most weights are zero: of what is kept alone, and token by token, as what a token needs fits a cache
    index, begin, factor = _entries(weights, rows, changes)
    summed = embedding_bag(
        index, changes.view(-1, changes.shape[-1]), begin, mode="sum", per_sample_weights=factor
    )
    return summed.unflatten(0, (-1, len(kept[0]))).transpose(0, 1)


def _entries(
    weights: Sequence[NDArray[np.float64]], rows: Sequence[slice], changes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Which changes to sum, of all as rows of d_model; where the sum of each token and slot begins; and how often."""
    tokens, every = changes[0, 0, ..., 0].numel(), changes[0, ..., 0].numel()
    indices, begins, factors, end = [], [], [], 0
    for own, some in zip(weights, rows, strict=True):
        slot, source = np.nonzero(own)
        token = np.arange(some.start * tokens, some.stop * tokens, dtype=np.int32)[:, None]
        indices.append((source * every).astype(np.int32) + token)  # [token, kept]
        first = np.searchsorted(slot, np.arange(len(own)))  # [slot]
        begins.append((token - token[0]) * len(slot) + first.astype(np.int32) + end)
        factors.append(torch.from_numpy(own[slot, source]).to(changes).repeat(len(token)))
        end += indices[-1].size
    index, begin = (torch.cat([torch.from_numpy(x).flatten() for x in xs]) for xs in (indices, begins))
    return index.to(changes.device), begin.to(changes.device), torch.cat(factors)


def _weights(kept: Mask) -> NDArray[np.float64]:
    """How often slots that keep these changes, [slot, source], read each of [2 + source]."""
    most = kept.mean(axis=1, keepdims=True) > 0.5 if kept.size else np.zeros((len(kept), 1), dtype=bool)
    return np.concatenate([~most, most, np.where(most, -1.0 * ~kept, kept)], axis=1)


def _groups(rows: Sequence[ContextRow]) -> Iterator[tuple[Mask, slice]]:
    """Circuits, and the stretch of rows that they run in."""
    end = 0
    for _, same in groupby(rows, key=lambda row: id(row.kept)):
        begin, own = end, list(same)
        end += len(own)
        yield own[0].kept, slice(begin, end)


def _centred(parts: Parts, x: Tensor) -> Tensor:
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
