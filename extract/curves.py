"""Curves: how much of the behaviour circuits of every size explain, measured by intervention.

For each level and ranking, the k strongest units are kept and all others ablated, for every prompt and size: a row of
`effects`. Rankings are from the scores in the store:

    prompt   each prompt ranks its own units, by |score|
    task     one ranking, by the mean over the prompts, its |size|; with a split, over a part of them, and measured on
             the others; cross-fitted, over each half of the prompts, however often they are halved, and measured on the
             other half
    signed   likewise, the most helpful first; and so every other one of `graphs.RANKINGS`
    random   a different shuffle for each prompt: what any other ranking has to beat

One ablated run serves all circuits of a batch of prompts, at all levels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..data import LEVELS, Curves
from ..errors import ExtractionError, InputError
from ..graphs import RANKINGS, Shape, Wiring, ranking
from ..graphs.wiring import Ids
from .ablated import Ablated, ablate
from .attribution import to_array
from .circuits import AttentionCircuits, Circuits, HeadCircuits, Row
from .edge_circuits import EdgeCircuits
from .job import PROMPTS_AT_A_TIME, Job, units
from .memory import Room
from .models import is_accelerator
from .settings import MIB, Settings
from .taps import Taps

RANDOM = "random"
_POINTS = 30
_MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_EVERY_HEAD = 64
"""Circuits of heads are measured at every size up to this."""


def ask_curves(settings: Settings, shape: Shape, lengths: Sequence[int]) -> Curves:
    """The curves that a call asks for, on prompts of these lengths."""
    asked = Curves(ablation=settings.ablation, split=settings.split, sizes={}, cross_fit=settings.cross_fit)
    if settings.cross_fit and len(lengths) < 2:
        raise InputError(f"--cross-fit {settings.cross_fit} halves the prompts, and there is {len(lengths)}.")
    chosen, measured = asked.prompts(len(lengths))
    if not len(chosen) or not len(measured):
        what = "measure circuits on" if len(chosen) else "rank by"
        raise InputError(f"--split {settings.split} of {len(lengths)} prompts leaves none to {what}.")
    longest = max(lengths[p] for p in measured)
    largest = {level: units(level, shape, longest) for level in settings.levels}
    given = settings.sizes
    if given is not None and not isinstance(given, str):
        beyond = [k for k in given if k > max(largest.values())]
        beyond += [min(given)] if min(given) > min(largest.values()) else []
        if beyond:
            there = " and ".join(f"{count:,} at the level {level}" for level, count in largest.items())
            raise InputError(
                f"A circuit of {beyond[0]:,} units is asked for (--sizes), but there are {there}: choose from 1 to "
                f"{min(largest.values()):,}."
            )
    sizes = {
        level: {
            by: tuple(int(k) for k in _sizes(given, level, most) if k <= most)
            for by in (*settings.rankings, RANDOM)
            if level != "attention" or by not in RANKINGS
        }
        for level, most in largest.items()
    }
    return replace(asked, sizes=sizes)


def mib_sizes(largest: int) -> list[int]:
    """The sizes at which the MIB benchmark measures circuits; without 0, which the smallest may come to.

    >>> mib_sizes(32_491)
    [32, 64, 162, 324, 649, 1624, 3249, 6498, 16245, 32491]
    """
    return sorted({int(share * largest) for share in _MIB_SHARES} - {0})


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


def _sizes(given: Sequence[int] | str | None, level: str, largest: int) -> Sequence[int]:
    if given == MIB:
        return mib_sizes(largest)
    return default_sizes(level, largest) if given is None or isinstance(given, str) else given


def rows_at_a_time(prompts: int) -> int:
    """How many circuits run together where so many prompts do: more would be little faster, and take more memory."""
    return prompts * 3 // 2


def circuits_of(taps: Taps, wiring: Wiring, curves: Curves, *, dense: bool) -> dict[str, Circuits]:
    """What measures the circuits of each level that the curves have."""
    makers: dict[str, Circuits] = {
        "edge": EdgeCircuits(taps, wiring, dense=dense),
        "head": HeadCircuits(taps),
        "attention": AttentionCircuits(taps),
    }
    return {level: makers[level] for level, by in curves.sizes.items() if any(by.values())}


def add_curves(job: Job, settings: Settings, asked: Curves) -> int:
    """Measure those curves that are not there yet, and add them to the run; how many circuits all processes did."""
    curves = asked.without(job.writer.run.curves)
    if not len(curves):
        return 0
    if job.workers.rank == 0:
        job.writer.drop_curves(but=curves)
    job.workers.wait()
    done = measure(job, settings, curves)
    job.workers.wait()
    if job.workers.rank == 0:
        job.writer.add_curves(curves)
    return done


def measure(job: Job, settings: Settings, curves: Curves) -> int:
    """Measure curves for those shards that lack them; how many circuits all processes did."""
    _, measured = curves.prompts(len(job.prompts))
    shards = {i: np.intersect1d(measured, shard).tolist() for i, shard in enumerate(job.shards)}
    missing = [i for i, own in shards.items() if own and not job.writer.has("effects", i, curves.tag)]
    job.workers.wait()  # so that all processes see the same shards as missing
    if not missing:
        return 0
    left, total = len(curves) * sum(len(shards[i]) for i in missing), len(curves) * len(measured)
    job.listener.begin(_plan(curves, len(measured), total), "circuits", total, total - left)
    measurer = _Measurer(job, settings, curves)
    for i in filter(job.workers.does, missing):
        job.writer.write("effects", measurer(i, shards[i]), i, curves.tag)
    return left


def _plan(curves: Curves, prompts: int, total: int) -> str:
    said = []
    for level, rankings in curves.sizes.items():
        if some := {by: sizes for by, sizes in rankings.items() if sizes}:
            sizes = sorted(set().union(*some.values()))
            many = f"{len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,}"
            names = [
                f"{by} ({_halvings(curves)})" if by in RANKINGS and curves.cross_fit else by for by in some
            ]
            said.append(
                f"\n  {level}: {many if len(sizes) > 1 else f'size {sizes[0]:,}'}, by {', '.join(names)}"
            )
    return f"Curves of {prompts:,} prompts, {curves.ablation} ablation, {total:,} circuits:{''.join(said)}"


def _halvings(curves: Curves) -> str:
    return "prompts halved once" if curves.cross_fit == 1 else f"prompts halved {curves.cross_fit} times"


_COLUMNS = ("level", "ranking", "prompt_id", "requested", "fold", "kept", "metric", "m_all", "m_none")
_Effect = tuple[str, str, int, int, int | None, int, float, float, float]
"""A row of `effects`, less its ablation."""
_Orders = Mapping[int, Mapping[str, Ids]]
"""By prompt, its own rankings."""


class _Measurer:
    """Measures the circuits of prompts."""

    def __init__(self, job: Job, settings: Settings, curves: Curves) -> None:
        self._job, self._curves = job, curves
        self._circuits = circuits_of(
            job.model.taps, job.wiring, curves, dense=is_accelerator(job.model.device)
        )
        self._means = job.means if curves.ablation == "mean" else None
        self._room = Room(settings.batch_size or PROMPTS_AT_A_TIME, job.model.device, job.listener)
        self._folds = curves.folds(len(job.prompts))
        self._of_task = {level: self._task_orders(level) for level in self._circuits}

    def __call__(self, shard: int, prompts: Sequence[int]) -> pa.Table:
        """The effects of prompts of a shard."""
        job = self._job
        metric = np.asarray(job.writer.read("prompts", ["metric_clean"], shard)["metric_clean"])
        m_all = dict(zip(job.shards[shard], metric.tolist(), strict=True))
        orders = {level: self._orders(level, shard, prompts) for level in self._circuits}
        rows: list[_Effect] = []
        for _, found in self._room.over(
            job.by_length(prompts), lambda some: self._batch(some, m_all, orders), "prompt", job.tokens
        ):
            rows += found
        _check_finite(rows, job.model.dtype_name)
        rows.sort(key=lambda row: (LEVELS.index(row[0]), *row[1:4], row[4] or 0))
        table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=_COLUMNS)
        return table.append_column("ablation", pa.array([self._curves.ablation] * len(rows)))

    def _batch(
        self, prompts: Sequence[int], m_all: Mapping[int, float], orders: Mapping[str, _Orders]
    ) -> list[_Effect]:
        """The effects of some prompts. If it fails for want of memory, it is done again, and counts again."""
        self._counted = 0
        try:
            ablated = ablate(
                self._job.model.taps,
                self._job.batch(prompts),
                list(self._circuits),
                self._curves.ablation,
                self._means,
            )
            return [
                effect
                for level, own in orders.items()
                for effect in self._effects(level, ablated, prompts, m_all, own)
            ]
        except Exception:
            self._count(-self._counted)
            raise

    def _effects(
        self,
        level: str,
        ablated: Ablated,
        prompts: Sequence[int],
        m_all: Mapping[int, float],
        orders: _Orders,
    ) -> Iterator[_Effect]:
        """All circuits of a batch at a level, small ones first, so that those that run together are alike."""
        circuits, size = self._circuits[level], rows_at_a_time(self._room.size)
        nothing = [Row(i, np.zeros(len(orders[p][RANDOM]), dtype=bool)) for i, p in enumerate(prompts)]
        m_none = to_array(circuits(ablated, nothing)).tolist()

        def effect(by: str, k: int, fold: int | None, row: Row, metric: float | None = None) -> _Effect:
            """A row of the table; that no units are kept, or all, is known."""
            prompt, none, count = prompts[row.prompt], m_none[row.prompt], int(row.kept.sum())
            if metric is None:
                metric = m_all[prompt] if count else none
            return level, by, prompt, k, fold, count, metric, m_all[prompt], none

        def run(some: Sequence[tuple[str, int, int | None, Row]]) -> Iterator[_Effect]:
            metrics = to_array(circuits(ablated, [row for *_, row in some])).tolist()
            self._count(len(some))
            for asked, metric in zip(some, metrics, strict=True):
                yield effect(*asked, metric)

        def kept(by: str, k: int) -> Iterator[tuple[int | None, Row]]:
            """The circuits of one size of all prompts, with the fold that each is of."""
            if by not in RANKINGS:
                yield from ((None, Row(i, circuits.top(orders[p][by], k))) for i, p in enumerate(prompts))
                return
            for number, ((_, measured), order) in enumerate(
                zip(self._folds, self._of_task[level][by], strict=True)
            ):
                if there := np.flatnonzero(np.isin(prompts, measured)).tolist():
                    shared, fold = circuits.top(order, k), None if self._curves.cross_fit is None else number
                    yield from ((fold, Row(i, shared)) for i in there)

        pending: list[tuple[str, int, int | None, Row]] = []
        for k, by in sorted((k, by) for by, sizes in self._curves.sizes[level].items() for k in sizes):
            for fold, row in kept(by, k):
                if row.kept.any() and not row.kept.all():
                    pending.append((by, k, fold, row))
                else:
                    self._count(1)
                    yield effect(by, k, fold, row)
            while len(pending) >= size:
                yield from run(pending[:size])
                del pending[:size]
        if pending:
            yield from run(pending)

    def _count(self, circuits: int) -> None:
        self._counted += circuits
        self._job.listener.advance(circuits * self._job.workers.size)  # the others are taken to be as fast

    def _orders(self, level: str, shard: int, prompts: Sequence[int]) -> _Orders:
        sizes = self._curves.sizes[level]
        orders: dict[int, dict[str, Ids]] = {}
        for prompt, scores in self._scores(level, shard):
            if prompt in prompts:
                shuffle = np.random.default_rng([prompt, LEVELS.index(level)])
                orders[prompt] = {RANDOM: shuffle.permutation(len(scores)).astype(np.int32)}
                if sizes.get("prompt"):
                    orders[prompt]["prompt"] = ranking(scores)
        return orders

    def _task_orders(self, level: str) -> dict[str, list[Ids]]:
        """The rankings of the task that are asked for, by name: one for each fold."""
        asked = [by for by, sizes in self._curves.sizes[level].items() if by in RANKINGS and sizes]
        if not asked:
            return {}
        means, sign = self._mean_scores(level), self._job.writer.run.helpful_sign
        return {by: [ranking(own, by, sign=sign) for own in means] for by in asked}

    def _mean_scores(self, level: str) -> list[NDArray[np.float32]]:
        """The mean scores of units over the prompts that rank, for each fold."""
        wanted = [set(chosen.tolist()) for chosen, _ in self._folds]
        totals: list[NDArray[np.float64] | float] = [0.0] * len(wanted)
        for shard in range(len(self._job.shards)):
            for prompt, scores in self._scores(level, shard):
                for fold, chosen in enumerate(wanted):
                    if prompt in chosen:
                        totals[fold] = totals[fold] + scores.astype(np.float64)
        return [
            np.asarray(total / len(chosen), dtype=np.float32)
            for total, chosen in zip(totals, wanted, strict=True)
        ]

    def _scores(self, level: str, shard: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The scores of each prompt of a shard, in the order of the units."""
        scores = np.asarray(self._job.writer.read(f"{level}_scores", ["score"], shard)["score"])
        end = 0
        for prompt in self._job.shards[shard]:
            begin = end
            end += units(level, self._job.wiring.shape, self._job.tokens([prompt]))
            yield prompt, scores[begin:end]
        assert end == len(scores), f"{len(scores)} {level} scores in shard {shard} instead of {end}"


def _check_finite(rows: Sequence[_Effect], dtype: str) -> None:
    """Refuse numbers that are none."""
    bad = sorted({row[2] for row in rows if not np.isfinite(row[6:]).all()})
    if bad:
        raise ExtractionError(
            f"Circuits of {len(bad)} prompts ({', '.join(map(str, bad[:10]))}) have metrics that are not finite in "
            f"{dtype}: try --dtype bfloat16 or float32."
        )
