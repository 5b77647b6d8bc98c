"""The plan of an extraction: what it would do, and the memory that it needs, before any weights are loaded.

Nobody has to keep formulas in step with the code: the plan *rehearses* the extraction. The model is made from its
config on the meta device, where tensors have shapes and no numbers, one batch goes through the very functions that will
score and measure it, and a `Ledger` notes what is alive when most is. The batch is the one with the most rows of all
that the prompts make. What the terms come to, for B prompts of T tokens, L layers, H heads, d = d_model, S steps, the
model's own bytes a number b, in a family whose blocks keep A numbers a token for the way back:

    weights       b * parameters
    activations   B T L A b for the pass that is under way; of the others what nodes wrote, B T (d + L (H d_head + d)) b
    slopes        4 B T L ((3 H d_head + d) + S (2 d + 3 H))       dq / sigma; for each step x_hat and c (`edges.Slope`)
    deltas        4 B T (d + L (H d_head + d))                     `attribution.find_deltas`
    workspace     4 R d (sources + slots)                          R rows at a time (`edges.EdgeScorer`); for circuits
                  b N T d (sources + 2)                            of edges, N of them (`edge_circuits._Sources`)
    scores        4 B edges, and what the products leave for a moment

Attention is rehearsed as matrix products, which fused kernels need less than. What an allocator rounds up and leaves
unused, and what libraries keep for themselves, is not in it: `ALLOWANCE` is.

Where blocks are on several devices, what layers keep is where they are, and everything else where the last one is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Curves, Prompt
from ..graphs import Inputs, Shape, Wiring
from .ablated import ablate
from .attribution import Attributor, Batch, Means, find_deltas, shared_prefix
from .circuits import Circuits, Row
from .curves import ask_curves, circuits_of, rows_at_a_time
from .edges import expand_sources
from .job import PROMPTS_AT_A_TIME, Job, at_a_time, bytes_on_disk, shard_size, shards_of, units
from .ledger import OTHER, Ledger
from .metrics import contexts_of, longest_context
from .models import Model
from .placement import weight_sizes
from .settings import Deaf, Settings
from .taps import Edit, Tape
from .workers import Workers

ALLOWANCE = 1.1
"""How much more than the plan says is taken to be needed, for what an allocator and libraries need on top."""
_MAKERS = {
    "Taps.run": "activations",
    "Taps.enter": "activations",
    "Taps.attend": "activations",
    "Taps.rerun": "activations",
    "_Slopes.add": "gradients",
    "Slope.add": "slopes",
    "find_deltas": "deltas",
    "Workspace.__call__": "workspace",
    "expand_sources": "workspace",
    "EdgeScorer.__call__": "scores",
    "_head_scores": "scores",
    "_attention_scores": "scores",
    "_scores_so_far": "scores",
    "EdgeCircuits.__call__": "circuits",
    "_Live.__call__": "circuits",
    "Job._means": "means",
}
"""By the function that makes it, what memory is for."""
TERMS = (*dict.fromkeys(_MAKERS.values()), OTHER)
_BY_LAYER = ("activations", "gradients", "slopes", "deltas")
"""What is kept where the layer is."""
_ORDERS = 4
"""Circuits that are rehearsed together."""
_META = torch.device("meta")


@dataclass(frozen=True)
class Phase:
    """A part of an extraction, when it takes the most memory."""

    name: str
    terms: Mapping[str, int]
    """Bytes by what they are for, without the weights, when they are most."""
    by_layer: int
    """The most bytes of what is kept where the layers are, which may be most at another time."""
    at_home: int
    """The most bytes of all else."""

    @property
    def peak(self) -> int:
        """Bytes above the weights."""
        return sum(self.terms.values())


@dataclass(frozen=True)
class Plan:
    """What an extraction would do and need."""

    shape: Shape
    edges: int
    dtype: str
    prompts: int
    tokens: int
    """Of all contexts of all prompts together."""
    batch_size: int
    disk: int
    """About how many bytes its parts take."""
    weights: tuple[int, ...]
    """Bytes by device."""
    blocks: tuple[int, ...]
    """How many of the model's blocks are on each device."""
    home: int
    """The device of the last block, where all else is."""
    phases: tuple[Phase, ...]
    passes: float
    """About how many times as much work it is as running every prompt once."""
    flop: float
    """Of running every prompt once."""

    def on(self, device: int, phase: Phase) -> int:
        """Bytes on one of the devices in a phase, weights included; not more than this.

        All blocks keep as much, and the one that runs works with as much again.
        """
        if not self.blocks[device]:
            return self.weights[device]
        share = round(phase.by_layer * (self.blocks[device] + 1) / sum(self.blocks))
        all_else = phase.at_home if device == self.home else 0
        return self.weights[device] + min(phase.peak, share + all_else)

    @property
    def peaks(self) -> tuple[int, ...]:
        """The most bytes on each device."""
        return tuple(max(self.on(i, phase) for phase in self.phases) for i in range(len(self.blocks)))

    def fits(self, memory: Sequence[int]) -> bool:
        """Whether devices with so many bytes, one by one, are enough."""
        return all(peak * ALLOWANCE <= room for peak, room in zip(self.peaks, memory, strict=True))


