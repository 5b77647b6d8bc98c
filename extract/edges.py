"""Scores of all edges, from what nodes write and the gradients where they read: matrix products, no passes.

The score of an edge u -> v is ``sum over positions of delta_u . g_v``: delta_u is what ablating u changes in
what it writes, g_v the gradient of the metric at v's own copy of the residual stream. Neither is kept for all
positions; both are expanded from less, a chunk of positions at a time:

    delta_u = dz_u W_O^u                                     a head writes d_head numbers
    g_v     = (W~_v^T dq_v) / sigma - c_v x_hat              through the norm's Jacobian

with W~ = W diag(gain), and delta centred where the norm centres. ``c_v = (W~_v x_hat . dq_v) / (d_model sigma)``
needs no expansion, because W~_v x_hat is what v read, less biases. Along a path of several steps, dq / sigma is
summed before it is expanded; x_hat and c are kept for each step.

Positions where nothing changed, or that are padding, are not among the rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, prod

import torch
from torch import Tensor, nn

from ..graphs import Inputs, Stage, Wiring
from .parts import Block, Norm, Parts, Read
from .taps import Tape

_CHUNK_BYTES = 64 << 20
_CHUNK_ROWS = 64
"""A chunk has at least so many rows, whatever its size: the weights are read once a chunk."""
_GROUP_SLOTS = 120
"""Readers are put together until they have so many slots: narrower products are slower."""


@dataclass(frozen=True)
class Deltas:
    """What ablation changes in what nodes write, in float32."""

    input: Tensor
    """[row, d_model]"""
    z: Sequence[Tensor]
    """By layer, [row, head, d_head]."""
    mlp: Sequence[Tensor]
    """By layer, [row, d_model]."""


@dataclass(frozen=True)
class Reader:
    """A norm and the slots that read through it, in one stage of the wiring."""

    norm: Norm
    reads: tuple[Read, ...]
    """q, k and v of all heads; () for an MLP or the logits, which read the norm's output itself."""
    stage: Stage
    column: int
    """Of its first slot, in the stage."""
    width: int
    """How many slots it has."""
    last: bool = False
    """Whether it reads at the last position only; its rows are then one a context."""
    rest: Tensor | None = None
    """[letter, head, d_head]: what the projections give where x_hat is zero, from their bias and the norm's."""


class Slope:
    """The gradients at one reader, summed over the steps of a path."""

    def __init__(self) -> None:
        self.lifted: Tensor | None = None
        """[row, letter, head, d_head]: the sum of dq / sigma. For an MLP or the logits, [row, 1, 1, d_model]."""
        self.x_hat: list[Tensor] = []
        """By step, [row, d_model]."""
        self.along: list[Tensor] = []
        """By step, c: [row, letter, head]."""

    @torch.no_grad()
    def add(
        self, reader: Reader, tape: Tape, gradients: Mapping[nn.Module, Tensor], rows: Tensor, share: float
    ) -> None:
        """Add one step's gradients, with its share of the path."""
        norm = reader.norm
        x_hat, inverse = norm.normalised(at_rows(tape.streams[norm.module], rows))
        if reader.reads:
            slope = _stacked(reader.reads, gradients, rows)
            value = _stacked(reader.reads, tape.read, rows)
            if reader.rest is not None:
                value -= reader.rest
        else:
            slope = at_rows(gradients[norm.module], rows).float()[:, None, None]
            value = (x_hat * (1 if norm.gain is None else norm.gain.float()))[:, None, None]
        slope *= (inverse * share)[:, :, None, None]
        self.along.append(value.mul_(slope).sum(-1).div_(x_hat.shape[-1]))
        self.x_hat.append(x_hat)
        self.lifted = slope if self.lifted is None else self.lifted.add_(slope)


class Workspace:
    """Memory to work in that is kept: fresh pages would cost as much as the products that fill them."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor with this shape and whatever numbers; the next one of the same name takes its memory."""
        size = prod(shape)
        if name not in self._memory or len(self._memory[name]) < size:
            self._memory.pop(name, None)
            self._memory[name] = like.new_empty(size)
        return self._memory[name][:size].view(*shape)

    @contextmanager
    def freed_on_failure(self) -> Iterator[None]:
        """Give all memory back when work fails: it may be memory that it lacked."""
        try:
            yield
        except Exception:
            self._memory.clear()
            raise


