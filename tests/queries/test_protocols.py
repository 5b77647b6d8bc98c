"""Runs under a protocol: of each model the ablation with the smaller circuit, against slow and obvious Python."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from wirescope.cli import demo
from wirescope.data import PROTOCOLS, Run, read_catalog, write_run
from wirescope.errors import InputError
from wirescope.graphs import Shape, Wiring
from wirescope.queries import View, ask, compare, open_store, pair_up, select, whole_units
from wirescope.queries import open as open_notebook
from wirescope.viz import curve_figure

TINY = Shape(1, 1)
SPREAD = (-0.05, -0.02, 0.02, 0.05)
SIZES = (1, 4, 16, 64, 256)
EARLY, LATE, LATER = (0.1, 0.7, 0.99, 1.1, 1.0), (0.0, 0.2, 0.6, 0.97, 1.0), (-0.1, 0.1, 0.3, 0.85, 1.0)
BARELY = (-0.1, 0.1, 0.3, 0.85, 0.95)  # the lower end of its band does not get to 0.9
NOISY = (0.0, 0.2, 0.59, 0.97, 1.0)  # hardly later than LATE, and with a wider band, which gets there earlier
NEVER, HARDLY, FALLS = (0.0, 0.1, 0.2, 0.3, 0.5), (0.0, 0.2, 0.5, 0.8, 0.89), (0.0, 0.95, 0.6, 0.99, 1.0)
DROPS = (0.0, 0.95, 0.6, 0.7, 0.8)  # for good
CASES = {  # by stem: the curves with zero and with mean; of the models that reach 0.9, all four combinations
    "sparse-both": (LATE, EARLY),
    "sparse-zero-alone": (LATE, NEVER),
    "sparse-mean-alone": (HARDLY, LATE),
    "sparse-none": (NEVER, HARDLY),
    "sparse-falls": (FALLS, LATE),
    "sparse-noisy": (LATE, NOISY),
    "dense-both": (LATE, LATER),
    "dense-zero-alone": (BARELY, HARDLY),
    "dense-mean-alone": (NEVER, LATER),
    "dense-none": (HARDLY, NEVER),
}


def effects(curve, ablation, *, ranking="prompt", sign=1.0, spread=SPREAD) -> pa.Table:
    """One curve of four prompts; m_none is 0 and m_all is 1, or -1."""
    return pa.Table.from_pylist(
        [
            {"level": "edge", "ranking": ranking, "ablation": ablation, "prompt_id": prompt}
            | {"requested": size, "kept": size, "metric": sign * (explained + spread[prompt])}
            | {"m_all": sign, "m_none": 0.0, "fold": None}
            for size, explained in zip(SIZES, curve, strict=True)
            for prompt in range(4)
        ]
    )


def add(path, name, table, *, protocol="published", **changes) -> None:
    """A run, sparse or dense by the beginning of its name, with these effects."""
    sparse = name.startswith("sparse")
    record = Run(
        run=name,
        model="small-sparse" if sparse else "small",
        base_model="small" if sparse else None,
        shape=TINY,
        task="ioi",
        prompts=4,
        levels=("edge",),
        method="eap",
        metric="logit_diff",
        protocol=protocol,
        ablation=table["ablation"][0].as_py(),
    )
    with write_run(path, replace(record, **changes)) as writer:
        writer.write_wiring(Wiring(TINY))
        writer.write("effects", table)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("protocols") / "s"
    for stem, curves in CASES.items():
        for ablation, curve in zip(("zero", "mean"), curves, strict=True):
            spread = tuple((4 if curve is NOISY else 1) * off for off in SPREAD)
            add(path, f"{stem}-{ablation}", effects(curve, ablation, spread=spread))
    for name, curve in (("sparse-both", LATE), ("dense-both", EARLY)):  # called as a stem of the others
        add(path, name, effects(curve, "corrupt", ranking="task"), protocol="contrast")
    add(path, "dense-plain", effects(LATE, "zero"), protocol=None)
    return path


@pytest.fixture
def opened(store):
    catalog = read_catalog(store)
    return open_store(catalog), catalog


def stays_from(curve, threshold=0.9) -> float | None:
    """From where on a curve stays at a threshold, by looking at every size."""
    points = [(k, float(np.float32(e + 0.0))) for k, e in zip(SIZES, curve, strict=True)]
    for i, (k, e) in enumerate(points):
        if all(later >= threshold for _, later in points[i:]):
            if i == 0:
                return float(k)
            k0, e0 = points[i - 1]
            return math.exp(math.log(k0) + math.log(k / k0) * (threshold - e0) / (e - e0))
    return None


def smaller(zero: float | None, mean: float | None) -> tuple[str, float | None]:
    """The rule, word by word."""
    if zero is None and mean is None:
        return "zero", None
    if zero is None or mean is None:
        return ("mean", mean) if zero is None else ("zero", zero)
    return ("zero", zero) if zero <= mean else ("mean", mean)


def least(*ends: float | None) -> float | None:
    """The least of the ends of intervals; None is open."""
    return min((end for end in ends if end is not None), default=None)


def combined(point: float | None, one: tuple, other: tuple, *, may_jump: bool) -> float | None:
    """How far off an end is on logs, by how far off the ends are that it depends on, each (end, k): by MOVER or, where
    a curve may jump from one crossing to another, as far as both together."""
    if point is None or None in (*one, *other):
        return None
    distances = [abs(math.log(end / k)) for end, k in (one, other)]
    return sum(distances) if may_jump else math.hypot(*distances)


def test_the_smaller_of_two_ablations_counts_for_each_model(opened):
    connection, _ = opened
    ends = {
        row["run"]: row
        for row in select(connection, "select * from crossings where level = 'edge'").to_pylist()
        if row["ablation"] != "corrupt"
    }
    found = {
        (row["sparse_run"].rpartition("-")[0], row["dense_run"].rpartition("-")[0]): row
        for row in select(
            connection, "select * from protocol_multipliers where protocol = 'published'"
        ).to_pylist()
    }
    assert set(found) == {
        (s, d) for s in CASES for d in CASES if s.startswith("sparse") and d.startswith("dense")
    }
    reached = set()
    for (sparse, dense), row in found.items():
        sides = {}
        for side, stem in (("sparse", sparse), ("dense", dense)):
            ks = [stays_from(curve) for curve in CASES[stem]]
            ablation, k = smaller(*ks)
            low, high = (
                least(*(ends[f"{stem}-{a}"][end] for a in ("zero", "mean"))) for end in ("low", "high")
            )
            assert row[f"{side}_ablation"] == ablation
            assert row[f"{side}_run"] == f"{stem}-{ablation}"
            assert row[f"{side}_k"] == (None if k is None else pytest.approx(k, rel=1e-5))
            sides[side] = (k, low, high)
            reached.add((side, *(k is not None for k in ks)))
        (s, s_low, s_high), (d, d_low, d_high) = sides["sparse"], sides["dense"]
        multiplier = None if s is None or d is None else d / s
        jumps = any(ends[f"{stem}-{a}"]["may_jump"] for stem in (sparse, dense) for a in ("zero", "mean"))
        below, above = (
            combined(multiplier, (d_low, d), (s_high, s), may_jump=jumps),
            combined(multiplier, (d_high, d), (s_low, s), may_jump=jumps),
        )
        expected = {
            "multiplier": multiplier,
            "low": None if below is None else multiplier * math.exp(-below),
            "high": None if above is None else multiplier * math.exp(above),
        }
        for name, value in expected.items():
            assert row[name] == (None if value is None else pytest.approx(value, rel=1e-4)), (
                sparse,
                dense,
                name,
            )
    assert len(reached) == 8  # both, either, none, of both kinds of models
    assert {row["low"] is None for row in found.values() if row["multiplier"]} == {False}
    assert {row["high"] is None for row in found.values() if row["multiplier"]} == {True, False}


def test_a_model_compared_with_itself_is_as_good_for_sure(opened):
    connection, _ = opened
    query = "select * from protocol_ratios where sparse_stem = dense_stem and sparse_k is not null"
    rows = select(connection, query).to_pylist()
    assert len(rows) == 10  # those that get there, and those of the other protocol
    for row in rows:
        assert [row[name] for name in ("multiplier", "low", "high")] == [1, 1, 1]
        assert [row[name] for name in ("first_multiplier", "first_low", "first_high")] == [1, 1, 1]


def test_a_curve_of_no_effect_is_nobodys_smaller_circuit(tmp_path):
    """It crosses early, as everything does that is divided by noise or by what has the wrong sign."""
    add(tmp_path / "s", "sparse-a-zero", effects(LATE, "zero"))
    add(tmp_path / "s", "sparse-a-mean", effects(EARLY, "mean", sign=-1.0))
    found = ask(open_store(tmp_path / "s"), "run_protocol_crossings").to_pylist()
    (first, second) = (row for row in found if row["stem"] == "sparse-a" and row["ranking"] == "prompt")
    assert (first["ablation"], second["ablation"], second["k"]) == ("zero", "mean", None)
    assert first["k"] == pytest.approx(stays_from(LATE), rel=1e-5)


def test_of_one_stem_and_ablation_the_run_that_says_the_ablation_counts(tmp_path):
    """Others may be of other prompts."""
    add(tmp_path / "s", "sparse-a", effects(EARLY, "zero"))
    add(tmp_path / "s", "sparse-b", effects(LATER, "zero"))
    add(tmp_path / "s", "sparse-a-zero", effects(LATE, "zero"))
    add(tmp_path / "s", "sparse-a-mean", effects(LATER, "mean"))
    connection = open_store(tmp_path / "s")
    found = ask(connection, "run_protocol_crossings").to_pylist()
    assert [(row["stem"], row["run"]) for row in found] == [
        ("sparse-a", "sparse-a-zero"),
        ("sparse-a", "sparse-a-mean"),
        ("sparse-b", "sparse-b"),
    ]
    (row,) = select(
        connection,
        "select * from protocol_ratios where sparse_stem = 'sparse-a' and dense_stem = 'sparse-b'",
    ).to_pylist()
    assert (row["sparse_run"], row["sparse_k"]) == (
        "sparse-a-zero",
        pytest.approx(stays_from(LATE), rel=1e-5),
    )
    assert row["low"] > 1  # which it would not be by the interval of the other run


@pytest.mark.parametrize(
    ("curves", "ragged", "first"),
    [
        ((FALLS, LATER), True, True),  # the curve by zero counts, and falls
        ((FALLS, EARLY), False, True),  # that by mean counts, and does not
        ((DROPS, NEVER), True, True),  # there is no k
        ((LATE, EARLY), False, False),
    ],
)
def test_a_pair_is_ragged_if_a_curve_that_counts_falls_again(tmp_path, monkeypatch, curves, ragged, first):
    for ablation, curve in zip(("zero", "mean"), curves, strict=True):
        add(tmp_path / "s", f"sparse-ioi-{ablation}", effects(curve, ablation))
        add(tmp_path / "s", f"dense-ioi-{ablation}", effects(LATE, ablation))
    for name in ("sparse-ioi", "dense-ioi"):
        add(tmp_path / "s", name, effects(LATE, "corrupt", ranking="task"), protocol="contrast")
    connection = open_store(tmp_path / "s")
    (row,) = select(connection, "select * from protocol_multipliers where protocol = 'published'").to_pylist()
    assert row["ragged"] == ragged
    for name, value in {"PAIR": ("dense", "sparse"), "LEVELS": ("edge",), "MAIN_TASKS": ("ioi",)}.items():
        monkeypatch.setattr(demo, name, value)
    said = {row["ablation"]: row["ragged"] for row in demo._compared(connection)}
    assert said == {"zero": first, "smaller": ragged, "corrupt": False}


def test_runs_pair_within_a_protocol_or_without_one(opened):
    connection, catalog = opened
    pairs = {(row["sparse_run"], row["dense_run"]) for row in ask(connection, "run_pairs").to_pylist()}
    assert ("sparse-both-zero", "dense-both-zero") in pairs
    assert ("sparse-both-zero", "dense-plain") in pairs  # which has none
    assert ("sparse-both", "dense-both") in pairs
    for sparse, dense in pairs:
        one, other = catalog.run(sparse), catalog.run(dense)
        assert one.ablation == other.ablation
        assert one.protocol == other.protocol or None in (one.protocol, other.protocol)
    stems = {(row["sparse_stem"], row["dense_stem"]) for row in ask(connection, "protocol_pairs").to_pylist()}
    assert not any("plain" in stem for pair in stems for stem in pair)


def test_equal_ablations_of_different_protocols_are_no_pair(tmp_path):
    add(tmp_path / "s", "sparse-a", effects(LATE, "zero"), protocol="published")
    add(tmp_path / "s", "dense-a", effects(LATE, "zero"), protocol="contrast")
    assert ask(open_store(tmp_path / "s"), "run_pairs").num_rows == 0


def test_names_are_stems_or_those_of_runs(opened):
    connection, catalog = opened
    view = View(protocol="published")

    def named(*given):
        return [tuple(run.run for run in pair) for pair in pair_up(connection, catalog, given, view)]

    expected = [("sparse-both-mean", "dense-both-zero")]
    assert named("sparse-both", "dense-both") == expected  # though there are such runs, of another protocol
    assert named("sparse-both-zero", "dense-both-mean") == expected  # each stands for its stem
    assert named("sparse-none") == [("sparse-none-zero",)]
    assert len(named()) == 24
    contrast = pair_up(connection, catalog, [], View(protocol="contrast"))
    assert [tuple(run.run for run in pair) for pair in contrast] == [("sparse-both", "dense-both")]
    for given, message in {
        (
            "dense-plain",
        ): r"'dense-plain' was not made under the protocol published: make one .* --protocol published",
        (
            "dense-bth",
            "dense-both",
        ): r"no runs 'dense-bth' under the protocol published .* Did you mean 'dense-both'",
        ("dense-both",) * 3: "two by two, sparse and dense, and these are 3",
        ("dense-both", "sparse-both"): "give the sparse run first",
    }.items():
        with pytest.raises(InputError, match=message):
            named(*given)


def test_without_such_runs_a_protocol_says_how_to_make_them(toy):
    catalog = read_catalog(toy.path)
    with pytest.raises(
        InputError, match="no sparse run with its dense twin that were made with 'wirescope extract --pr"
    ):
        pair_up(open_store(catalog), catalog, [], View(protocol="published"))


def test_a_view_takes_what_it_is_not_told_from_the_protocol():
    assert (View().ranking, View().smaller) == ("prompt", False)
    assert (View(protocol="published").ranking, View(protocol="published").smaller) == ("prompt", True)
    assert View(protocol="contrast").ranking == "task"
    assert View(protocol="contrast", ranking="prompt").ranking == "prompt"
    assert View(protocol="contrast", level="attention").ranking == "prompt"
    assert not View(protocol="published", ablation="mean").smaller
    with pytest.raises(InputError, match="'contrats' is not a protocol"):
        View(protocol="contrats")
    for protocol in PROTOCOLS.values():
        assert set(protocol.rankings) == {"prompt", "task"}


def test_a_comparison_is_that_of_the_view_of_all(opened):
    connection, catalog = opened
    view = View(protocol="published", threshold=0.8)
    (pair,) = pair_up(connection, catalog, ["sparse-both", "dense-both"], view)
    found = compare(connection, catalog, pair, view)
    assert [curve.ablation for curve in found.curves] == ["mean", "zero"]
    for curve, stem in zip(found.curves, ("sparse-both", "dense-both"), strict=True):
        ks = dict(zip(("zero", "mean"), (stays_from(curve, 0.8) for curve in CASES[stem]), strict=True))
        assert dict(curve.among) == {ablation: pytest.approx(k, rel=1e-5) for ablation, k in ks.items()}
    multiplier = stays_from(LATE, 0.8) / stays_from(EARLY, 0.8)
    assert found.multiplier.multiplier == pytest.approx(multiplier, rel=1e-5)
    assert found.multiplier.low < multiplier < found.multiplier.high
    (pair,) = pair_up(
        connection, catalog, ["sparse-falls", "dense-both"], View(protocol="published", crossing="first")
    )
    first = compare(connection, catalog, pair, View(protocol="published", crossing="first")).multiplier
    assert pair[0].ablation == "zero"
    assert first.sparse_k == first.sparse_first_k < 4


def test_an_ablation_that_is_named_overrides_the_choice(opened):
    connection, catalog = opened
    view = View(protocol="published", ablation="zero")
    (pair,) = pair_up(connection, catalog, ["sparse-both", "dense-both"], view)
    found = compare(connection, catalog, pair, view)
    assert [curve.run.run for curve in found.curves] == ["sparse-both-zero", "dense-both-zero"]
    assert found.multiplier.multiplier == pytest.approx(1)
    assert found.curves[0].among == {}


def test_the_caption_says_which_ablation_and_why(opened, store):
    connection, catalog = opened
    view = View(protocol="published")
    said = curve_figure(connection, catalog, ["sparse-both", "dense-both"], view=view).caption
    assert "Protocol published: what the model needs at all (units carry zero, or their mean, unless" in said
    assert "Level edge, protocol published, threshold 0.9." in said
    early, late, later = (whole_units(stays_from(curve)) for curve in (EARLY, LATE, LATER))
    assert f"IOI, small-sparse: ablation mean, the smaller of zero ({late}) and mean ({early}), where" in said
    assert f"IOI, small: ablation zero, the smaller of zero ({late}) and mean ({later}), where" in said
    for names, line in {
        (
            "sparse-none",
            "dense-both",
        ): "small-sparse: ablation zero; 0.9 is reached by none of zero and mean.",
        (
            "sparse-zero-alone",
            "dense-both",
        ): "small-sparse: ablation zero; by mean the curve does not stay at 0.9, or",
        (
            "sparse-mean-alone",
            "dense-both",
        ): "small-sparse: ablation mean; by zero the curve does not stay at 0.9, or",
    }.items():
        assert line in curve_figure(connection, catalog, names, view=view).caption
    contrast = open_notebook(store).curve("sparse-both", "dense-both", protocol="contrast").caption
    assert "Protocol contrast: what makes the difference between two prompts" in contrast
    assert "small: ablation corrupt, the only one that was measured." in contrast
    overridden = curve_figure(
        connection, catalog, ["sparse-both", "dense-both"], view=View(protocol="published", ablation="zero")
    ).caption
    assert "Level edge, ablation zero, threshold 0.9." in overridden
    assert "the smaller of" not in overridden


def test_curves_of_several_ablations_need_a_protocol(opened):
    connection, catalog = opened
    with pytest.raises(InputError, match=r"choose it with --ablation, or a --protocol"):
        curve_figure(
            connection,
            catalog,
            ["sparse-both-zero", "dense-both-zero", "sparse-both-mean", "dense-both-mean"],
        )


def test_the_command_draws_a_protocol(store, cli, tmp_path):
    out = tmp_path / "published.svg"
    result = cli(
        "curve", "-s", store, "--protocol", "published", "--runs", "sparse-both", "dense-both", "-o", out
    )
    assert result.status == 0, result.err
    caption = out.with_suffix(".caption.txt").read_text()
    early, late = (whole_units(stays_from(curve)) for curve in (EARLY, LATE))
    assert f"the smaller of zero ({late}) and mean ({early})" in caption
    assert f"IOI: {late} against {early}, {stays_from(LATE) / stays_from(EARLY):.2f} times fewer" in caption
    result = cli("curve", "-s", store, "--protocol", "publishd", "-o", out)
    assert (result.status, "Did you mean 'published'?" in result.err) == (2, True)
    listed = cli("runs", "-s", store, "--format", "csv").out.splitlines()
    assert "protocol" in listed[0]
    assert sum('"published"' in line for line in listed) == 2 * len(CASES)


def test_the_queries_of_the_cookbook_find_what_was_measured(opened):
    """All multipliers of two models under every ranking and ablation, and those under a protocol."""
    connection, _ = opened
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    every, under = re.findall(
        r'circuits "\n(  select [^"]*from (?:multipliers\n|protocol_multipliers where)[^"]*)"', page
    )[-2:]
    rows = select(connection, every.replace("tiny", "small")).to_pylist()
    expected = [
        row
        for row in select(connection, "select * from multipliers where ranking <> 'random'").to_pylist()
        if "plain" not in row["dense_run"]
    ]
    assert {(row["ablation"], row["ranking"]) for row in rows} == {
        ("corrupt", "task"),
        ("mean", "prompt"),
        ("zero", "prompt"),
    }
    own = [row for row in rows if row["multiplier"] is not None]
    for row in expected:
        if row["multiplier"] is not None:
            assert any(math.isclose(row["multiplier"], one["multiplier"]) for one in own)
    found = select(connection, under).to_pylist()
    assert len(found) == 24
    assert found == sorted(found, key=lambda row: (row["task"], row["level"], row["ranking"]))
