"""An extraction under way: what all its parts share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..data import Prompt, RunWriter
from ..graphs import Shape, Wiring
from .attribution import Batch, Means
from .metrics import longest_context
from .models import Model
from .settings import Listener, Settings
from .taps import Tape
from .workers import Workers

PROMPTS_AT_A_TIME = 16
_UNITS_AT_A_TIME = 64
"""Of the method `exact`, which takes prompts one by one."""
_SHARD_PROMPTS = 32
_SHARD_SCORES = 1 << 24
_BYTES = {"edge": 4.0, "head": 8.0, "attention": 8.0}
"""About what a score takes on disk; attention has a weight with it."""


@dataclass
class Job:
    """A model on prompts, into a run."""

    model: Model
    prompts: Sequence[Prompt]
    shards: Sequence[range]
    """Prompts that are written together; they depend on the wiring and the prompts, never on batches or processes."""
    wiring: Wiring
    metric: str
    writer: RunWriter
    workers: Workers
    listener: Listener

    def batch(self, prompts: Sequence[int]) -> Batch:
        """Prompts as tensors, by number."""
        return Batch([self.prompts[p] for p in prompts], self.model.parts, self.metric)

    def tokens(self, prompts: Sequence[int]) -> int:
        """How long the longest context of these prompts is."""
        return max(longest_context(self.prompts[p], self.metric) for p in prompts)

    def by_length(self, prompts: Sequence[int]) -> list[int]:
        """These prompts, the shortest first, so that little of a batch is padding."""
        return sorted(prompts, key=lambda p: longest_context(self.prompts[p], self.metric))

    @cached_property
    def means(self) -> Means:
        """What nodes write on average over all clean prompts, at each position that any has; all processes help.

        Of a prompt with several contexts, which are the same up to its end, it is their average: prompts count alike.
        Sums are taken shard by shard and then added in the order of the shards, whoever computed them.
        """
        with torch.no_grad():
            return self._means()

    def _means(self) -> Means:
        parts, device = self.model.parts, self.model.device
        longest = self.tokens(range(len(self.prompts)))
        layers, d_model, d_z = parts.shape.layers, parts.d_model, parts.shape.heads * parts.d_head
        widths = [d_model, *[d_z] * layers, *[d_model] * layers]
        total = torch.zeros(longest, sum(widths), device=device)
        count = torch.zeros(longest, 1, device=device)
        for i, shard in enumerate(self.shards):
            part = torch.zeros_like(total)
            for first in range(shard.start, shard.stop, PROMPTS_AT_A_TIME):
                batch = self.batch(range(first, min(first + PROMPTS_AT_A_TIME, shard.stop)))
                shares = _shares(batch)  # [context, position]
                count[: batch.longest, 0] += shares.sum(0).round()
                if self.workers.does(i):
                    tape = self.model.taps.run(batch.clean, Tape())
                    nodes = [each.to(device) for each in (tape.input, *tape.z, *tape.mlp)]
                    written = torch.cat(nodes, dim=-1).float()
                    part[: batch.longest] += (written * shares[..., None]).sum(0)
            total += self.workers.share(part, i)
        found_input, *others = (total / count).split(widths, dim=-1)
        return Means(found_input, others[:layers], others[layers:])


def _shares(batch: Batch) -> Tensor:
    """How much each context counts at each position, [context, position]: those of a prompt that have it, as one."""
    last = batch.last()[:, None]
    real = (torch.arange(batch.longest, device=last.device) <= last).float()
    return torch.cat([own / own.sum(0).clamp(min=1) for own in real.split(list(map(len, batch.contexts)))])


def units(level: str, shape: Shape, tokens: int) -> int:
    """How many units a prompt of so many tokens has at a level."""
    heads = shape.layers * shape.heads
    return {"edge": shape.n_edges, "head": heads, "attention": heads * tokens * (tokens + 1) // 2}[level]


def at_a_time(settings: Settings) -> int:
    """How many prompts, or units, are done together: what is asked for, or a number that is fast."""
    return settings.batch_size or (_UNITS_AT_A_TIME if settings.method == "exact" else PROMPTS_AT_A_TIME)


def bytes_on_disk(levels: Sequence[str], shape: Shape, lengths: Sequence[int]) -> float:
    """About how much the scores of prompts of these lengths take."""
    return sum(_BYTES[level] * units(level, shape, length) for level in levels for length in lengths)


def shard_size(prompts: Sequence[Prompt], shape: Shape, levels: Sequence[str]) -> int:
    """How many of these prompts are written together."""
    longest = max(len(prompt.clean_ids) for prompt in prompts)
    scores = max(units(level, shape, longest) for level in levels)
    return max(1, min(_SHARD_PROMPTS, _SHARD_SCORES // scores))


def shards_of(prompts: Sequence[Prompt], size: int) -> list[range]:
    """Prompts in their order, cut into shards."""
    return [range(first, min(first + size, len(prompts))) for first in range(0, len(prompts), size)]