class EdgeScorer:
    """Scores all edges of a model, a batch of prompts at a time. It keeps the memory that it works in."""

    def __init__(self, parts: Parts, wiring: Wiring) -> None:
        self._parts, self._wiring = parts, wiring
        self.readers = find_readers(parts, wiring)
        self._groups = list(_groups(self.readers))
        self._last = [i for i, reader in enumerate(self.readers) if reader.last]
        self._sources = len(wiring.sources)
        self._slots = max(sum(self.readers[i].width for i in group) for group in self._groups)
        row = (self._sources + self._slots) * parts.d_model * 4
        self._chunk = max(_CHUNK_ROWS, _CHUNK_BYTES // row)
        self._memory = Workspace()

    @torch.no_grad()
    def __call__(
        self, deltas: Deltas, slopes: Sequence[Slope], spans: Sequence[slice], ends: Sequence[int]
    ) -> Tensor:
        """The scores of all edges, [prompt, edge] in float32.

        A prompt's span is its rows, those of its contexts one after another; `ends` are the last rows of contexts.
        """
        with self._memory.freed_on_failure():
            return self._scores(deltas, slopes, spans, ends)

    def _scores(
        self, deltas: Deltas, slopes: Sequence[Slope], spans: Sequence[slice], ends: Sequence[int]
    ) -> Tensor:
        scores = deltas.input.new_zeros(len(spans), self._wiring.n_edges)
        rows = spans[-1].stop
        size = ceil(rows / ceil(rows / self._chunk))  # chunks of about the same size
        owners = [
            prompt for prompt, span in enumerate(spans) for end in ends if span.start <= end < span.stop
        ]
        for start in range(0, rows, size):
            chunk = slice(start, min(start + size, rows))
            here = [
                (prompt, slice(max(span.start, start) - start, min(span.stop, chunk.stop) - start))
                for prompt, span in enumerate(spans)
                if span.start < chunk.stop and span.stop > start
            ]
            written = self._buffer("written", self._sources, chunk, deltas.input)
            expand_sources(self._parts, deltas, chunk, centred=self._parts.norm.centred, out=written)
            for group in self._groups:
                self._contract(written, group, slopes, chunk, here, scores)
            ended = [
                (context, prompt, end - start)
                for context, (prompt, end) in enumerate(zip(owners, ends, strict=True))
                if start <= end < chunk.stop
            ]
            for i in self._last:
                self._contract_last(written, self.readers[i], slopes[i], len(ends), ended, scores)
        return scores

    def _contract(
        self,
        written: Tensor,
        group: range,
        slopes: Sequence[Slope],
        chunk: slice,
        spans: Sequence[tuple[int, slice]],
        scores: Tensor,
    ) -> None:
        """Add the scores of all edges into a group of readers, for a chunk of rows."""
        members = [self.readers[i] for i in group]
        written = written[: members[-1].stage.sources]  # [source, row, d_model]
        ends = list(accumulate(reader.width for reader in members))
        columns = [slice(end - reader.width, end) for reader, end in zip(members, ends, strict=True)]
        lifted = self._buffer("lifted", self._slots, chunk, written)[: ends[-1]]  # [slot, row, d_model]
        for i, reader, own in zip(group, members, columns, strict=True):
            _lift(self._parts, reader, slopes[i], chunk, lifted[own])
        for prompt, span in spans:
            # some rows with all their d_model numbers are one stretch of memory, so nothing is copied here
            whole = lifted[:, span].flatten(1) @ written[:, span].flatten(1).T  # [slot, source]
            for reader, own in zip(members, columns, strict=True):
                block = whole[own, : reader.stage.sources]
                if reader.width > self._parts.shape.heads:  # [letter, head] to [head, letter]
                    block = block.unflatten(0, (3, -1)).transpose(0, 1).flatten(0, 1)
                _edges_into(reader, scores[prompt]).add_(block.T)

    def _contract_last(
        self,
        written: Tensor,
        reader: Reader,
        slope: Slope,
        contexts: int,
        ended: Sequence[tuple[int, int, int]],
        scores: Tensor,
    ) -> None:
        """Add the scores of the edges into a reader of last positions, for contexts whose last row is here."""
        lifted = written.new_empty(1, contexts, self._parts.d_model)
        _lift(self._parts, reader, slope, slice(None), lifted)
        for context, prompt, row in ended:
            _edges_into(reader, scores[prompt])[:, 0].add_(
                written[: reader.stage.sources, row] @ lifted[0, context]
            )

    def _buffer(self, name: str, units: int, chunk: slice, like: Tensor) -> Tensor:
        """Memory for [unit, row, d_model]."""
        return self._memory(name, (units, chunk.stop - chunk.start, self._parts.d_model), like)


def find_readers(parts: Parts, wiring: Wiring) -> list[Reader]:
    """All readers of a model, in the order of the wiring's stages and slots."""
    found = []
    slots = parts.shape.heads * (1 if wiring.shape.inputs is Inputs.MERGED else 3)
    stages = iter(wiring.stages)
    for block in parts.blocks:
        stage, last = next(stages), block is parts.blocks[-1]
        found.append(Reader(block.norm, block.reads, stage, 0, slots, rest=_rest(block, parts)))
        if parts.shape.parallel:
            found.append(Reader(block.mlp_norm, (), stage, slots, 1, last))
        else:
            found.append(Reader(block.mlp_norm, (), next(stages), 0, 1, last))
    return [*found, Reader(parts.norm, (), next(stages), 0, 1, last=True)]


def expand_sources(parts: Parts, deltas: Deltas, rows: slice, *, centred: bool, out: Tensor) -> None:
    """What ablation changes in the stream, for every source: [source, row, d_model]."""

    def prepared(x: Tensor) -> Tensor:
        x = x.float()
        return x - x.mean(-1, keepdim=True) if centred else x

    heads = parts.shape.heads
    out[0] = prepared(deltas.input[rows])
    for layer in range(parts.shape.layers):
        first = 1 + layer * (heads + 1)
        z = deltas.z[layer][rows].to(out.device).transpose(0, 1)  # [head, row, d_head]
        weight = parts.out_weight(layer).to(out.device)
        torch.bmm(z, prepared(weight), out=out[first : first + heads])
        out[first + heads] = prepared(deltas.mlp[layer][rows])


def at_rows(x: Tensor, rows: Tensor) -> Tensor:
    """The chosen positions of [prompt, position, ...], end to end."""
    return x.flatten(0, 1).index_select(0, rows.to(x.device))


def _lift(parts: Parts, reader: Reader, slope: Slope, rows: slice, out: Tensor) -> None:
    """g at all slots of a reader, for a chunk of rows: [slot, row, d_model], slots as [letter, head]."""
    assert slope.lifted is not None
    at = slope.lifted[rows].to(out.device).movedim(0, 2)  # [letter, head, row, d_head]
    merged = reader.width == parts.shape.heads
    if not reader.reads:
        out.copy_(at[0])
    for letter, read in enumerate(reader.reads):
        weight = read.weight.to(out.device).float()  # [key/value head, d_head, d_model]
        ours = at[letter].reshape(
            len(weight), -1, parts.d_head
        )  # heads that share a weight are more rows of it
        there = (out if merged else out.unflatten(0, (3, -1))[letter]).view(len(weight), -1, parts.d_model)
        if merged and letter:
            there.baddbmm_(ours, weight)
        else:
            torch.bmm(ours, weight, out=there)
    if reader.norm.gain is not None:
        out.mul_(reader.norm.gain.to(out.device).float())
    for x_hat, along in zip(slope.x_hat, slope.along, strict=True):
        c = along[rows].sum(1) if merged else along[rows].flatten(1)  # [row, slot]
        out.addcmul_(c.to(out.device).T[..., None], x_hat[rows].to(out.device), value=-1)


def _groups(readers: Sequence[Reader]) -> Iterator[range]:
    """Consecutive readers of all positions with enough slots for a product to be fast, by index."""
    everywhere = sum(not reader.last for reader in readers)  # the others come last
    first = slots = 0
    for i in range(everywhere):
        slots += readers[i].width
        if slots >= _GROUP_SLOTS or i == everywhere - 1:
            yield range(first, i + 1)
            first, slots = i + 1, 0


def _edges_into(reader: Reader, scores: Tensor) -> Tensor:
    """Of the scores of all edges, those into a reader: [source, slot], a view."""
    block = scores[reader.stage.edges].view(reader.stage.sources, -1)
    return block[:, reader.column : reader.column + reader.width]


def _stacked(reads: Sequence[Read], outputs: Mapping[nn.Module, Tensor], rows: Tensor) -> Tensor:
    """q, k and v out of what projections gave, in float32: [row, letter, head, d_head]."""
    own = {module: at_rows(outputs[module], rows) for module in dict.fromkeys(read.module for read in reads)}
    return torch.stack([read.take(own[read.module]) for read in reads], dim=1).float()


@torch.no_grad()
def _rest(block: Block, parts: Parts) -> Tensor | None:
    """What q, k and v are where x_hat is zero: their biases, and what the norm's bias becomes."""
    if block.norm.bias is None and all(getattr(read.module, "bias", None) is None for read in block.reads):
        return None
    still = block.reads[0].weight.new_zeros(1, parts.d_model)
    if block.norm.bias is not None:
        still = still + block.norm.bias
    values = [read.take(read.module.forward(still))[0].float() for read in block.reads]
    return torch.stack([value.repeat_interleave(parts.shape.heads // len(value), dim=0) for value in values])
