"""First-order scores of a batch of prompts, at every level, from the same few passes.

`eap`: the gradient of the metric at the clean run, times what ablation changes. `eap-ig`: the gradient averaged
over runs whose input embeddings lie between the corrupted and the clean ones,

    corrupted + (k / m) (clean - corrupted),   k = 0 .. m-1,

which is the rule of the reference implementation; its first run is the corrupted one, so that comes for free.

What is multiplied with what, by level:
    edge       sum over positions of (change of what u writes) . (gradient at v's copy of the stream)
    head       sum over positions of (change of z) . (gradient at z)
    attention  (gradient at z_i) . (change of the message p_ij g_ij v_j), for each pair of positions

A prompt whose answers have several tokens has several contexts (`metrics`), in which units are ablated all at once: its
score is the sum over them.

Clean and corrupted prompts are the same up to some position. Under the ablation `corrupt` nothing changes before it, so
a long common prefix is run once, and neither gradients nor differences are taken there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import Answer, Prompt
from ..graphs import Wiring
from .accuracy import judge
from .edges import Deltas, EdgeScorer, Reader, Slope, at_rows
from .metrics import Metric, contexts_of
from .parts import Parts
from .taps import AttentionKept, Tape, Taps

INTEGRATION_RULE = "inputs at corrupted + (k/m)(clean - corrupted), k = 0..m-1"
_WORTH_SHARING = 0.25
"""A common prefix is run on its own if it is at least this share of the longest prompt."""


@dataclass(frozen=True)
class Attention:
    """The attention edges of one prompt, key not after query: [layer, head, pair]."""

    weight: NDArray[np.float32]
    gate: NDArray[np.float32]
    score: NDArray[np.float32]


@dataclass(frozen=True)
class Scores:
    """The scores of a batch, by level, and its metrics."""

    metric_clean: NDArray[np.float32]
    metric_corrupted: NDArray[np.float32]
    right: NDArray[np.float32]
    """Whether the model is right, 1 or 0, and the rank of its best correct answer; NaN where no answer is named."""
    answer_rank: NDArray[np.float32]
    edge: NDArray[np.float32] | None = None
    """[prompt, edge]"""
    head: NDArray[np.float32] | None = None
    """[prompt, layer * head]"""
    attention: Sequence[Attention] | None = None
    """By prompt."""

    def finite(self) -> bool:
        """Whether all numbers are."""
        kept = [self.metric_clean, self.metric_corrupted, self.edge, self.head]
        kept += [one.score for one in self.attention or ()]
        return all(np.isfinite(numbers).all() for numbers in kept if numbers is not None)

    def by_prompt(self) -> Iterator["Scores"]:
        """The scores of each prompt on its own."""
        for i in range(len(self.metric_clean)):
            own = slice(i, i + 1)
            yield Scores(
                self.metric_clean[own],
                self.metric_corrupted[own],
                self.right[own],
                self.answer_rank[own],
                None if self.edge is None else self.edge[own],
                None if self.head is None else self.head[own],
                None if self.attention is None else self.attention[own],
            )


@dataclass(frozen=True)
class Means:
    """What nodes write on average over the task's clean prompts, position by position."""

    input: Tensor
    """[position, d_model]"""
    z: Sequence[Tensor]
    """By layer, [position, head * d_head]."""
    mlp: Sequence[Tensor]
    """By layer, [position, d_model]."""