def make_plan(
    model: Model,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    accelerator: bool = False,
    devices: Sequence[int] | None = None,
) -> Plan:
    """The plan for a model of `load_sketch`.

    An accelerator has memory of its own, and sums up circuits in another way. `devices` says on which device each block
    is, counted from 0.
    """
    shape = replace(model.shape, inputs=Inputs.MERGED) if settings.merged else model.shape
    wiring, lengths = Wiring(shape), [len(prompt.clean_ids) for prompt in prompts]
    read = sum(_tokens(prompt, settings.metric) for prompt in prompts)
    curves = ask_curves(settings, shape, lengths) if settings.curves else None
    devices = devices or [0] * shape.layers
    own = sum(p.numel() for block in model.parts.blocks for p in block.module.parameters())
    return Plan(
        shape=shape,
        edges=wiring.n_edges,
        dtype=model.dtype_name,
        prompts=len(prompts),
        tokens=read,
        batch_size=at_a_time(settings),
        disk=round(bytes_on_disk(settings.levels, shape, lengths)),
        weights=weights_by_device(model, devices),
        blocks=tuple(devices.count(i) for i in range(max(devices) + 1)),
        home=devices[-1],
        phases=_rehearsed(model, prompts, wiring, settings, curves, accelerator),
        passes=_passes(settings, shape, lengths, curves, model.parts.d_model * wiring.n_edges / own),
        flop=2.0 * own * read,
    )


def one_after_the_other(plans: Mapping[str, Plan]) -> Plan:
    """The plan of several runs on the same prompts: their work together, their phases one by one.

    Plans go by what the names of their runs end in, and so do the names of their phases.
    """
    phases = [
        replace(phase, name=f"{ending.removeprefix('-')} {phase.name}".strip())
        for ending, plan in plans.items()
        for phase in plan.phases
    ]
    return replace(
        next(iter(plans.values())),
        disk=sum(plan.disk for plan in plans.values()),
        phases=tuple(phases),
        passes=sum(plan.passes for plan in plans.values()),
    )


def largest_batch(
    plan: Plan,
    model: Model,
    prompts: Sequence[Prompt],
    settings: Settings,
    memory: Sequence[int],
    **options: Any,
) -> int | None:
    """The batch size of a plan, halved until devices with so much memory are enough; None if not even 1 fits."""
    size = plan.batch_size
    while not plan.fits(memory):
        size //= 2
        if not size:
            return None
        plan = make_plan(model, prompts, replace(settings, batch_size=size), **options)
    return size


def weights_by_device(model: Model, devices: Sequence[int]) -> tuple[int, ...]:
    """Bytes of the weights on each device; what is in no block is where the last one is."""
    sizes, rest = weight_sizes(model.parts)
    weights = [0] * (max(devices) + 1)
    weights[devices[-1]] = rest
    for size, device in zip(sizes, devices, strict=True):
        weights[device] += size
    return tuple(weights)


