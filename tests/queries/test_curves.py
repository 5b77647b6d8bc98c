"""Curves, crossings, multipliers and areas from `effects`, against slow and obvious Python."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wirescope.data import Curves, Run, write_run
from wirescope.graphs import Shape, Wiring
from wirescope.queries import ask, open_store, select, set_thresholds

TINY = Shape(1, 1)


def effects(values: dict[int, list[float]], *, m_all=1.0, m_none=0.0, **other: str) -> pa.Table:
    """By size, the metric of each prompt."""
    kind = {"level": "edge", "ranking": "task", "ablation": "corrupt"} | other
    return pa.Table.from_pylist(
        [
            kind
            | {"prompt_id": p, "requested": k, "fold": None, "kept": k}
            | {"metric": metric, "m_all": m_all, "m_none": m_none}
            for k, metrics in values.items()
            for p, metric in enumerate(metrics)
        ]
    )


def store_of(path, shape: Shape = TINY, differing: dict | None = None, **curves: pa.Table):
    """A store of a run `dense` and a run `sparse`, or others, with these effects; what differs is of the sparse one."""
    for name, table in curves.items():
        record = Run(
            run=name,
            model=name.split("_")[0],
            base_model="dense" if name.startswith("sparse") else None,
            shape=shape,
            task="ioi",
            prompts=4,
            levels=("edge",),
            method="eap",
            ablation="corrupt",
        )
        if name.startswith("sparse"):
            record = replace(record, **differing or {})
        with write_run(path, record) as writer:
            writer.write_wiring(Wiring(TINY))
            writer.write("effects", table)
    return open_store(path)


def obvious_crossings(curve: dict[int, float | None], threshold: float) -> tuple[float | None, float | None]:
    """From where on a curve stays at a threshold, and where it first gets there: by looking at every size."""
    points = [(k, explained) for k, explained in sorted(curve.items()) if explained is not None]

    def crossing(at: int) -> float:
        k, explained = points[at]
        if at == 0:
            return float(k)
        k0, e0 = points[at - 1]
        return float(np.exp(np.log(k0) + (np.log(k) - np.log(k0)) * (threshold - e0) / (explained - e0)))

    staying = [i for i in range(len(points)) if all(explained >= threshold for _, explained in points[i:])]
    there = [i for i, (_, explained) in enumerate(points) if explained >= threshold]
    return crossing(staying[0]) if staying else None, crossing(there[0]) if there else None


def test_explained_is_the_ratio_of_the_means(tmp_path):
    connection = store_of(
        tmp_path / "s", dense=effects({1: [2.0, 4.0, 3.0], 8: [5.0, 6.0, 1.0]}, m_all=9, m_none=1)
    )
    rows = select(connection, "select * from curves order by requested").to_pylist()
    assert [row["explained"] for row in rows] == pytest.approx([(3 - 1) / 8, (4 - 1) / 8])
    # equal denominators: the standard error is that of the mean, scaled
    assert rows[1]["stderr"] == pytest.approx(np.std([5, 6, 1], ddof=1) / np.sqrt(3) / 8)
    assert [row["kept"] for row in rows] == [1, 8]


def test_the_standard_error_is_that_of_a_ratio(tmp_path):
    """Where prompts have effects of different size, against the spread over many resampled task sets."""
    rng = np.random.default_rng(1)
    m_all = rng.uniform(2, 6, 400)
    metric = 0.7 * m_all + rng.normal(0, 0.5, 400)
    table = pa.table(
        {
            "level": ["edge"] * 400,
            "ranking": ["task"] * 400,
            "ablation": ["corrupt"] * 400,
            "prompt_id": range(400),
            "requested": [5] * 400,
            "fold": [None] * 400,
            "kept": [5] * 400,
            "metric": metric,
            "m_all": m_all,
            "m_none": np.zeros(400),
        }
    )
    (row,) = select(store_of(tmp_path / "s", dense=table), "select * from curves").to_pylist()
    draws = rng.integers(0, 400, (4000, 400))
    spread = np.std(metric[draws].mean(axis=1) / m_all[draws].mean(axis=1))
    assert row["stderr"] == pytest.approx(spread, rel=0.05)


def test_a_model_without_an_effect_explains_nothing_definable(tmp_path):
    connection = store_of(tmp_path / "s", dense=effects({1: [0.5], 2: [0.7]}, m_all=1, m_none=1))
    assert select(connection, "select distinct explained from curves")["explained"].to_pylist() == [None]
    assert select(connection, "select k from crossings")["k"].to_pylist() == [None]


def about(expected: float | None):
    return None if expected is None else pytest.approx(expected, rel=1e-6)


@given(
    st.dictionaries(
        st.integers(1, 1000),
        st.one_of(
            st.none(),  # a size at which there is no effect to explain
            st.floats(-0.5, 1.5).map(lambda x: round(x, 3)),
            st.sampled_from([0.5, 0.75, 1.0]),  # so that sizes tie, and lie on the threshold
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.5, 0.75]),
)
@settings(max_examples=80)
def test_crossings_are_those_of_every_size_looked_at(tmp_path_factory, curve, threshold):
    path = tmp_path_factory.mktemp("crossing") / "s"
    tables = [
        effects({k: [0.5 if value is None else value]}, m_all=0.0 if value is None else 1.0)
        for k, value in curve.items()
    ]
    connection = store_of(path, dense=pa.concat_tables(tables))
    set_thresholds(connection, [threshold])
    (row,) = select(connection, "select k, first_k from crossings").to_pylist()
    k, first = obvious_crossings(
        {k: None if v is None else float(np.float32(v)) for k, v in curve.items()}, threshold
    )
    assert row == {"k": about(k), "first_k": about(first)}


def test_a_curve_that_falls_again_is_marked(tmp_path):
    """A tenth is within the noise of sizes; what ends below never stays."""
    smooth = {1: [0.0], 10: [0.95], 100: [1.0]}
    falls = {1: [0.0], 4: [0.95], 20: [0.5], 60: [0.95], 100: [1.0]}
    ends = {1: [0.0], 4: [0.95], 100: [0.5]}
    wobbles = {1: [0.0], 100: [0.91], 101: [0.899], 103: [0.95], 1000: [1.0]}
    for name, curve, ragged in (
        ("smooth", smooth, False),
        ("falls", falls, True),
        ("ends", ends, True),
        ("wobbles", wobbles, False),
        ("never", {1: [0.1], 5: [0.2]}, False),
    ):
        connection = store_of(tmp_path / name, dense=effects(smooth), sparse=effects(curve))
        (row,) = ask(connection, "reach", run="sparse").to_pylist()
        k, first = obvious_crossings({k: float(np.float32(v)) for k, (v,) in curve.items()}, 0.9)
        assert (row["k"], row["first_k"], row["ragged"]) == (about(k), about(first), ragged)
        (row,) = select(connection, "select * from multipliers").to_pylist()
        assert (row["sparse_k"], row["sparse_first_k"], row["ragged"]) == (about(k), about(first), ragged)
        dense, _ = obvious_crossings({k: float(np.float32(v)) for k, (v,) in smooth.items()}, 0.9)
        assert row["multiplier"] == about(k and dense / k)
        assert row["first_multiplier"] == about(first and dense / first)
        for crossing, at in (("sustained", k), ("first", first)):
            (row,) = ask(connection, "multiplier_intervals", crossing=crossing).to_pylist()
            assert (row["sparse_k"], row["multiplier"]) == (about(at), about(at and dense / at))


def test_the_size_zero_is_no_crossing(tmp_path):
    connection = store_of(tmp_path / "s", dense=effects({0: [0.0], 10: [0.5], 1000: [1.0]}))
    (k,) = select(connection, "select k from crossings")["k"].to_pylist()
    assert k == pytest.approx(10 * 100**0.8)


def test_every_ranking_has_its_areas(tmp_path):
    """CPR is asked of `signed`, CMD of `task`: both curves have both."""
    by = {"task": [0.2, 0.7, 1.0], "signed": [0.9, 1.6, 1.0]}
    tables = [
        effects(dict(zip((1, 4, 8), [[v] for v in curve], strict=True)), ranking=name)
        for name, curve in by.items()
    ]
    rows = ask(store_of(tmp_path / "s", dense=pa.concat_tables(tables)), "areas").to_pylist()
    assert [row["ranking"] for row in rows] == ["signed", "task"]
    for row in rows:
        curve, share = np.array(by[row["ranking"]]), np.array([1, 4, 8]) / 8
        assert row["cpr"] == pytest.approx(np.trapezoid(curve, share), rel=1e-6)
        assert row["cmd"] == pytest.approx(np.trapezoid(abs(1 - curve), share), rel=1e-6)


def test_a_multiplier_is_dense_over_sparse(tmp_path):
    connection = store_of(
        tmp_path / "s",
        dense=effects({1: [0.0], 100: [0.9], 1000: [1.0]}),
        sparse=effects({1: [0.0], 10: [0.9], 1000: [1.0]}),
    )
    (row,) = select(connection, "select * from multipliers").to_pylist()
    assert (row["sparse_run"], row["dense_run"], row["threshold"]) == ("sparse", "dense", 0.9)
    assert row["dense_k"] == pytest.approx(100, rel=1e-5)
    assert row["sparse_k"] == pytest.approx(10, rel=1e-5)
    assert row["multiplier"] == pytest.approx(10, rel=1e-5)


def test_a_multiplier_may_be_below_one_or_undefined(tmp_path):
    never = effects({1: [0.0], 1000: [0.6]})
    late, early = effects({1: [0.0], 500: [1.0]}), effects({1: [0.0], 50: [1.0]})
    connection = store_of(tmp_path / "a", dense=early, sparse=late)
    assert 0 < select(connection, "select multiplier from multipliers")["multiplier"][0].as_py() < 1
    for dense, sparse in ((never, early), (early, never), (never, never)):
        connection = store_of(tmp_path / f"{id(dense)}-{id(sparse)}", dense=dense, sparse=sparse)
        (row,) = select(connection, "select * from multipliers").to_pylist()
        assert row["multiplier"] is None
        assert (row["dense_k"] is None) == (dense is never)
        (row,) = ask(connection, "multiplier_intervals").to_pylist()
        assert (row["multiplier"], row["low"], row["high"]) == (None, None, None)


def test_only_like_is_paired_with_like(tmp_path):
    good = {1: [0.0], 50: [1.0]}
    connection = store_of(
        tmp_path / "s",
        dense=pa.concat_tables(
            [effects(good), effects(good, ranking="prompt"), effects(good, ablation="zero")]
        ),
        sparse=pa.concat_tables([effects(good), effects(good, level="head"), effects(good, ablation="mean")]),
    )
    rows = select(connection, "select level, ranking, ablation from multipliers").to_pylist()
    assert rows == [{"level": "edge", "ranking": "task", "ablation": "corrupt"}]


@pytest.mark.parametrize(
    "differing",
    [
        {"ablation": "zero"},
        {"method": "exact"},
        {"task": "docstring"},
        {"base_model": "another"},
        {"curves": (Curves(ablation="corrupt", split=0.5, sizes={}),)},
        {"curves": (Curves(ablation="corrupt", split=None, sizes={}, cross_fit=5),)},
    ],
)
def test_runs_whose_rankings_are_not_alike_are_not_paired(tmp_path, differing):
    """By scores of another ablation, method or task, or from another part of the prompts, or parts of them."""
    good = effects({1: [0.0], 50: [1.0]})
    assert (
        select(store_of(tmp_path / "a", dense=good, sparse=good), "select * from multipliers").num_rows == 1
    )
    other = store_of(tmp_path / "b", dense=good, sparse=good, differing=differing)
    assert select(other, "select * from multipliers").num_rows == 0


def test_areas_are_the_published_ones(tmp_path):
    shape = Shape(12, 12)
    shares = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1]
    faithfulness = [0.0232, 0.2393, 0.4988, 0.8030, 0.8813, 0.9203, 0.9357, 0.9672, 0.9781, 1.0]
    sizes = [int(share * shape.n_edges) for share in shares]
    curve = {k: [f] for k, f in zip(sizes, faithfulness, strict=True)}
    (row,) = ask(store_of(tmp_path / "s", shape=shape, dense=effects(curve)), "areas").to_pylist()
    # the benchmark's own rule: over its shares, not over the sizes that these come to
    assert row["cpr"] == pytest.approx(np.trapezoid(faithfulness, shares), rel=1e-6)
    assert row["cmd"] == pytest.approx(np.trapezoid(1 - np.array(faithfulness), shares), rel=1e-6)
    # a curve of other sizes as well has its own shares
    curve |= {7: [0.01]}
    (other,) = ask(store_of(tmp_path / "t", shape=shape, dense=effects(curve)), "areas").to_pylist()
    exact, values = np.array([7, *sizes]) / shape.n_edges, [0.01, *faithfulness]
    assert other["cpr"] == pytest.approx(np.trapezoid(values, exact), rel=1e-6)
    # published as 0.96782 and 0.03118; the curve was published to four digits, so it has a slack of 5e-5
    assert row["cpr"] == pytest.approx(0.96782, abs=5e-5)
    assert row["cmd"] == pytest.approx(0.03118, abs=5e-5)


def test_the_area_of_a_curve_that_ends_early_is_undefined(tmp_path):
    connection = store_of(tmp_path / "s", dense=effects({1: [0.1], 4: [0.9]}))  # of 8 edges
    assert ask(connection, "areas")["cpr"].to_pylist() == [None]