class Batch:
    """Prompts as tensors: all their contexts, padded at the end."""

    def __init__(self, prompts: Sequence[Prompt], parts: Parts, metric: str) -> None:
        self.device, self.prompts = parts.home, prompts
        self.contexts: list[range] = []
        """By prompt, which contexts are its."""
        texts: list[tuple[Prompt, Answer]] = []
        for prompt in prompts:
            own = [(prompt, after) for after in contexts_of(prompt, metric)]
            self.contexts.append(range(len(texts), len(texts) + len(own)))
            texts += own
        self.lengths = [len(prompt.clean_ids) + len(after) for prompt, after in texts]
        """Of contexts."""
        self.longest = max(self.lengths)
        self.shared_prefix = min(map(shared_prefix, prompts))
        """How many positions all prompts have in common with their corrupted twins."""
        self.clean = self._padded([(*prompt.clean_ids, *after) for prompt, after in texts])
        self.corrupted = self._padded([(*prompt.corrupted_ids, *after) for prompt, after in texts])
        self.metric = Metric(metric, parts.unembed, prompts, self.device)

    def __len__(self) -> int:
        """How many prompts it has."""
        return len(self.contexts)

    def last(self, first: int = 0) -> Tensor:
        """The last real position of each context, counted from `first`."""
        return torch.tensor(self.lengths, device=self.device) - 1 - first

    def rows(self, begin: int, start: int) -> tuple[Tensor, list[slice], list[int]]:
        """The real positions from `begin` on, as rows of a pass that starts at `start`.

        Also which of them are whose, by prompt, and where each context ends.
        """
        rows: list[int] = []
        spans, ends = [], []
        for own in self.contexts:
            first = len(rows)
            for context in own:
                offset = context * (self.longest - start) - start
                rows += range(offset + begin, offset + self.lengths[context])
                ends.append(len(rows) - 1)
            spans.append(slice(first, len(rows)))
        return torch.tensor(rows, device=self.device), spans, ends

    def everywhere(self) -> Tensor:
        """All positions as rows, with padding, so that all contexts have as many."""
        return torch.arange(self.clean.numel(), device=self.device)

    def _padded(self, ids: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[*row, *[0] * (self.longest - len(row))] for row in ids], device=self.device)


