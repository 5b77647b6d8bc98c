"""How often an interval of a multiplier contains the truth, where that is known.

A made-up population of prompts and models. A unit u of a model matters to a prompt p by

    a_pu = w_u exp(spread z_pu - spread^2 / 2),     z normal,

with weights w that fall off as a power of the unit's place, fast in a sparse model and slowly in a dense one. Its score
is -a_pu and noise, so that rankings are estimated, and wrong here and there. A circuit K explains of the effect of a
prompt, which is lognormal,

    h(x) - sum of the c_j of those pairs j of units of which it has the first and not the second,

where x is the sum of a_pu over K as a share of all, and h(x) = 1 - (1 - x)^2. Smooth curves are without such pairs.
Ragged ones dip wherever the first unit of a pair comes long before the second, and a fifth of the weaker units are
negative besides, and work against the behaviour. By another ablation a model is another one; `smaller` are
multipliers by the smaller circuit of two ablations, as under a protocol.

What is true of a ranking, of so many prompts that rank, is the average over rankings and prompts without end; here, of
some ten thousand. Then come samples of 20 to 30 prompts, whose halves, rankings, curves and intervals are those of the
package (`Curves.folds`, `ranking`, the views of a store). Beside these intervals stand two others on the same samples:
`given`, from bands that take the ranking as given (the spread over prompts alone), and `bootstrap`, the percentiles of
the multiplier over resampled prompts.

    python bench/coverage.py [--samples 1000] [--halvings 5] [--prompts 20 30] [--first 100000]

The rule of the bands was chosen on the samples from 0 on; others are drawn unless asked.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from wirescope.data import Catalog, Curves, Run
from wirescope.graphs import Shape, ranking
from wirescope.queries import answer, ask
from wirescope.queries.session import set_up

THRESHOLD = 0.9
UNITS = 200
SIZES = np.unique(np.geomspace(1, UNITS, 20).round().astype(int))
MODELS = {"sparse": 1.5, "control": 1.15, "dense": 0.85, "sparse by mean": 1.45, "dense by mean": 0.9}
"""The powers by which weights fall off; what a model's units matter is another thing by another ablation."""
SHAPES = ("smooth", "ragged")
RANKED_BY = ("prompt", "task")
RATIOS = ("prompt / task", "twin / control, prompt", "twin / control, task")
_POOL, _RANKINGS, _MEASURED = 6_000, 1_500, 40
"""For the truth: prompts, rankings of the task, prompts that each is measured on."""
_DRAWS, _PAIRS = 500, 5
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """What the units of a model matter, and which of them need another one."""

    name: str
    shape: str
    spread: float = 0.8
    noise: float = 0.004

    @cached_property
    def weights(self) -> Floats:
        """Of the units."""
        rng = np.random.default_rng([list(MODELS).index(self.name), 1])
        weights = np.arange(1, UNITS + 1) ** -MODELS[self.name]
        if self.shape == "ragged":
            weights[10:][rng.random(UNITS - 10) < 0.2] *= -1
        return rng.permutation(weights / weights.sum())

    @cached_property
    def pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """The first and the second unit of each pair, and what is lost where only the first is kept."""
        if self.shape == "smooth":
            return np.empty(0, int), np.empty(0, int), np.empty(0)
        rng = np.random.default_rng([list(MODELS).index(self.name), 2])
        strongest = np.argsort(-np.abs(self.weights))
        first, second = strongest[rng.choice(UNITS // 2, (2, _PAIRS), replace=False)]
        return first, second, rng.uniform(0.05, 0.2, _PAIRS)

    def draw(self, rng: np.random.Generator, prompts: int) -> tuple[Floats, NDArray[np.float32]]:
        """What the units matter to so many prompts, and their scores, [prompt, unit]."""
        matters = self.weights * np.exp(self.spread * rng.normal(size=(prompts, UNITS)) - self.spread**2 / 2)
        scores = -matters + self.noise * rng.normal(size=matters.shape)
        return matters, scores.astype(np.float32)

    def explained(self, matters: Floats, orders: NDArray[np.integer]) -> Floats:
        """What circuits of each size explain, [prompt, size]; orders are [unit], or [prompt, unit]."""
        orders = np.broadcast_to(orders, matters.shape)
        kept = np.cumsum(np.take_along_axis(matters, orders, 1), axis=1)[:, SIZES - 1]
        x = kept / matters.sum(1, keepdims=True)
        found = 1 - (1 - x) ** 2
        places = np.empty(orders.shape, int)
        np.put_along_axis(places, orders, np.broadcast_to(np.arange(UNITS), orders.shape), 1)
        for first, second, lost in zip(*self.pairs, strict=True):
            alone = (places[:, [first]] < SIZES) & (places[:, [second]] >= SIZES)
            found = found - lost * alone
        found[:, -1] = 1
        return found


def effects_of(rng: np.random.Generator, prompts: int) -> Floats:
    """m_all - m_none of prompts."""
    return 2 * np.exp(0.4 * rng.normal(size=prompts))


def crossing(curves: Floats) -> Floats:
    """From where on curves, [..., size], stay at the threshold, on log k; infinite where they do not."""
    below = curves < THRESHOLD
    last = np.where(below.any(-1), len(SIZES) - 1 - below[..., ::-1].argmax(-1), -1)
    before, after = np.clip(last, 0, None), np.clip(last + 1, 0, len(SIZES) - 1)
    low, high = (np.take_along_axis(curves, at[..., None], -1)[..., 0] for at in (before, after))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (THRESHOLD - low) / (high - low)
    logs = np.log(SIZES)
    found = logs[before] + (logs[after] - logs[before]) * share
    return np.where(last < 0, 0.0, np.where(last == len(SIZES) - 1, np.inf, found))


@dataclass(frozen=True)
class World:
    """The models of a shape, and what is true of them."""

    shape: str
    prompts: int
    """Of a sample."""
    models: dict[str, Model] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", {name: Model(name, self.shape) for name in MODELS})

    @cached_property
    def truth(self) -> dict[tuple[str, str], float]:
        """By model and ranking, log k."""
        found = {}
        for name, model in self.models.items():
            rng = np.random.default_rng([list(MODELS).index(name), self.prompts, 3])
            matters, scores = model.draw(rng, _POOL)
            weights = effects_of(rng, _POOL)[:, None]
            own = model.explained(matters, np.argsort(-np.abs(scores), axis=1, kind="stable"))
            found[name, "prompt"] = float(crossing((own * weights).sum(0) / weights.sum()))
            total = np.zeros(len(SIZES))
            for _ in range(_RANKINGS):  # of other prompts than those that it is measured on
                drawn = rng.choice(_POOL, self.prompts // 2 + _MEASURED, replace=False)
                order = ranking(scores[drawn[_MEASURED:]].mean(0))
                total += model.explained(matters[drawn[:_MEASURED]], order).mean(0)
            found[name, "task"] = float(crossing(total / _RANKINGS))
        return found

    def sample(
        self, number: int, curves: Curves
    ) -> Iterator[tuple[str, str, list[int | None], Floats, Floats]]:
        """Of each model and ranking: the folds, what is explained, [fold, prompt, size], nan where not measured."""
        effect = effects_of(np.random.default_rng([number, 4]), self.prompts)
        for at, (name, model) in enumerate(self.models.items()):
            matters, scores = model.draw(np.random.default_rng([number, at, 5]), self.prompts)
            own = model.explained(matters, np.stack([ranking(each) for each in scores]))
            yield name, "prompt", [None], own[None], effect
            folds = curves.folds(self.prompts)
            found = np.full((len(folds), self.prompts, len(SIZES)), np.nan)
            for fold, (rank, measured) in enumerate(folds):
                order = ranking(scores[rank].astype(np.float64).mean(0).astype(np.float32))
                found[fold, measured] = model.explained(matters[measured], order)
            yield name, "task", list(range(len(folds))), found, effect


@dataclass(frozen=True)
class Interval:
    """Of a sample: log of the multiplier, or of the ratio of two, and its ends."""

    kind: str
    """The method."""
    what: str
    low: float
    high: float


def intervals(
    world: World,
    numbers: Sequence[int],
    halvings: int,
    *,
    ratios: Sequence[str] = RATIOS,
    others: bool = True,
) -> Iterator[Interval]:
    """The intervals of samples, of multipliers and of these ratios, by the package and, if asked for, otherwise."""
    sizes = {"edge": dict.fromkeys(RANKED_BY, tuple(SIZES.tolist()))}
    curves = Curves(ablation="zero", split=None, sizes=sizes, cross_fit=halvings)
    runs: dict[str, Run] = {}
    tables = []
    for number in numbers:
        found = {}
        for name, by, folds, explained, effect in world.sample(number, curves):
            run = _run(name, number, world.prompts, curves)
            runs[run.run] = run
            tables.append(_rows(run, by, folds, explained, effect))
            found[name, by] = (np.nanmean(explained, axis=0), effect, explained)
        if others:
            yield from _others(found, number)
    connection = duckdb.connect()
    set_up(connection, Catalog(Path(), runs, (), {}))
    connection.register("effects", pa.concat_tables(tables))
    for view in ("curves", "crossings"):  # once for all questions
        connection.register(view, connection.sql(f"select * from {view}").to_arrow_table())
    for row in ask(connection, "multiplier_intervals", threshold=THRESHOLD).to_pylist():
        if row["ablation"] == "zero":
            name = row["sparse_run"].partition("-")[0]
            yield Interval("bands", f"{name}, {row['ranking']}", *_logs(row))
    for row in answer(connection, "protocol_multipliers").to_pylist():
        if row["sparse_run"].startswith("sparse"):
            yield Interval("bands", f"sparse, smaller, {row['ranking']}", *_logs(row))
    for number in numbers:
        same = {"run": f"sparse-{number}-zero", "other": f"dense-{number}-zero"}
        same |= {"level": "edge", "ablation": "zero"}
        for what in ratios:
            (row,) = ask(connection, "multiplier_ratio", **same, **_ratio(what, number)).to_pylist()
            yield Interval("bands", what, *_logs(row))
    connection.close()


def truths(world: World) -> dict[str, float]:
    """What the intervals are of."""
    k = world.truth
    found = {
        f"{name}, {by}": k["dense", by] - k[name, by] for name in ("sparse", "control") for by in RANKED_BY
    }
    for by in RANKED_BY:
        dense, sparse = (min(k[name, by], k[f"{name} by mean", by]) for name in ("dense", "sparse"))
        found[f"sparse, smaller, {by}"] = dense - sparse
    found["prompt / task"] = found["sparse, prompt"] - found["sparse, task"]
    for by in RANKED_BY:
        found[f"twin / control, {by}"] = found[f"sparse, {by}"] - found[f"control, {by}"]
    return found


def _ratio(what: str, number: int) -> dict[str, str]:
    """What `multiplier_ratio` is given, besides the first pair."""
    if what == "prompt / task":
        return {"ranking": "prompt", "second_ranking": "task"}
    return {"ranking": what.rpartition(" ")[2], "second_run": f"control-{number}-zero"}


def _logs(row: dict[str, float | None]) -> tuple[float, float]:
    """The ends of an interval; an open one is endless."""
    return (
        -np.inf if row["low"] is None else float(np.log(row["low"])),
        np.inf if row["high"] is None else float(np.log(row["high"])),
    )


def _run(name: str, number: int, prompts: int, curves: Curves) -> Run:
    model, _, by_mean = name.partition(" by ")
    ablation = by_mean or "zero"
    return Run(
        run=f"{model}-{number}-{ablation}",
        model=f"{model}-{number}",
        base_model=None if model == "dense" else f"dense-{number}",
        shape=Shape(1, 1),
        task="made-up",
        prompts=prompts,
        levels=("edge",),
        ablation=ablation,
        protocol="published",
        curves=(replace(curves, ablation=ablation),),
    )


def _rows(run: Run, by: str, folds: list[int | None], explained: Floats, effect: Floats) -> pa.Table:
    """Rows of `effects`."""
    fold, prompt, size = np.nonzero(np.isfinite(explained))
    count = len(fold)
    columns = {
        "level": pa.array(["edge"] * count),
        "ranking": pa.array([by] * count),
        "ablation": pa.array([run.ablation] * count),
        "prompt_id": pa.array(prompt, pa.int32()),
        "requested": pa.array(SIZES[size], pa.int32()),
        "fold": pa.array(folds, pa.int32()).take(pa.array(fold)),
        "kept": pa.array(SIZES[size], pa.int32()),
        "metric": pa.array(explained[fold, prompt, size] * effect[prompt] - 1, pa.float32()),
        "m_all": pa.array(effect[prompt] - 1, pa.float32()),
        "m_none": pa.array(np.full(count, -1), pa.float32()),
        "run": pa.array([run.run] * count),
    }
    return pa.table(columns)


def _others(found: dict[tuple[str, str], tuple[Floats, Floats, Floats]], number: int) -> Iterator[Interval]:
    """The intervals of a sample by other methods."""
    draws: dict[tuple[str, str], Floats] = {}
    given: dict[tuple[str, str], Floats] = {}
    for key, (explained, effect, _) in found.items():  # [prompt, size]
        prompts = len(effect)
        weights = np.random.default_rng([number, 6]).multinomial(
            prompts, np.full(prompts, 1 / prompts), _DRAWS
        )
        draws[key] = crossing((weights * effect) @ explained / (weights @ effect)[:, None])
        curve = effect @ explained / effect.sum()
        left = effect[:, None] * (explained - curve)
        stderr = left.std(0, ddof=1) / np.sqrt(prompts) / effect.mean()
        t = 1.96 + 2.37 / (prompts - 1) + 2.82 / (prompts - 1) ** 2
        given[key] = crossing(np.stack([curve, curve + t * stderr, curve - t * stderr]))
    for what, terms in _TERMS.items():
        spread = np.sum([sign * draws[key] for key, sign in terms], axis=0)
        spread = spread[np.isfinite(spread)]
        yield Interval("bootstrap", what, *np.quantile(spread, [0.025, 0.975]))
        middle = sum(sign * given[key][0] for key, sign in terms)
        below = sum((given[key][0] - given[key][1 if sign > 0 else 2]) ** 2 for key, sign in terms)
        above = sum((given[key][0] - given[key][2 if sign > 0 else 1]) ** 2 for key, sign in terms)
        yield Interval("given", what, middle - below**0.5, middle + above**0.5)


_TERMS: dict[str, list[tuple[tuple[str, str], int]]] = {
    f"{name}, {by}": [(("dense", by), 1), ((name, by), -1)]
    for name in ("sparse", "control")
    for by in RANKED_BY
}
_TERMS["prompt / task"] = [
    *_TERMS["sparse, prompt"],
    *[(key, -sign) for key, sign in _TERMS["sparse, task"]],
]
_TERMS |= {f"twin / control, {by}": [(("control", by), 1), (("sparse", by), -1)] for by in RANKED_BY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000)
    parser.add_argument("--halvings", type=int, default=5)
    parser.add_argument("--prompts", type=int, nargs="+", default=[20, 30])
    parser.add_argument(
        "--first", type=int, default=100_000, help="number of the first sample; all numbers differ"
    )
    options = parser.parse_args()
    last = options.first + options.samples
    for prompts in options.prompts:
        for shape in SHAPES:
            world = World(shape, prompts)
            true = truths(world)
            hits: dict[tuple[str, str], list[bool]] = {}
            widths: dict[tuple[str, str], list[float]] = {}
            for first in range(options.first, last, 50):
                some = range(first, min(first + 50, last))
                for one in intervals(world, some, options.halvings):
                    hits.setdefault((one.what, one.kind), []).append(one.low <= true[one.what] <= one.high)
                    widths.setdefault((one.what, one.kind), []).append(one.high - one.low)
            print(
                f"\n{shape} curves, {prompts} prompts, {options.samples:,} samples: of 100 nominal 95 % intervals, "
                "how many contain the truth\n(and their median ratio of high to low)"
            )
            print(f"  {'':<24}{'truth':>8}{'bands':>16}{'given':>16}{'bootstrap':>16}")
            for what, truth in true.items():
                cells = [
                    f"{100 * np.mean(hits[what, kind]):5.1f} ({np.exp(np.median(widths[what, kind])):5.2f})"
                    if (what, kind) in hits
                    else "-"
                    for kind in ("bands", "given", "bootstrap")
                ]
                print(f"  {what:<24}{np.exp(truth):8.2f}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