class _Rehearsal(Ledger):
    """A ledger of work on the meta device, which goes on where it would need numbers."""

    def begin(self) -> None:
        """Begin a phase."""
        super().begin()
        self._by_layer = self._at_home = 0
        self.entered()

    def entered(self) -> None:
        """Note the peaks of what is with the layers, and of what is not."""
        super().entered()
        by_layer = sum(self.now[term] for term in _BY_LAYER)
        self._by_layer = max(self._by_layer, by_layer)
        self._at_home = max(self._at_home, self.now.total() - by_layer)

    def phase(self, name: str) -> Phase:
        """What it came to since it began, and begin anew."""
        found = Phase(name, self.at_peak, self._by_layer, self._at_home)
        self.begin()
        return found

    def do(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What leaves the device arrives as zeros."""
        where = kwargs.get("device")
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and where not in (None, _META):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)


def _rehearsed(
    model: Model,
    prompts: Sequence[Prompt],
    wiring: Wiring,
    settings: Settings,
    curves: Curves | None,
    accelerator: bool,
) -> tuple[Phase, ...]:
    """All phases, one batch each. Where there is no accelerator, results stay in the same memory."""
    phases = []
    shards = shards_of(prompts, shard_size(prompts, wiring.shape, settings.levels))
    size = settings.batch_size or PROMPTS_AT_A_TIME
    kinds = [_META] if accelerator else [_META, torch.get_default_device()]
    with _Rehearsal(kinds, _MAKERS) as ledger:
        means = None
        if settings.ablation == "mean":
            means = _means(model, prompts, wiring, settings)
            phases.append(ledger.phase("means"))
        common: dict[str, Any] = {"ablation": settings.ablation, "means": means}
        batch = _batch(model, prompts, shards, settings, size)
        so_far = None if accelerator else _scores_so_far(len(shards[0]), wiring.shape, settings)
        if settings.method == "exact":
            _score_exactly(model, prompts, wiring, settings, **common)
        else:
            steps = settings.steps if settings.method == "eap-ig" else None
            Attributor(model.taps, wiring, levels=settings.levels, steps=steps, **common)(batch)
        del so_far
        phases.append(ledger.phase("scoring"))
        makers = circuits_of(model.taps, wiring, curves, dense=accelerator) if curves else {}
        for level, circuits in makers.items():
            ablated = ablate(model.taps, batch, list(makers), **common)
            rows = [i % len(batch) for i in range(max(rows_at_a_time(size), len(batch)))]
            _measure(circuits, ablated, rows, level, wiring)
            del ablated
            phases.append(ledger.phase(f"{level} circuits"))
    return tuple(phases)


def _means(model: Model, prompts: Sequence[Prompt], wiring: Wiring, settings: Settings) -> Means:
    """What nodes write on average, of as many of the longest prompts as run together."""
    longest = sorted(prompts, key=lambda prompt: -_tokens(prompt, settings.metric))[:PROMPTS_AT_A_TIME]
    writer: Any = None  # nothing is written
    alone = Workers(0, 1, _META)
    shards = [range(len(longest))]
    return Job(model, longest, shards, wiring, settings.metric, writer, alone, Deaf()).means


def _scores_so_far(prompts: int, shape: Shape, settings: Settings) -> Tensor:
    """The scores of a shard, which are kept until it is written; those of attention edges are no tensors by then."""
    return torch.empty(prompts, sum(units(level, shape, 0) for level in settings.levels), dtype=torch.float32)


def _measure(circuits: Circuits, ablated: Any, rows: Sequence[int], level: str, wiring: Wiring) -> None:
    """Circuits of half of the units, in several random orders: no others have as much to sum."""
    tokens = [ablated.batch.lengths[own[0]] for own in ablated.batch.contexts]

    @cache
    def kept(tokens: int, seed: int) -> Any:
        count = units(level, wiring.shape, tokens)
        order = np.random.default_rng(seed).permutation(count).astype(np.int32)
        return circuits.top(order, (count + 1) // 2)

    # what any circuit needs is there for all that run with it, and prompts rank units in their own ways
    circuits(ablated, [Row(i, kept(tokens[i], at % _ORDERS)) for at, i in enumerate(rows)])


def _score_exactly(
    model: Model, prompts: Sequence[Prompt], wiring: Wiring, settings: Settings, ablation: str, means: Any
) -> None:
    """Run the whole model again for as many units as run together, as those of the first layer do."""
    parts, taps = model.parts, model.taps
    batch = Batch([max(prompts, key=lambda prompt: _padded(prompt, settings.metric))], parts, settings.metric)
    attention = "attention" in settings.levels
    clean, corrupted = (
        taps.run(ids, Tape(last=batch.last(), again=True, attention={} if attention else None))
        for ids in (batch.clean, batch.corrupted)
    )
    batch.metric.set_clean(clean.final)
    rows, contexts = batch.everywhere(), len(batch.lengths)
    deltas = find_deltas(parts, clean, corrupted, rows, ablation, means)
    count, dtype = at_a_time(settings), parts.out_weight(0).dtype
    if "edge" in settings.levels:
        written = deltas.input.new_empty(len(wiring.sources), len(rows), parts.d_model)
        expand_sources(parts, deltas, slice(0, len(rows)), centred=False, out=written)
        mask = torch.zeros(count * contexts, parts.shape.heads, 3, dtype=torch.bool, device=_META)
        delta = written[torch.zeros(count, dtype=torch.long, device=_META)].to(dtype)
        edit = Edit(0, "reads", delta.unflatten(1, (contexts, -1)).flatten(0, 1), mask)
        batch.metric(taps.rerun(clean, edit.with_unchanged(contexts)))
    if set(settings.levels) != {"edge"}:
        width = parts.shape.heads * parts.d_head
        # at the level attention, the messages of a layer three times: their change, and what is made of it
        kept = [deltas.input.new_empty(len(rows), len(rows), width) for _ in range(3 * attention)]
        delta = deltas.input.new_zeros(count * contexts, batch.longest, width)
        batch.metric(taps.rerun(clean, Edit(0, "z", delta.to(dtype)).with_unchanged(contexts)))
        kept.clear()


def _batch(
    model: Model, prompts: Sequence[Prompt], shards: Sequence[range], settings: Settings, size: int
) -> Batch:
    """The batch that has the most rows, of those that the shards are cut into."""
    everywhere = settings.ablation != "corrupt" or "attention" in settings.levels

    def rows(batch: Sequence[Prompt]) -> tuple[int, int]:
        longest = max(longest_context(prompt, settings.metric) for prompt in batch)
        contexts = sum(len(contexts_of(prompt, settings.metric)) for prompt in batch)
        same = 0 if everywhere else min(map(shared_prefix, batch))
        return contexts * (longest - same), longest

    batches = []
    for shard in shards:
        own = sorted((prompts[p] for p in shard), key=lambda prompt: longest_context(prompt, settings.metric))
        batches += [own[first : first + size] for first in range(0, len(own), size)]
    return Batch(max(batches, key=rows), model.parts, settings.metric)


def _tokens(prompt: Prompt, metric: str) -> int:
    """Of all contexts of a prompt."""
    return sum(len(prompt.clean_ids) + len(after) for after in contexts_of(prompt, metric))


def _padded(prompt: Prompt, metric: str) -> int:
    """The same, when all are as long as the longest."""
    return len(contexts_of(prompt, metric)) * longest_context(prompt, metric)


def _passes(
    settings: Settings, shape: Shape, lengths: Sequence[int], curves: Curves | None, contraction: float
) -> float:
    """How many forward passes of each prompt it comes to: a backward pass as one, a circuit as one at most."""
    passes = 1.0 if settings.ablation == "mean" else 0.0
    if settings.method == "exact":  # an edge runs a third of the model again, a head half of it
        mean = sum(lengths) // len(lengths)
        passes += 2 + sum(
            units(level, shape, mean) / (3 if level == "edge" else 2) for level in settings.levels
        )
    else:
        passes += 3 if settings.method == "eap" else 1 + 2 * settings.steps
        passes += contraction if "edge" in settings.levels else 0
    if curves is not None:
        passes += 2 + len(curves) * len(curves.prompts(len(lengths))[1]) / len(lengths)
    return passes