def shared_prefix(prompt: Prompt) -> int:
    """How many positions a prompt has in common with its corrupted twin, the last one never among them."""
    pairs = zip(prompt.clean_ids[:-1], prompt.corrupted_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Attributor:
    """First-order scores of one model in one setting: `eap-ig` with steps, `eap` without."""

    def __init__(
        self,
        taps: Taps,
        wiring: Wiring,
        *,
        levels: Sequence[str],
        steps: int | None = None,
        ablation: str = "corrupt",
        means: Means | None = None,
    ) -> None:
        self._taps, self._parts = taps, taps.parts
        self._levels, self._steps, self._ablation, self._means = levels, steps, ablation, means
        self._edges = EdgeScorer(taps.parts, wiring) if "edge" in levels else None

    def __call__(self, batch: Batch) -> Scores:
        """Score a batch."""
        everywhere = self._ablation != "corrupt" or "attention" in self._levels
        same = 0 if everywhere else batch.shared_prefix
        start, prefix = 0, None
        if same >= max(1, _WORTH_SHARING * batch.longest):
            start, prefix = same, self._taps.run(batch.clean[:, :same], Tape(kept_keys={})).kept_keys
        rows, spans, ends = batch.rows(same, start)
        slopes = _Slopes(
            self._edges.readers if self._edges else [], self._parts, rows, at_z=set(self._levels) != {"edge"}
        )
        integrated = self._steps is not None
        last = batch.last(start)

        def run(ids: Tensor, *, gradients: bool, between: Tensor | None = None) -> Tape:
            kept: AttentionKept | None = {} if "attention" in self._levels and between is None else None
            tape = Tape(prefix=prefix, last=last, start=between, gradients=gradients, attention=kept)
            return self._taps.run(ids[:, start:], tape)

        clean = run(batch.clean, gradients=not integrated)
        batch.metric.set_clean(clean.final)
        metric_clean = batch.metric(clean.final)
        right, rank = judge(self._parts, clean.final.detach(), batch.prompts, batch.contexts)
        if not integrated:
            slopes.add(clean, metric_clean, 1.0)
        corrupted = run(batch.corrupted, gradients=integrated)
        metric_corrupted = batch.metric(corrupted.final)
        if self._steps is not None:
            slopes.add(corrupted, metric_corrupted, 1 / self._steps)
            for k in range(1, self._steps):
                way = k / self._steps
                between = corrupted.input + way * (clean.input - corrupted.input)
                step = run(batch.clean, gradients=True, between=between)
                slopes.add(step, batch.metric(step.final), 1 / self._steps)

        deltas = find_deltas(self._parts, clean, corrupted, rows, self._ablation, self._means)
        return Scores(
            metric_clean=to_array(metric_clean),
            metric_corrupted=to_array(metric_corrupted),
            right=to_array(right),
            answer_rank=to_array(rank),
            edge=to_array(self._edges(deltas, slopes.at_readers, spans, ends)) if self._edges else None,
            head=to_array(_head_scores(deltas, slopes.at_z, rows, spans)) if "head" in self._levels else None,
            attention=_attention_scores(batch, clean, corrupted, slopes.at_z, zero=self._ablation == "zero")
            if "attention" in self._levels
            else None,
        )


def find_deltas(
    parts: Parts, clean: Tape, corrupted: Tape, rows: Tensor, ablation: str, means: Means | None
) -> Deltas:
    """What ablation changes in what nodes write, at the chosen positions. With means, passes are whole."""
    positions = clean.input.shape[1]
    position = rows % positions

    def delta(now: Tensor, corrupt: Tensor, mean: Tensor | None) -> Tensor:
        was, instead = (at_rows(x.expand(-1, positions, -1), rows).float() for x in (now, corrupt))
        if ablation == "zero":
            return -was
        return (instead if mean is None else mean[position].to(was.device)) - was

    none = [None] * parts.shape.layers
    return Deltas(
        input=delta(clean.input, corrupted.input, means.input if means else None),
        z=[
            delta(*each).unflatten(-1, (parts.shape.heads, -1))
            for each in zip(clean.z, corrupted.z, means.z if means else none, strict=True)
        ],
        # the last layer's has one position, which any row may take: only the last one has a gradient
        mlp=[
            delta(*each) for each in zip(clean.mlp, corrupted.mlp, means.mlp if means else none, strict=True)
        ],
    )


class _Slopes:
    """Gradients at readers and at z, summed over the steps of a path."""

    def __init__(self, readers: Sequence[Reader], parts: Parts, rows: Tensor, *, at_z: bool) -> None:
        self._readers, self._parts, self._rows = readers, parts, rows
        self.at_readers = [Slope() for _ in readers]
        self.at_z: list[Tensor] = []
        """By layer, [prompt, position, head, d_head] in float32."""
        self._wants_z = at_z

    def add(self, tape: Tape, metric: Tensor, share: float) -> None:
        """Take the gradients of a pass, with its share of the path, and drop what it kept for them."""
        read = list(tape.read.values()) if self._readers else []
        at = [*read, *(tape.z if self._wants_z else [])]
        gradients = torch.autograd.grad(metric.sum(), at)
        by_module = dict(zip(tape.read, gradients, strict=False))
        for reader, slope in zip(self._readers, self.at_readers, strict=True):
            rows = torch.arange(len(tape.final), device=metric.device) if reader.last else self._rows
            slope.add(reader, tape, by_module, rows, share)
        if self._wants_z:
            heads = self._parts.shape.heads
            scaled = [(share * g.float()).unflatten(-1, (heads, -1)) for g in gradients[len(read) :]]
            self.at_z = [a + b for a, b in zip(self.at_z, scaled, strict=True)] if self.at_z else scaled
        tape.read.clear()
        tape.streams.clear()
        tape.z = [z.detach() for z in tape.z]


def _head_scores(deltas: Deltas, at_z: Sequence[Tensor], rows: Tensor, spans: Sequence[slice]) -> Tensor:
    """Scores [prompt, layer * head]."""
    by_row = torch.cat(
        [
            (delta * at_rows(slope, rows)).sum(-1).to(rows.device)
            for delta, slope in zip(deltas.z, at_z, strict=True)
        ],
        dim=1,
    )
    return torch.stack([by_row[span].sum(0) for span in spans])


def _attention_scores(
    batch: Batch, clean: Tape, corrupted: Tape, at_z: Sequence[Tensor], *, zero: bool
) -> list[Attention]:
    layers = []
    for layer, slope in enumerate(at_z):
        slope = slope.transpose(1, 2)  # [prompt, head, query, d_head]
        pattern, gate, value = attention_of(clean, layer)
        score = -pattern * gate * (slope @ value.transpose(-1, -2))  # [prompt, head, query, key]
        if not zero:
            instead, instead_gate, instead_value = attention_of(corrupted, layer)
            score += instead * instead_gate * (slope @ instead_value.transpose(-1, -2))
        layers.append([to_array(x) for x in (pattern, gate, score)])
    found = [np.stack(x, axis=1) for x in zip(*layers, strict=True)]  # each [prompt, layer, head, query, key]
    return [
        Attention(*(x[i][:, :, *np.tril_indices(length)] for x in found))
        for i, length in enumerate(batch.lengths)
    ]


def attention_of(tape: Tape, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pattern and gate [prompt, head, query, key] and values [prompt, head, key, d_head], in float32."""
    assert tape.attention is not None
    pattern, gate, value = (None if x is None else x.float() for x in tape.attention[layer])
    assert pattern is not None
    assert value is not None
    return pattern, torch.ones_like(pattern) if gate is None else gate, value


def to_array(x: Tensor) -> NDArray[np.float32]:
    """A tensor as float32 in ordinary memory."""
    return np.asarray(x.detach().float().numpy(force=True))
