"""Bands, intervals of crossings and of multipliers, from `effects`, against slow and obvious Python."""

from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pyarrow as pa
import pytest
from wirescope.data import Curves, Run, write_run
from wirescope.errors import InputError
from wirescope.graphs import Shape, Wiring
from wirescope.queries import ask, open_store, select

SHAPE = Shape(1, 1)
SIZES = (1, 4, 16, 64, 256)
CURVES = {"dense": (0.0, 0.1, 0.5, 0.93, 1.0), "sparse": (0.2, 0.7, 0.97, 0.99, 1.0)}
FALLS = (0.2, 0.95, 0.6, 0.97, 1.0)
STUDENT = {11: 2.200985}
"""The 0.975 quantile, by degrees of freedom, as tables have it."""


def written(path, tables: dict[str, list[dict]]):
    for name, rows in tables.items():
        sparse = name.startswith(("sparse", "falls"))
        record = Run(
            run=name,
            model=name,
            base_model="dense" if sparse else None,
            shape=SHAPE,
            task="ioi",
            prompts=1 + max(row["prompt_id"] for row in rows),
            levels=("edge",),
            ablation="zero",
        )
        with write_run(path, record) as writer:
            writer.write_wiring(Wiring(SHAPE))
            writer.write("effects", pa.Table.from_pylist(rows))
    return open_store(path)


def rows_of(curve, *, prompts=12, cross_fit=None, seed=0, ranking="task", noise=0.05) -> list[dict]:
    """Noisy effects of prompts, and of rankings where they are cross-fitted."""
    rng = np.random.default_rng(seed)
    folds = Curves(ablation="zero", split=None, sizes={}, cross_fit=cross_fit).folds(prompts)
    m_all = rng.uniform(1, 3, prompts)
    rows = []
    for fold, (_, measured) in enumerate(folds):
        for k, middle in zip(SIZES, curve, strict=True):
            off = 0.0 if k == SIZES[-1] else rng.normal(0, noise / 2)
            for p in measured.tolist():
                spread = 0.0 if k == SIZES[-1] else rng.normal(0, noise) + off
                rows.append(
                    {"level": "edge", "ranking": ranking, "ablation": "zero", "prompt_id": p, "requested": k}
                    | {"fold": fold if cross_fit else None, "kept": k, "m_all": float(np.float32(m_all[p]))}
                    | {"metric": float(np.float32((middle + spread) * m_all[p])), "m_none": 0.0}
                )
    return rows


def slow_band(rows: list[dict], k: int) -> tuple[float, float, float, float]:
    """explained, stderr and the ends of the band at a size: prompt by prompt, halving by halving."""
    own = [row for row in rows if row["requested"] == k]
    explained = sum(row["metric"] for row in own) / sum(row["m_all"] for row in own)
    left = [(row["prompt_id"], row["fold"], row["metric"] - explained * row["m_all"]) for row in own]
    prompts = sorted({p for p, *_ in left})
    means = [mean(r for q, _, r in left if q == p) for p in prompts]
    stderr = stdev(means) / len(prompts) ** 0.5
    if own[0]["fold"] is not None:
        halves = {f: mean(r for _, g, r in left if g == f) for f in {f for _, f, _ in left}}
        squares = [(halves[f] - halves[f + 1]) ** 2 / 4 for f in halves if f % 2 == 0]
        stderr = max(stderr, mean(squares) ** 0.5)
    stderr /= mean(row["m_all"] for row in own)
    t = STUDENT[len(prompts) - 1]
    return explained, stderr, explained - t * stderr, explained + t * stderr


def slow_crossing(values: list[float], threshold: float = 0.9) -> tuple[float | None, float | None]:
    """Where a curve stays at the threshold, and where it first gets there."""

    def at(i: int) -> float:
        if i == 0:
            return float(SIZES[0])
        share = (threshold - values[i - 1]) / (values[i] - values[i - 1])
        return float(SIZES[i - 1] * (SIZES[i] / SIZES[i - 1]) ** share)

    staying = [i for i in range(len(values)) if all(value >= threshold for value in values[i:])]
    there = [i for i, value in enumerate(values) if value >= threshold]
    return at(staying[0]) if staying else None, at(there[0]) if there else None


def ends(rows: list[dict], crossing: int = 0) -> tuple[float, float, float, bool]:
    """A crossing, the ends of its interval, and whether it may jump."""
    bands = [slow_band(rows, k) for k in SIZES]
    found = [slow_crossing([band[i] for band in bands]) for i in (0, 3, 2)]
    return *(one[crossing] for one in found), any(k > 1.1 * first for k, first in found)


def multiplier(dense: tuple, sparse: tuple) -> tuple[float, float, float]:
    (d, dl, du, d_jumps), (s, sl, su, s_jumps) = dense, sparse
    below, above = (np.log(d / dl), np.log(su / s)), (np.log(du / d), np.log(s / sl))
    together = sum if d_jumps or s_jumps else np.linalg.norm
    return d / s, d / s * np.exp(-together(below)), d / s * np.exp(together(above))


