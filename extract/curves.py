"""Curves: how much of the behaviour circuits of every size explain, measured by intervention.

For each level and ranking, the k strongest units are kept and all others ablated, for every prompt and size: a row of
`effects`. Rankings are by |score|, from the scores in the store:

    prompt   each prompt ranks its own units
    task     one ranking, from the mean over the prompts; with a split, over a part of them, and measured on the others
    random   a different shuffle for each prompt: what any other ranking has to beat

One ablated run serves all circuits of a batch of prompts, at all levels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..data import LEVELS, Curves
from ..graphs import InputError, Shape, ranking
from ..graphs.wiring import Ids, Mask
from .ablated import Ablated, ablate
from .attribution import to_array
from .circuits import AttentionCircuits, Circuits, HeadCircuits, Row
from .edge_circuits import EdgeCircuits
from .job import PROMPTS_AT_A_TIME, Job, units
from .memory import ExtractionError, Room
from .settings import Settings

RANDOM = "random"
_POINTS = 30
_EVERY_HEAD = 64
"""Circuits of heads are measured at every size up to this."""


def ask_curves(settings: Settings, shape: Shape, lengths: Sequence[int]) -> Curves:
    """The curves that a call asks for, on prompts of these lengths."""
    _, measured = split_prompts(len(lengths), settings.split)
    longest = max(lengths[p] for p in measured)
    largest = {level: units(level, shape, longest) for level in settings.levels}
    if settings.sizes is not None:
        wanted, most = max(settings.sizes), max(largest.values())
        if wanted > most or min(settings.sizes) > min(largest.values()):
            there = " and ".join(f"{count:,} at the level {level}" for level, count in largest.items())
            raise InputError(
                f"A circuit of {wanted if wanted > most else min(settings.sizes):,} units is asked for (--sizes), but "
                f"there are {there}."
            )
    return Curves(
        ablation=settings.ablation,
        split=settings.split,
        sizes={
            level: {
                by: tuple(
                    k for k in settings.sizes or default_sizes(level, largest[level]) if k <= largest[level]
                )
                for by in (*settings.rankings, RANDOM)
                if (level, by) != ("attention", "task")
            }
            for level in settings.levels
        },
    )


def default_sizes(level: str, largest: int) -> list[int]:
    """The sizes of circuits that make a curve, from 1 to everything.

    >>> default_sizes("edge", 32_491)[:12]
    [1, 2, 3, 4, 6, 9, 12, 18, 25, 36, 51, 74]
    >>> default_sizes("head", 144)[60:]
    [61, 62, 63, 64, 73, 84, 96, 110, 126, 144]
    """
    if level != "head":
        return np.unique(np.geomspace(1, largest, _POINTS).round().astype(int)).tolist()
    every = list(range(1, min(largest, _EVERY_HEAD) + 1))
    steps = round(7.5 * np.log(max(largest / _EVERY_HEAD, 1))) + 1
    return sorted({*every, *np.geomspace(every[-1], largest, steps).round().astype(int).tolist()})


def split_prompts(prompts: int, split: float | None) -> tuple[Ids, Ids]:
    """Which prompts the task ranking is from, and which ones circuits are measured on; ascending."""
    if split is None:
        return np.arange(prompts, dtype=np.int32), np.arange(prompts, dtype=np.int32)
    shuffled = np.random.default_rng(0).permutation(prompts).astype(np.int32)
    chosen, measured = np.split(shuffled, [round(split * prompts)])
    if not len(chosen) or not len(measured):
        raise InputError(
            f"--split {split} of {prompts} prompts leaves none to {'measure' if len(chosen) else 'rank'} by."
        )
    return np.sort(chosen), np.sort(measured)


def measure(job: Job, settings: Settings, asked: Curves) -> int:
    """Measure those curves that are not there yet, and add them to the run; how many circuits all processes did."""
    curves = asked.without(job.writer.run.curves)
    if not len(curves):
        return 0
    if job.workers.rank == 0:
        job.writer.drop_curves(but=curves)
    job.workers.wait()
    chosen, measured = split_prompts(len(job.prompts), curves.split)
    shards = {i: np.intersect1d(measured, shard).tolist() for i, shard in enumerate(job.shards)}
    missing = [i for i, own in shards.items() if own and not job.writer.has("effects", i, curves.tag)]
    left, total = len(curves) * sum(len(shards[i]) for i in missing), len(curves) * len(measured)
    job.listener.begin(_plan(curves, len(measured), total), "circuits", total, total - left)
    job.workers.wait()  # so that all processes see the same shards as missing
    if missing:
        measurer = _Measurer(job, settings, curves, chosen)
        for i in filter(job.workers.does, missing):
            job.writer.write("effects", measurer(i, shards[i]), i, curves.tag)
    job.workers.wait()
    if job.workers.rank == 0:
        job.writer.add_curves(curves)
    return left


def _plan(curves: Curves, prompts: int, total: int) -> str:
    said = []
    for level, rankings in curves.sizes.items():
        if some := {by: sizes for by, sizes in rankings.items() if sizes}:
            sizes = sorted(set().union(*some.values()))
            said.append(
                f"{level} ({len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,}; by {', '.join(some)})"
            )
    return (
        f"Curves of {prompts:,} prompts, {curves.ablation} ablation: {', '.join(said)}; {total:,} circuits."
    )


_Effect = tuple[str, str, int, int, int, float, float, float]
"""A row of `effects`, less its ablation: level, ranking, prompt, requested, kept, metric, m_all, m_none."""


@dataclass
class _Level:
    """The circuits of one batch of prompts at one level, on their way."""

    circuits: Circuits
    ablated: Ablated
    m_all: NDArray[np.float32]
    m_none: NDArray[np.float32]
    effects: dict[tuple[int, str, int], tuple[int, float]] = field(default_factory=dict)
    """By place in the batch, ranking and size: units kept, metric."""
    pending: list[tuple[tuple[int, str, int], Mask]] = field(default_factory=list)


class _Measurer:
    """Measures the circuits of prompts."""

    def __init__(self, job: Job, settings: Settings, curves: Curves, chosen: Ids) -> None:
        self._job, self._curves = job, curves
        taps = job.model.taps
        makers: dict[str, Circuits] = {
            "edge": EdgeCircuits(taps, job.wiring),
            "head": HeadCircuits(taps),
            "attention": AttentionCircuits(taps),
        }
        self._circuits = {level: makers[level] for level, by in curves.sizes.items() if any(by.values())}
        self._means = job.means if curves.ablation == "mean" else None
        self._room = Room(settings.batch_size or PROMPTS_AT_A_TIME, job.model.device, job.listener)
        self._of_task = {
            level: ranking(self._mean_scores(level, chosen))
            for level in self._circuits
            if curves.sizes[level].get("task")
        }

    def __call__(self, shard: int, prompts: Sequence[int]) -> pa.Table:
        """The effects of prompts of a shard."""
        job, first = self._job, self._job.shards[shard].start
        m_all = np.asarray(job.writer.read("prompts", ["metric_clean"], shard)["metric_clean"])
        orders = {level: self._orders(level, shard, prompts) for level in self._circuits}
        rows: list[_Effect] = []

        def prepared(some: Sequence[int]) -> Ablated:
            return ablate(
                job.model.taps, job.batch(some), list(self._circuits), self._curves.ablation, self._means
            )

        for some, ablated in self._room.over(job.by_length(prompts), prepared, "prompt", job.tokens):
            whole = m_all[np.array(some) - first]
            for level in self._circuits:
                found = self._measured(level, ablated, whole, [orders[level][p] for p in some])
                rows += [
                    (level, by, some[i], k, kept, metric, found.m_all[i], found.m_none[i])
                    for (i, by, k), (kept, metric) in found.effects.items()
                ]
        _check_finite(rows, job.model.dtype_name)
        rows.sort(key=lambda row: (LEVELS.index(row[0]), *row[1:4]))
        names = ("level", "ranking", "prompt_id", "requested", "kept", "metric", "m_all", "m_none")
        table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names)
        return table.append_column("ablation", pa.array([self._curves.ablation] * len(rows)))

    def _measured(
        self, level: str, ablated: Ablated, m_all: NDArray[np.float32], orders: Sequence[dict[str, Ids]]
    ) -> _Level:
        """All circuits of a batch at a level, the small ones first, so that those of a pass are alike."""
        circuits = self._circuits[level]
        empty = [Row(i, np.zeros(len(own[RANDOM]), dtype=bool)) for i, own in enumerate(orders)]
        state = _Level(circuits, ablated, m_all, np.zeros_like(m_all))
        state.m_none = np.concatenate([metrics for _, metrics in self._passes(state, empty)])
        by_size = sorted((k, by) for by, sizes in self._curves.sizes[level].items() for k in sizes)
        for k, by in by_size:
            shared = circuits.top(self._of_task[level], k) if by == "task" else None
            for i, own in enumerate(orders):
                kept = circuits.top(own[by], k) if shared is None else shared
                self._add(state, (i, by, k), kept)
            while len(state.pending) >= self._room.size:
                self._run(state, state.pending[: self._room.size])
        self._run(state, state.pending)
        return state

    def _add(self, state: _Level, key: tuple[int, str, int], kept: Mask) -> None:
        """Add a circuit; that of no units and that of all are known."""
        count = int(kept.sum())
        if count in (0, len(kept)):
            known = state.m_all if count else state.m_none
            state.effects[key] = count, float(known[key[0]])
            self._job.listener.advance(self._job.workers.size)
        else:
            state.pending.append((key, kept))

    def _run(self, state: _Level, some: Sequence[tuple[tuple[int, str, int], Mask]]) -> None:
        """Run circuits, which come first among those that are pending."""
        keys = iter(some)
        for rows, metrics in self._passes(state, [Row(key[0], kept) for key, kept in some]):
            for row, metric in zip(rows, metrics, strict=True):
                state.effects[next(keys)[0]] = int(row.kept.sum()), float(metric)
            self._job.listener.advance(
                len(rows) * self._job.workers.size
            )  # the others are taken to be as fast
        del state.pending[: len(some)]

    def _passes(
        self, state: _Level, rows: Sequence[Row]
    ) -> Iterator[tuple[Sequence[Row], NDArray[np.float32]]]:
        """The metrics of rows, as many of them at a time as there is room for."""
        return self._room.over(
            rows,
            lambda some: to_array(state.circuits(state.ablated, some)),
            "circuit",
            lambda _: state.ablated.batch.longest,
        )

    def _orders(self, level: str, shard: int, prompts: Sequence[int]) -> dict[int, dict[str, Ids]]:
        """By prompt, its own rankings."""
        sizes, orders = self._curves.sizes[level], {}
        for prompt, scores in self._scores(level, shard):
            if prompt in prompts:
                shuffle = np.random.default_rng([prompt, LEVELS.index(level)])
                orders[prompt] = {RANDOM: shuffle.permutation(len(scores)).astype(np.int32)}
                if sizes.get("prompt"):
                    orders[prompt]["prompt"] = ranking(scores)
        return orders

    def _mean_scores(self, level: str, chosen: Ids) -> NDArray[np.float32]:
        """The mean scores of units over some prompts."""
        total: NDArray[np.float64] | float = 0.0
        wanted = set(chosen.tolist())
        for shard in range(len(self._job.shards)):
            for prompt, scores in self._scores(level, shard):
                if prompt in wanted:
                    total = total + scores.astype(np.float64)
        return np.asarray(total / len(wanted), dtype=np.float32)

    def _scores(self, level: str, shard: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The scores of each prompt of a shard, in the order of the units."""
        scores = np.asarray(self._job.writer.read(f"{level}_scores", ["score"], shard)["score"])
        end = 0
        for prompt in self._job.shards[shard]:
            begin = end
            end += units(level, self._job.wiring.shape, self._job.tokens([prompt]))
            yield prompt, scores[begin:end]


def _check_finite(rows: Sequence[_Effect], dtype: str) -> None:
    """Refuse numbers that are none."""
    bad = sorted({row[2] for row in rows if not np.isfinite(row[5:]).all()})
    if bad:
        raise ExtractionError(
            f"Circuits of {len(bad)} prompts ({', '.join(map(str, bad[:10]))}) have metrics that are not finite in "
            f"{dtype}: try --dtype bfloat16 or float32."
        )
