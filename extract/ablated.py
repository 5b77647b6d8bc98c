"""The ablated run of a batch: what every circuit of it starts from, computed once for all of them.

Under the ablation `corrupt`, ablated nodes write what they write on the corrupted prompts. Clean and corrupted prompts
are the same up to some position, and up to there so is every circuit: these positions become a prefix, whose keys and
values are all that matters. Under `zero` and `mean`, what nodes write is known without a run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attribution import Batch, Means
from .parts import Parts
from .taps import AttentionKept, Call, Prefix, Tape, Taps

Projected = dict[nn.Module, Tensor]
"""By projection, what it gives, [prompt, position, ...]."""


@dataclass(frozen=True)
class Ablated:
    """A batch, ready for circuits; positions are counted from `start`, and `prompt` in shapes is a context of one."""

    batch: Batch
    start: int
    last: Tensor
    """[prompt]: the last position of each."""
    clean_input: Tensor
    """[prompt, position, d_model]"""
    call: Call
    """How attention is called."""
    input: Tensor
    """What `input` carries when ablated, [prompt, position, d_model]."""
    z: Sequence[Tensor]
    """By layer, what heads carry, [prompt, position, head * d_head]."""
    mlp: Sequence[Tensor]
    """By layer, what MLPs carry, [prompt, position, d_model]; the last layer's at the last position only."""
    streams: Sequence[Tensor] = ()
    """By reader, what it reads when no edge is kept, [prompt, position, d_model]; one position for the last two."""
    projected: Sequence[Projected] = ()
    """By layer, what the projections of its heads make of that."""
    prefix: Prefix | None = None
    attention: AttentionKept | None = None
    """What attention does when ablated; None where messages are zero."""

    def prefix_of(self, prompt: Tensor, layers: Iterable[int]) -> Prefix | None:
        """The prefix for rows of these prompts, in some layers."""
        if self.prefix is None:
            return None
        return {
            layer: (rows_of(self.prefix[layer][0], prompt), rows_of(self.prefix[layer][1], prompt))
            for layer in layers
        }

    def at_last(self, x: Tensor) -> Tensor:
        """[prompt, position, d] at the last position, [prompt, d]."""
        if x.shape[1] == 1:
            return x[:, 0]
        return x[torch.arange(len(x), device=x.device), self.last.to(x.device)]


def rows_of(x: Tensor, prompt: Tensor) -> Tensor:
    """[prompt, ...] for rows of these prompts, where x is."""
    return x[prompt.to(x.device)]


@torch.no_grad()
def ablate(taps: Taps, batch: Batch, levels: Sequence[str], ablation: str, means: Means | None) -> Ablated:
    """Run what has to be run once for all circuits of a batch, at these levels."""
    if batch.metric.needs_clean:
        batch.metric.set_clean(taps.run(batch.clean, Tape(last=batch.last())).final)
    if ablation == "corrupt":
        return _corrupted(taps, batch, levels)
    clean_input, call = taps.enter(batch.clean)
    parts, (prompts, positions, _) = taps.parts, clean_input.shape

    def instead(mean: Tensor | None, width: int, device: torch.device = parts.home) -> Tensor:
        one = clean_input.new_zeros(positions, width) if mean is None else mean[:positions].to(clean_input)
        return one.to(device).expand(prompts, -1, -1)

    layers: list[None] = [None] * parts.shape.layers
    places = [parts.device(layer) for layer in range(parts.shape.layers)]
    carried = instead(means.input if means else None, parts.d_model)
    d_z = parts.shape.heads * parts.d_head
    z = [
        instead(mean, d_z, device) for mean, device in zip(means.z if means else layers, places, strict=True)
    ]
    *mlp, last_mlp = (
        instead(mean, parts.d_model, device)
        for mean, device in zip(means.mlp if means else layers, places, strict=True)
    )
    mlp.append(Tape(last=batch.last()).cut(last_mlp))
    streams, projected = _reads(parts, carried, z, mlp, batch.last()) if "edge" in levels else ([], [])
    return Ablated(
        batch=batch,
        start=0,
        last=batch.last(),
        clean_input=clean_input,
        call=call,
        input=carried,
        z=z,
        mlp=mlp,
        streams=streams,
        projected=projected,
    )


def _corrupted(taps: Taps, batch: Batch, levels: Sequence[str]) -> Ablated:
    start = batch.shared_prefix
    edges = "edge" in levels
    tape = taps.run(
        batch.corrupted,
        Tape(
            last=batch.last(), keep_reads=edges, kept_keys={}, attention={} if "attention" in levels else None
        ),
    )
    assert tape.kept_keys is not None
    clean_input, call = taps.enter(batch.clean[:, start:], start)

    def here(x: Tensor) -> Tensor:
        """Without the prefix; what is there for the last position only has none."""
        return x if x.shape[1] == 1 else x[:, start:]

    def projected(layer: int) -> Projected:
        return {read.module: here(tape.read[read.module]) for read in taps.parts.blocks[layer].reads}

    layers = range(taps.parts.shape.layers)
    norms = [norm.module for block in taps.parts.blocks for norm in (block.norm, block.mlp_norm)]
    return Ablated(
        batch=batch,
        start=start,
        last=batch.last(start),
        clean_input=clean_input,
        call=call,
        input=here(tape.input),
        z=[here(z) for z in tape.z],
        mlp=[here(mlp) for mlp in tape.mlp],
        streams=[here(tape.streams[norm]) for norm in [*norms, taps.parts.norm.module]] if edges else [],
        projected=[projected(layer) for layer in layers] if edges else [],
        prefix={
            layer: (key[:, :, :start], value[:, :, :start]) for layer, (key, value) in tape.kept_keys.items()
        }
        if start
        else None,
        attention=None
        if tape.attention is None
        else {
            layer: (pattern[:, :, start:], None if gate is None else gate[:, :, start:], value)
            for layer, (pattern, gate, value) in tape.attention.items()
        },
    )


def _reads(
    parts: Parts, stream: Tensor, z: Sequence[Tensor], mlp: Sequence[Tensor], last: Tensor
) -> tuple[list[Tensor], list[Projected]]:
    """What is read where every node writes what it carries when ablated: their sum, and biases that no head has."""
    streams, projected = [], []
    for block, own_z, own_mlp in zip(parts.blocks, z, mlp, strict=True):
        stream = stream.to(own_z.device)
        streams.append(stream)
        normed = block.norm.module.forward(stream)
        modules = dict.fromkeys(read.module for read in block.reads)
        projected.append({module: parts.widened(module.forward(normed)) for module in modules})
        written = block.out.forward(own_z.contiguous())
        if block is parts.blocks[-1]:
            stream, written = (Tape(last=last).cut(x) for x in (stream, written))
        streams.append(stream if parts.shape.parallel else stream + written)
        stream = stream + written + own_mlp
    return [*streams, stream], projected