def close(*values: float):
    # the band in SQL has a series for the quantile of t
    return pytest.approx(values, rel=2e-3)


@pytest.mark.parametrize("cross_fit", [None, 1, 3])
def test_the_band_is_over_prompts_and_over_the_halves_that_rank(tmp_path, cross_fit):
    rows = rows_of(CURVES["dense"], cross_fit=cross_fit)
    found = select(written(tmp_path / "s", {"dense": rows}), "select * from curves order by requested")
    told = set()
    for row in found.to_pylist():
        explained, stderr, low, high = slow_band(rows, row["requested"])
        assert (row["explained"], row["stderr"]) == pytest.approx((explained, stderr), rel=1e-4, abs=1e-7)
        assert (row["low"], row["high"]) == pytest.approx((low, high), rel=1e-3, abs=1e-4)
        alone = slow_band([r | {"fold": None} for r in rows], row["requested"])[1]
        told.add(stderr > alone * 1.01)
    assert (True in told) == (cross_fit is not None)  # the halves do tell more somewhere


def test_one_prompt_has_no_band_and_its_multiplier_no_interval(tmp_path):
    tables = {run: rows_of(curve, prompts=1) for run, curve in CURVES.items()}
    connection = written(tmp_path / "s", tables)
    assert select(connection, "select distinct low, high from curves").to_pylist() == [
        {"low": None, "high": None}
    ]
    (row,) = select(connection, "select * from multipliers").to_pylist()
    assert row["multiplier"] is not None
    assert (row["low"], row["high"]) == (None, None)


@pytest.mark.parametrize("cross_fit", [None, 4])
def test_intervals_are_of_the_ends_of_the_bands(tmp_path, cross_fit):
    curves = CURVES | {"falls": FALLS}
    tables = {
        run: rows_of(curve, cross_fit=cross_fit, seed=i) for i, (run, curve) in enumerate(curves.items())
    }
    connection = written(tmp_path / "s", tables)
    for row in select(connection, "select * from crossings").to_pylist():
        k, low, high, jumps = ends(tables[row["run"]])
        assert (row["k"], row["low"], row["high"]) == close(k, low, high)
        assert row["may_jump"] == jumps == (row["run"] == "falls")
        first = ends(tables[row["run"]], 1)[:3]
        assert (row["first_k"], row["first_low"], row["first_high"]) == close(*first)
        assert low < k < high
    rows = ask(connection, "multiplier_intervals").to_pylist()
    assert [row["sparse_run"] for row in rows] == ["falls", "sparse"]
    for row in rows:
        wanted = multiplier(ends(tables["dense"]), ends(tables[row["sparse_run"]]))
        assert (row["multiplier"], row["low"], row["high"]) == close(*wanted)
        assert row["ragged"] == (row["sparse_run"] == "falls")
    first = ask(connection, "multiplier_intervals", crossing="first").to_pylist()[0]
    assert (first["multiplier"], first["low"], first["high"]) == close(
        *multiplier((*ends(tables["dense"], 1)[:3], True), (*ends(tables["falls"], 1)[:3], True))
    )


def test_an_interval_is_open_where_an_end_of_the_band_never_stays(tmp_path):
    """Measured up to a size at which the curve is at the threshold, and its band is not."""
    wide = [row for row in rows_of((0.0, 0.1, 0.5, 1.0, 1.0)) if row["requested"] <= 64]
    for row in wide:
        if row["requested"] == 64:
            row["metric"] += 0.3 * row["m_all"] * (-1) ** row["prompt_id"]
    for run, other, which in (("sparse", "dense", "high"), ("dense", "sparse", "low")):
        tables = {"dense": rows_of(CURVES["dense"]), "sparse": rows_of(CURVES["sparse"])}
        tables[other if which == "high" else run] = wide
        assert slow_band(wide, 64)[0] >= 0.9 > slow_band(wide, 64)[2]
        connection = written(tmp_path / which, tables)
        (row,) = ask(
            connection, "run_multiplier", run=run, other=other, level="edge", ranking="task", ablation="zero"
        ).to_pylist()
        assert row["multiplier"] is not None
        assert row[which] is None
        assert row["low" if which == "high" else "high"] is not None


def test_two_multipliers_are_compared_by_their_four_crossings(tmp_path):
    """And one that both have is no reason for doubt."""
    by_task = {run: rows_of(curve, cross_fit=2, seed=i) for i, (run, curve) in enumerate(CURVES.items())}
    by_prompt = {
        run: rows_of(curve, seed=7 + i, ranking="prompt") for i, (run, curve) in enumerate(CURVES.items())
    }
    control = rows_of((0.0, 0.3, 0.8, 0.97, 1.0), cross_fit=2, seed=5)
    tables = {run: by_task[run] + by_prompt[run] for run in CURVES} | {"sparse-control": control}
    connection = written(tmp_path / "s", tables)
    first = {"run": "sparse", "other": "dense", "level": "edge", "ranking": "task", "ablation": "zero"}
    (row,) = ask(connection, "multiplier_ratio", **first, second_ranking="prompt").to_pylist()
    four = [
        ends(by_task["dense"]),
        ends(by_task["sparse"]),
        ends(by_prompt["dense"]),
        ends(by_prompt["sparse"]),
    ]
    (d, dl, du, _), (s, sl, su, _), (d2, dl2, du2, _), (s2, sl2, su2, _) = four
    assert not any(one[3] for one in four)
    assert (row["multiplier"], row["second_multiplier"]) == close(d / s, d2 / s2)
    ratio = d / s / (d2 / s2)
    below = np.linalg.norm(np.log([d / dl, su / s, du2 / d2, s2 / sl2]))
    above = np.linalg.norm(np.log([du / d, s / sl, d2 / dl2, su2 / s2]))
    assert (row["ratio"], row["low"], row["high"]) == close(
        ratio, ratio * np.exp(-below), ratio * np.exp(above)
    )

    (row,) = ask(connection, "multiplier_ratio", **first, second_run="sparse-control").to_pylist()
    c, cl, cu, _ = ends(control)
    below, above = np.linalg.norm(np.log([su / s, c / cl])), np.linalg.norm(np.log([s / sl, cu / c]))
    assert (row["ratio"], row["low"], row["high"]) == close(
        c / s, c / s * np.exp(-below), c / s * np.exp(above)
    )
    (row,) = ask(connection, "multiplier_ratio", **first).to_pylist()
    assert (row["ratio"], row["low"], row["high"]) == (1, 1, 1)
    with pytest.raises(InputError, match="no run 'sparce'"):
        ask(connection, "multiplier_ratio", **first, second_run="sparce")


@pytest.mark.parametrize(
    ("first", "second", "times"),
    [
        (("a", "b"), ("b", "c"), {"a": -1, "b": 2, "c": -1}),
        (("a", "b"), ("c", "a"), {"a": -2, "b": 1, "c": 1}),
        (("a", "b"), ("b", "a"), {"a": -2, "b": 2}),
        (("a", "b"), ("c", "c"), {"a": -1, "b": 1}),
        (("a", "a"), ("a", "b"), {"a": 1, "b": -1}),
    ],
)
def test_a_crossing_with_two_places_in_a_ratio_counts_as_often_as_it_is_multiplied(
    tmp_path, first, second, times
):
    """The logarithm of the ratio is a sum of those of crossings, times so much, and so are its distances."""
    curves = {"a": CURVES["sparse"], "b": (0.0, 0.3, 0.8, 0.97, 1.0), "c": CURVES["dense"]}
    tables = {run: rows_of(curve, seed=i) for i, (run, curve) in enumerate(curves.items())}
    given = dict(zip(("run", "other", "second_run", "second_other"), (*first, *second), strict=True))
    (row,) = ask(
        written(tmp_path / "s", tables),
        "multiplier_ratio",
        **given,
        level="edge",
        ranking="task",
        ablation="zero",
    ).to_pylist()
    found = {run: np.log(ends(tables[run])[:3]) for run in times}  # a crossing and the ends of its interval
    middle = sum(n * found[run][0] for run, n in times.items())
    below, above = [], []
    for run, n in times.items():
        k, low, high = found[run]
        below.append(n * (k - (low if n > 0 else high)))
        above.append(n * ((high if n > 0 else low) - k))
    wanted = (middle, middle - np.linalg.norm(below), middle + np.linalg.norm(above))
    assert (row["ratio"], row["low"], row["high"]) == close(*np.exp(wanted))


def test_halvings_are_the_same_for_all_and_each_prompt_is_measured_by_others():
    curves = Curves(
        ablation="zero", split=None, sizes={"edge": {"task": (1, 2), "prompt": (1,)}}, cross_fit=6
    )
    folds = curves.folds(21)
    assert len(folds) == 12
    for (rank, measured), (rank_too, measured_too) in zip(folds[::2], folds[1::2], strict=True):
        assert sorted([*rank, *measured]) == list(range(21))
        assert (rank.tolist(), measured.tolist()) == (measured_too.tolist(), rank_too.tolist())
        assert {len(rank), len(measured)} == {10, 11}
    assert len({tuple(rank) for rank, _ in folds}) == 12
    longer = replace(curves, cross_fit=9).folds(21)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(folds, longer, strict=False))
    assert len(curves) == 6 * 2 + 1
    assert curves.count(21) == 21


def test_curves_without_cross_fitting_are_called_as_before():
    """So that parts of older runs are found."""
    old = Curves(ablation="zero", split=0.5, sizes={"edge": {"task": (1, 8)}})
    assert old.tag == "bed23c86"
    assert replace(old, split=None, cross_fit=2).tag != replace(old, split=None).tag
