"""Curves in the store: which circuits are measured, of which prompts, and what happens on the way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from slow import wiring_of
from wirescope.data import Curves, check_store, encode_pairs, read_catalog, read_pairs
from wirescope.errors import ExtractionError, InputError
from wirescope.extract import Settings, extract, find_device, load_model
from wirescope.extract.ablated import ablate
from wirescope.extract.attribution import Attributor, Batch, to_array
from wirescope.extract.circuits import Row
from wirescope.extract.curves import ask_curves, default_sizes
from wirescope.extract.edge_circuits import EdgeCircuits
from wirescope.graphs import Shape, Wiring, ranking
from wirescope.queries import Choice, View, ask, curves_command, open_store, select, units

ROOT = Path(__file__).parents[2]
MODELS = Path(os.environ.get("WIRESCOPE_MODELS", ROOT.parent / "shared" / "models"))
LEVELS = ("edge", "head", "attention")


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.plans, self.notes, self.begun, self.done = [], [], [], 0

    def begin(self, plan, what, total, done):
        self.plans.append(plan)
        self.begun.append((what, total, done))
        self.done = done

    def advance(self, count):
        self.done += count

    def note(self, message):
        self.notes.append(message)


@pytest.fixture(scope="module")
def many(random_prompts) -> Path:
    """Seventy prompts of several lengths for the tiny model, as token ids."""
    return random_prompts(70, longest=9, seed=2)


def run(tiny, store, prompts=None, listener=None, limit=None, **settings):
    return extract(
        model=str(tiny / "model"),
        prompts=prompts or tiny / "prompts.jsonl",
        store=store,
        run="tiny",
        limit=limit,
        settings=Settings(**settings),
        **({"listener": listener} if listener else {}),
    )


def effects(store, where="true") -> list[dict]:
    return select(
        open_store(store),
        f"select * exclude (run) from effects where {where} order by level, ranking, ablation, prompt_id, requested",
    ).to_pylist()


def files(store) -> dict[str, bytes]:
    return {
        str(file.relative_to(store)): file.read_bytes() for file in sorted(Path(store).glob("*/*/*.parquet"))
    }


def metrics(rows) -> np.ndarray:
    return np.array([row["metric"] for row in rows])


def test_every_circuit_of_every_prompt_is_in_the_store(tiny, tmp_path):
    told = Told()
    outcome = run(tiny, tmp_path / "s", levels=LEVELS, listener=told)
    curves = {
        ("edge", "prompt"): default_sizes("edge", 262),
        ("head", "prompt"): list(range(1, 13)),
        ("attention", "prompt"): default_sizes("attention", 12 * 55),
    }
    curves |= {(level, "random"): sizes for (level, _), sizes in curves.items()}
    curves |= {(level, "task"): curves[level, "prompt"] for level in ("edge", "head")}
    rows = effects(tmp_path / "s")
    assert outcome.circuits == len(rows) == 6 * sum(map(len, curves.values()))
    assert told.begun == [("prompts", 6, 0), ("circuits", len(rows), 0)]
    assert told.done == len(rows)
    assert "\n  edge: 26 sizes from 1 to 262, by prompt, task, random" in told.plans[1]
    for (level, by), sizes in curves.items():
        for prompt in range(6):
            own = [r for r in rows if (r["level"], r["ranking"], r["prompt_id"]) == (level, by, prompt)]
            assert [r["requested"] for r in own] == sizes
            assert own[-1]["metric"] == own[-1]["m_all"]
            assert len({(r["m_all"], r["m_none"]) for r in own}) == 1
            assert all(0 <= r["kept"] <= r["requested"] for r in own)
            if level != "edge":
                assert all(r["kept"] == r["requested"] for r in own)
    metric = select(open_store(tmp_path / "s"), "select * from prompts order by prompt_id").to_pylist()
    for row in rows:
        assert row["m_all"] == metric[row["prompt_id"]]["metric_clean"]
        if row["level"] == "edge":
            assert row["m_none"] == pytest.approx(metric[row["prompt_id"]]["metric_corrupted"], abs=1e-4)


def test_the_task_ranking_is_the_reference_implementations(tiny, tmp_path):
    """The published circuits of tiny-gpt2: requested, kept, and the metric of every prompt."""
    run(tiny, tmp_path / "s", sizes=(5, 20, 60, 200), rankings=("task",))
    for circuit in json.loads((tiny / "reference.json").read_text())["circuits"]:
        rows = effects(tmp_path / "s", f"ranking = 'task' and requested = {circuit['requested']}")
        assert [row["kept"] for row in rows] == [circuit["kept"]] * 6
        np.testing.assert_allclose(metrics(rows), circuit["metric"], atol=1e-3)


def test_each_ranking_is_of_its_own_scores(tiny, many, tmp_path):
    """The circuits of a prompt by hand: its own ranking, that of the task, and its shuffle, which are no other's."""
    run(tiny, tmp_path / "s", prompts=many, limit=20, sizes=(30, 90), rankings=("prompt", "task", "signed"))
    model = load_model(str(tiny / "model"), device=find_device())
    prompts = encode_pairs(read_pairs(many, 20), model.vocabulary)
    wiring = wiring_of(model.shape)
    scores = Attributor(model.taps, wiring, levels=("edge",), steps=5)(
        Batch(prompts, model.parts, "logit_diff")
    ).edge
    means = scores.astype(np.float64).mean(0).astype(np.float32)
    orders = {
        "prompt": [ranking(own) for own in scores],
        "task": [ranking(means)] * 20,
        "signed": [np.argsort(means, kind="stable")] * 20,  # the most negative scores help most
        "random": [np.random.default_rng([p, 0]).permutation(262) for p in range(20)],
    }
    circuits = EdgeCircuits(model.taps, wiring)
    ablated = ablate(model.taps, Batch(prompts, model.parts, "logit_diff"), ("edge",), "corrupt", None)
    for by, own in orders.items():
        for k in (30, 90):
            masks = [circuits.top(order, k) for order in own]
            expected = to_array(circuits(ablated, [Row(p, mask) for p, mask in enumerate(masks)]))
            rows = effects(tmp_path / "s", f"ranking = '{by}' and requested = {k}")
            assert [row["kept"] for row in rows] == [mask.sum() for mask in masks]
            np.testing.assert_allclose(metrics(rows), expected, atol=1e-4)
    assert len({order.tobytes() for order in orders["random"]}) == 20


@pytest.mark.parametrize("metric", ["logit_diff", "kl"])
def test_the_most_helpful_are_kept_first_whatever_the_metric(tiny, tmp_path, metric):
    """With the most helpful edges, more is explained than with those that help least: a divergence is turned round."""
    settings = {"levels": ("edge", "head"), "metric": metric, "rankings": ("signed",), "sizes": (3, 10, 40)}
    run(tiny, tmp_path / "s", **settings)
    connection = open_store(tmp_path / "s")
    sign = 1 if metric == "kl" else -1
    for level, unit in (("edge", "edge_id"), ("head", "node_id")):
        scores = select(connection, f"select {unit} as id, score from {level}_means order by {unit}")
        best = np.argsort(-sign * scores["score"].to_numpy(), kind="stable")[:3]
        (record,) = read_catalog(tmp_path / "s").runs.values()
        found = units(connection, record, level, Choice(k=3, signed=True)).rows[unit].to_pylist()
        assert found == scores["id"].to_numpy()[best].tolist()
        assert (
            ranking(scores["score"].to_numpy(), "signed", sign=record.helpful_sign)[:3].tolist()
            == best.tolist()
        )


def test_the_sizes_of_the_benchmark_are_measured(tiny, tmp_path):
    run(tiny, tmp_path / "s", sizes="mib", rankings=("signed", "task"), levels=("edge", "head"))
    (record,) = read_catalog(tmp_path / "s").runs.values()
    shares = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    n = {"edge": record.shape.n_edges, "head": record.shape.layers * record.shape.heads}
    for level, count in n.items():
        sizes = sorted({int(p * count) for p in shares} - {0})
        for by in ("signed", "task", "random"):
            rows = effects(tmp_path / "s", f"level = '{level}' and ranking = '{by}'")
            assert sorted({row["requested"] for row in rows}) == sizes
    with pytest.raises(InputError, match=r"--sizes mob are no sizes: write them as 1,10,100, or mib\."):
        Settings(sizes="mob").check()


def test_attention_edges_have_no_ranking_of_the_task(tiny, tmp_path):
    with pytest.raises(InputError, match="choose --ranking prompt as well"):
        Settings(levels=("attention",), rankings=("signed",)).check()
    run(tiny, tmp_path / "s", levels=("edge", "attention"), rankings=("prompt", "signed"), sizes=(3,))
    found = {(row["level"], row["ranking"]) for row in effects(tmp_path / "s")}
    assert found == {
        *(("edge", by) for by in ("prompt", "signed", "random")),
        *(("attention", by) for by in ("prompt", "random")),
    }


def test_batches_and_other_sizes_change_no_effect(tiny, many, tmp_path):
    settings = {"levels": LEVELS, "sizes": (1, 4, 11)}
    run(tiny, tmp_path / "a", prompts=many, limit=12, **settings)
    run(tiny, tmp_path / "b", prompts=many, limit=12, **settings, batch_size=5)
    run(tiny, tmp_path / "c", prompts=many, limit=12, levels=LEVELS, sizes=(1, 2, 3, 4, 7, 11, 12))
    where = "requested in (1, 4, 11)"
    a, b, c = (effects(tmp_path / name, where) for name in "abc")
    keys = ("level", "ranking", "prompt_id", "requested", "kept")
    for other in (b, c):
        assert [[row[key] for key in keys] for row in a] == [[row[key] for key in keys] for row in other]
        np.testing.assert_allclose(metrics(a), metrics(other), atol=1e-5)


def test_a_short_prompt_keeps_all_it_has(tiny, many, tmp_path):
    run(tiny, tmp_path / "s", prompts=many, limit=10, levels=("attention",), method="eap")
    lengths = [len(pair.clean_ids) for pair in read_pairs(many, 10)]
    assert len(set(lengths)) > 1
    for row in effects(tmp_path / "s"):
        units = 12 * lengths[row["prompt_id"]] * (lengths[row["prompt_id"]] + 1) // 2
        assert row["kept"] == min(row["requested"], units)
    curves = select(
        open_store(tmp_path / "s"), "select explained from curves order by requested desc limit 2"
    )
    assert curves["explained"].to_pylist() == [1.0, 1.0]


def test_a_split_ranks_by_some_prompts_and_measures_the_others(tiny, many, tmp_path):
    run(tiny, tmp_path / "s", prompts=many, sizes=(40,), split=0.4, method="eap")
    chosen, measured = Curves(ablation="corrupt", split=0.4, sizes={}).prompts(70)
    assert (len(chosen), len(measured)) == (28, 42)
    assert not set(chosen) & set(measured)
    rows = effects(tmp_path / "s")
    for by in ("prompt", "task", "random"):
        assert [row["prompt_id"] for row in rows if row["ranking"] == by] == measured.tolist()
    connection = open_store(tmp_path / "s")
    scores = select(connection, "select score from edge_scores order by prompt_id, edge_id")["score"]
    means = np.asarray(scores).reshape(70, 262)[chosen].astype(np.float64).mean(0)
    wiring = Wiring(Shape(3, 4))
    model = load_model(str(tiny / "model"), device=find_device())
    mask = EdgeCircuits(model.taps, wiring).top(ranking(means.astype(np.float32)), 40)
    assert {row["kept"] for row in rows if row["ranking"] == "task"} == {mask.sum()}
    assert read_catalog(tmp_path / "s").run("tiny").curves[0].split == 0.4
    with pytest.raises(InputError, match=r"has curves with --split 0.4, and this call has no --split"):
        run(tiny, tmp_path / "s", prompts=many, sizes=(41,), method="eap")


@pytest.mark.parametrize("batch_size", [3, 16])
def test_cross_fitting_measures_each_prompt_by_rankings_of_others(tiny, many, tmp_path, batch_size):
    """Those of the halves that it is not in, whatever runs together; other rankings are measured once."""
    store, levels = tmp_path / "s", ("edge", "head")
    outcome = run(
        tiny, store, prompts=many, limit=9, levels=levels, sizes=(5, 12), rankings=("prompt", "task", "signed"),
        cross_fit=3, method="eap", batch_size=batch_size,
    )  # fmt: skip
    assert outcome.circuits == 9 * 2 * 2 * (3 + 3 + 1 + 1)
    record = read_catalog(store).run("tiny")
    (curves,) = record.curves
    assert (curves.cross_fit, record.cross_fit, record.split) == (3, 3, None)
    assert record.ranked_by.tolist() == list(range(9))
    assert record.held_out.tolist() == []
    folds = curves.folds(9)
    rows = effects(store)
    for by in ("prompt", "random"):
        assert {row["fold"] for row in rows if row["ranking"] == by} == {None}
        assert sum(row["ranking"] == by for row in rows) == 9 * 2 * 2
    connection = open_store(store)
    model, wiring = load_model(str(tiny / "model"), device=find_device()), Wiring(Shape(3, 4))
    top = EdgeCircuits(model.taps, wiring).top
    scores = select(connection, "select score from edge_scores order by prompt_id, edge_id")["score"]
    scores = np.asarray(scores).reshape(9, 262)
    for by in ("task", "signed"):
        for fold, (rank, measured) in enumerate(folds):
            own = [r for r in rows if (r["ranking"], r["fold"]) == (by, fold)]
            for level in levels:
                for k in (5, 12):
                    here = [r for r in own if (r["level"], r["requested"]) == (level, k)]
                    assert sorted(r["prompt_id"] for r in here) == measured.tolist()
            mean = scores[rank].astype(np.float64).mean(0).astype(np.float32)
            mask = top(ranking(mean, by, sign=-1), 12)
            found = [r for r in own if (r["level"], r["requested"]) == ("edge", 12)]
            assert {r["kept"] for r in found} == {mask.sum()}
            told = measured_alone(model, many, wiring, measured.tolist(), mask)
            assert [r["metric"] for r in sorted(found, key=lambda r: r["prompt_id"])] == pytest.approx(
                told, abs=1e-4
            )


def measured_alone(model, many, wiring, prompts, mask) -> list[float]:
    """The metric of one circuit of edges, prompt by prompt."""
    circuits = EdgeCircuits(model.taps, wiring)
    read = encode_pairs(read_pairs(many), model.vocabulary)
    found = []
    for p in prompts:
        ablated = ablate(model.taps, Batch([read[p]], model.parts, "logit_diff"), ("edge",), "corrupt", None)
        found.append(float(to_array(circuits(ablated, [Row(0, mask)]))[0]))
    return found


def test_cross_fitted_curves_are_added_to_and_stay_what_they_are(tiny, many, tmp_path):
    store, call = tmp_path / "s", {"prompts": many, "limit": 8, "method": "eap"}
    run(tiny, store, sizes=(5,), cross_fit=2, **call)
    assert run(tiny, store, sizes=(5,), cross_fit=2, **call).circuits == 0
    assert run(tiny, store, sizes=(5, 9), cross_fit=2, **call).circuits == 8 * (2 + 1 + 1)
    assert run(tiny, store, sizes=(5,), cross_fit=2, ablation="zero", **call).circuits == 8 * (2 + 1 + 1)
    for other, now in (
        ({}, "no --cross-fit"),
        ({"cross_fit": 3}, "--cross-fit 3"),
        ({"split": 0.5}, "--split 0.5"),
    ):
        with pytest.raises(InputError, match=f"has curves with --cross-fit 2, and this call has {now}:"):
            run(tiny, store, sizes=(7,), **other, **call)
    view = View(level="edge", ranking="signed")
    assert "--cross-fit 2" in curves_command(read_catalog(store).run("tiny"), store, view)
    assert set(check_store(store)["state"].to_pylist()) == {"whole"}
    part = next((store / "effects" / "run=tiny").glob("*.parquet"))
    part.unlink()
    assert set(check_store(store)["state"].to_pylist()) == {"broken"}
    assert run(tiny, store, curves=False, **call).circuits in (8 * 4, 16 * 4)
    assert set(check_store(store)["state"].to_pylist()) == {"whole"}


def test_an_older_run_has_no_place_for_folds(tiny, tmp_path):
    store = tmp_path / "s"
    run(tiny, store, curves=False)
    record = store / "runs/run=tiny/run.json"
    record.write_text(record.read_text().replace('"schema_version": 5', '"schema_version": 4'))
    with pytest.raises(
        InputError, match=r"older Wirescope \(schema 4\), which has no place for what --cross-fit"
    ):
        run(tiny, store, sizes=(3,), cross_fit=2)
    assert run(tiny, store, sizes=(3,)).circuits == 6 * 3
    assert {row["fold"] for row in effects(store)} == {None}


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_other_ablations_are_measured_as_asked(tiny, many, tmp_path, ablation):
    run(tiny, tmp_path / "s", prompts=many, limit=8, levels=("edge", "head"), ablation=ablation, sizes=(9,))
    rows = effects(tmp_path / "s")
    assert {row["ablation"] for row in rows} == {ablation}
    corrupted = select(
        open_store(tmp_path / "s"), "select metric_corrupted as m from prompts order by prompt_id"
    )
    none = [r["m_none"] for r in rows if r["level"] == "edge" and r["ranking"] == "task"]
    assert np.abs(np.array(none) - np.asarray(corrupted["m"])).max() > 0.01


def test_more_curves_are_added_to_a_run_without_scoring_again(tiny, many, tmp_path, monkeypatch):
    store = tmp_path / "s"
    first = run(tiny, store, prompts=many, levels=("edge", "head"), sizes=(3, 9), rankings=("task",))
    assert (first.fresh, first.circuits) == (70, 70 * 2 * 2 * 2)
    before = files(store)

    def never(self, batch):
        raise AssertionError("scored again")

    monkeypatch.setattr(Attributor, "__call__", never)
    told = Told()
    more = run(tiny, store, prompts=many, sizes=(3, 5, 9), rankings=("task",), listener=told)
    assert (more.fresh, more.circuits) == (0, 70 * 2)
    assert told.begun == [("prompts", 70, 70), ("circuits", 140, 0)]
    zero = run(tiny, store, prompts=many, levels=("head",), sizes=(3,), ablation="zero")
    assert (zero.fresh, zero.circuits) == (0, 70 * 3)
    again = run(tiny, store, prompts=many, levels=("head",), sizes=(3,), ablation="zero")
    assert (again.fresh, again.circuits) == (0, 0)
    after = files(store)
    assert before.items() <= after.items()
    record = read_catalog(store).run("tiny")
    assert (record.ablation, record.levels) == ("corrupt", ("edge", "head"))
    assert [curves.ablation for curves in record.curves] == ["corrupt", "corrupt", "zero"]
    counted = select(
        open_store(store),
        "select level, ranking, ablation, requested, count(*) as n, count(distinct prompt_id) as prompts "
        "from effects group by all",
    ).to_pylist()
    assert len(counted) == 8 + 2 + 3
    assert {(row["n"], row["prompts"]) for row in counted} == {(70, 70)}


def test_scores_by_another_ablation_are_another_run(tiny, tmp_path):
    """What would add curves is told that the scores stay; what would add nothing is refused."""
    told = Told()
    run(tiny, tmp_path / "s", sizes=(9,))
    run(tiny, tmp_path / "s", sizes=(9,), ablation="zero", listener=told)
    assert told.notes[:1] == [
        "The scores of the run 'tiny' are by the ablation corrupt and stay as they are; its circuits are measured with "
        "zero. For scores by zero, choose another name with --run."
    ]
    with pytest.raises(InputError, match="not the same: ablation"):
        run(tiny, tmp_path / "s", curves=False, ablation="zero")


def test_a_circuit_by_effect_is_the_one_that_was_measured(tiny, many, tmp_path, cli):
    """Also where the ranking is from a part of the prompts."""
    run(tiny, tmp_path / "s", prompts=many, split=0.2)
    top = cli("top", "-s", tmp_path / "s", "-r", "tiny", "--effect", "0.5", "-f", "json")
    found = json.loads(top.out)
    rows = effects(tmp_path / "s", f"ranking = 'task' and requested = {found['requested']}")
    assert {row["kept"] for row in rows} == {found["kept"]}


def test_sizes_may_be_of_numpy(tiny, tmp_path):
    assert run(tiny, tmp_path / "s", sizes=tuple(np.array([3, 9]))).circuits == 6 * 2 * 3


def test_curves_can_come_later(tiny, tmp_path):
    assert run(tiny, tmp_path / "s", curves=False).circuits == 0
    assert effects(tmp_path / "s") == []
    assert run(tiny, tmp_path / "s", split=0.5, sizes=(7,)).circuits == 3 * 3


def test_a_run_whose_curves_were_interrupted_can_be_read_and_goes_on(tiny, many, tmp_path, monkeypatch):
    settings = {"prompts": many, "levels": ("edge", "head"), "sizes": (4, 12), "method": "eap"}
    run(tiny, tmp_path / "whole", **settings)
    write = __import__("wirescope.data.store", fromlist=["RunWriter"]).RunWriter.write

    def stopped(self, table, rows, shard=0, tag=""):
        if (table, shard) == ("effects", 1):
            raise KeyboardInterrupt
        write(self, table, rows, shard, tag)

    monkeypatch.setattr("wirescope.data.store.RunWriter.write", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path / "s", **settings)
    monkeypatch.undo()
    catalog = read_catalog(tmp_path / "s")
    assert catalog.run("tiny").curves == ()
    assert effects(tmp_path / "s") == []
    assert select(open_store(catalog), "select count(*) as n from edge_scores")["n"][0].as_py() == 70 * 262
    assert len(list((tmp_path / "s").glob("effects/*/*"))) == 1
    (tmp_path / "s/edge_scores/run=tiny/part-00001.parquet").unlink()
    mended = run(tiny, tmp_path / "s", **settings | {"sizes": None, "curves": False})
    assert (mended.fresh, mended.circuits, effects(tmp_path / "s")) == (32, 0, [])
    told = Told()
    outcome = run(tiny, tmp_path / "s", **settings, listener=told)
    assert (outcome.fresh, outcome.circuits) == (0, 12 * (70 - 32))
    assert told.begun[1] == ("circuits", 12 * 70, 12 * 32)
    assert files(tmp_path / "s") == files(tmp_path / "whole")


def test_what_was_begun_of_other_curves_is_not_taken_for_these(tiny, many, tmp_path, monkeypatch):
    settings = {"prompts": many, "sizes": (4, 12), "method": "eap"}
    test_a_run_whose_curves_were_interrupted_can_be_read_and_goes_on(tiny, many, tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "whole")
    stray = tmp_path / "s/effects/run=tiny/part-00000-0badcafe.parquet"
    shutil.copy(next((tmp_path / "s/effects/run=tiny").glob("*.parquet")), stray)
    run(tiny, tmp_path / "s", **settings)  # nothing to do, and nothing is touched
    assert stray.exists()
    run(tiny, tmp_path / "s", **settings | {"sizes": (5,)})
    assert not stray.exists()
    assert {row["requested"] for row in effects(tmp_path / "s")} == {4, 5, 12}


def test_a_broken_part_of_a_curve_is_measured_again(tiny, many, tmp_path):
    settings = {"prompts": many, "sizes": (4, 12), "method": "eap"}
    run(tiny, tmp_path / "s", **settings)
    whole = files(tmp_path / "s")
    part = sorted((tmp_path / "s/effects/run=tiny").glob("part-00001-*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:-9])
    assert "cut short or replaced" in read_catalog(tmp_path / "s").broken["tiny"]
    outcome = run(tiny, tmp_path / "s", **settings)
    assert (outcome.fresh, outcome.circuits) == (0, 6 * 32)
    assert files(tmp_path / "s") == whole
    assert len(read_catalog(tmp_path / "s").run("tiny").curves) == 1
    part.unlink()
    outcome = run(
        tiny, tmp_path / "s", prompts=many, method="eap", curves=False
    )  # no curves of its own, but mended
    assert (outcome.fresh, outcome.circuits) == (0, 6 * 32)
    assert files(tmp_path / "s") == whole


def test_out_of_memory_halves_the_circuits_at_a_time(tiny, many, tmp_path, monkeypatch):
    call = EdgeCircuits.__call__

    def short(self, ablated, rows):
        if len(rows) > 7 and any(row.kept.any() for row in rows):
            raise torch.OutOfMemoryError("out of memory")
        return call(self, ablated, rows)

    told = Told()
    monkeypatch.setattr(EdgeCircuits, "__call__", short)
    run(tiny, tmp_path / "s", prompts=many, limit=10, sizes=(1, 40, 90), listener=told)
    assert told.notes[-1:] == ["Out of memory: going on with 5 prompts at a time (--batch-size 5)."]
    assert told.done == 10 * 3 * 3  # what was done twice counts once
    monkeypatch.undo()
    run(tiny, tmp_path / "plain", prompts=many, limit=10, sizes=(1, 40, 90))
    a, b = (effects(tmp_path / name) for name in ("s", "plain"))
    np.testing.assert_allclose(metrics(a), metrics(b), atol=1e-5)


def test_metrics_that_are_no_numbers_are_not_written(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(
        EdgeCircuits, "__call__", lambda self, ablated, rows: torch.full((len(rows),), torch.nan)
    )
    with pytest.raises(
        ExtractionError, match=r"of 6 prompts \(0, 1, 2, 3, 4, 5\) have metrics that are not finite"
    ):
        run(tiny, tmp_path / "s")
    assert read_catalog(tmp_path / "s").run("tiny").curves == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": (0, 5)}, "A circuit has at least one unit, not 0"),
        ({"sizes": ()}, "--sizes names no size"),
        (
            {"sizes": (5, 263)},
            "A circuit of 263 units is asked for (--sizes), but there are 262 at the level edge",
        ),
        (
            {"levels": ("edge", "head"), "sizes": (13,)},
            "13 units is asked for (--sizes), but there are 262 at the",
        ),
        ({"split": 1.0}, "--split 1.0 is not a share"),
        ({"split": 0.01}, "--split 0.01 of 6 prompts leaves none to rank by"),
        ({"split": 0.95}, "--split 0.95 of 6 prompts leaves none to measure circuits on"),
        ({"cross_fit": 0}, "--cross-fit 0 is not how many times the prompts are halved: choose from 1"),
        ({"cross_fit": 2, "split": 0.5}, "--split 0.5 and --cross-fit 2 both say which prompts rank"),
        ({"curves": False, "cross_fit": 2}, "leave out --sizes, --split and --cross-fit"),
        ({"sizes": (2.5,)}, "a whole number of units, not 2.5"),
        ({"rankings": ("best",)}, "'best' is not a ranking"),
        ({"rankings": ("task",), "levels": ("attention",)}, "there is no ranking of the task"),
        ({"curves": False, "sizes": (3,)}, "--no-curves measures no circuits"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(tiny, tmp_path, settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(tiny, tmp_path / "s", **settings)
    assert not (tmp_path / "s").exists()


def test_sizes_beyond_a_level_are_for_the_others(tiny, tmp_path):
    run(tiny, tmp_path / "s", levels=("edge", "head"), sizes=(5, 100))
    sizes = select(open_store(tmp_path / "s"), "select distinct level, requested from effects order by all")
    assert sizes.to_pylist() == [
        {"level": "edge", "requested": 5},
        {"level": "edge", "requested": 100},
        {"level": "head", "requested": 5},
    ]


def test_attention_has_no_curve_of_the_task():
    curves = ask_curves(Settings(levels=LEVELS), Shape(2, 2), [3, 4])
    assert list(curves.sizes["attention"]) == ["prompt", "random"]
    assert curves.sizes["attention"]["prompt"][-1] == 4 * 10
    assert list(curves.sizes["edge"]) == ["prompt", "task", "random"]


@pytest.mark.parametrize(("level", "largest"), [("edge", 32_491), ("edge", 1_592_881), ("attention", 40)])
def test_default_sizes_run_from_one_to_everything(level, largest):
    sizes = default_sizes(level, largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    assert len(sizes) <= 30
    ratios = np.array(sizes[11:]) / sizes[10:-1]
    assert ratios.max() < 1.8


def test_every_number_of_heads_up_to_64_is_a_size():
    for heads in (12, 64, 144, 1024):
        sizes = default_sizes("head", heads)
        assert sizes[:64] == list(range(1, min(heads, 64) + 1))
        assert sizes[-1] == heads


def test_the_command_says_what_it_measures_and_what_came_of_it(tiny, tmp_path, cli):
    store = tmp_path / "s"
    command = ("extract", "-m", tiny / "model", "-p", tiny / "prompts.jsonl", "-s", store, "--run", "t")
    result = cli(*command, "--sizes", "5,20, 262", "--ranking", "task")
    assert result.status == 0
    assert result.out == ""
    assert "36 circuits:\n  edge: 3 sizes from 5 to 262, by task, random\n" in result.err
    assert f"Run 't' in '{store}': 6 prompts scored, 36 circuits measured." in result.err
    assert "no size is named for edge, corrupt: its accuracy is 0.333, and its effect is" in result.err
    more = cli(*command, "--sizes", "6", "--ablation", "zero")
    assert f"Run 't' in '{store}': 18 circuits measured." in more.err
    assert "no size is named for edge, zero: its accuracy is 0.333" in more.err
    nothing = cli(*command, "--sizes", "6", "--ablation", "zero")
    assert "nothing was written" in nothing.err
    wrong = cli(*command, "--sizes", "1,many")
    assert (wrong.status, wrong.err) == (
        2,
        "wirescope: --sizes 1,many is not a list of numbers: write 1,10,100, or mib.\n",
    )
    by_effect = cli("top", "-s", store, "-r", "t", "--effect", "0.5")
    assert "units requested" in by_effect.err


def test_dense_and_sparse_runs_give_multipliers(tiny, many, tmp_path):
    """A model and a gated one that names it as its origin, on the same prompts: pairs, intervals, areas by SQL."""
    sparse = tmp_path / "sparse"
    shutil.copytree(tiny / "model", sparse)
    config = json.loads((sparse / "config.json").read_text())
    config |= {"gate_bias": [[0.3] * 4] * 3, "base_model": str(tiny / "model")}
    (sparse / "config.json").write_text(json.dumps(config))
    for name, model in (("dense", tiny / "model"), ("sparse", sparse)):
        extract(
            model=str(model),
            prompts=many,
            limit=24,
            store=tmp_path / "s",
            run=name,
            settings=Settings(levels=("edge", "head", "attention"), method="eap"),
        )
    connection = open_store(tmp_path / "s")
    rows = ask(connection, "multiplier_intervals").to_pylist()
    compared = {(row["level"], row["ranking"]) for row in rows}
    assert compared == {(level, by) for level in LEVELS for by in ("prompt", "task", "random")} - {
        ("attention", "task")
    }
    assert {(row["sparse_run"], row["dense_run"]) for row in rows} == {("sparse", "dense")}
    for row in rows:
        if row["multiplier"] is not None:
            assert row["multiplier"] == pytest.approx(row["dense_k"] / row["sparse_k"])
            assert row["low"] is None or row["low"] <= row["multiplier"]
            assert row["high"] is None or row["high"] >= row["multiplier"]
    areas = ask(connection, "areas").to_pylist()
    assert len(areas) == 2 * len(compared)
    for area in areas:
        curve = ask(connection, "run_curve", **{k: area[k] for k in ("run", "level", "ranking", "ablation")})
        share = np.asarray(curve["requested"]) / max(curve["requested"].to_pylist())
        expected = np.trapezoid(np.asarray(curve["explained"]), share)
        assert area["cpr"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_killed_measurement_goes_on_and_two_processes_write_the_same_bytes(tiny, many, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    options = ("--level", "edge", "--level", "head", "--batch-size", "4", "--ablation", "mean")

    def command(store):
        places = ("--model", tiny / "model", "--prompts", many, "--store", tmp_path / store, "--run", "tiny")
        return ["-m", "wirescope.cli", "--", "extract", *map(str, places), *options]

    quiet = {"env": environment, "check": True, "stderr": subprocess.PIPE, "text": True}
    subprocess.run([sys.executable, *command("one")], **quiet)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    both = subprocess.run([*torchrun, *command("two")], **quiet)
    assert both.stderr.count("circuits measured") == 1
    assert files(tmp_path / "one") == files(tmp_path / "two")

    going = subprocess.Popen([sys.executable, *command("killed")], env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/effects/*/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.02)
    going.send_signal(signal.SIGKILL)
    going.communicate(timeout=60)
    assert read_catalog(tmp_path / "killed").run("tiny").curves == ()
    rest = subprocess.run([sys.executable, *command("killed")], **quiet)
    assert "circuits are done already" in rest.stderr
    assert files(tmp_path / "killed") == files(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.skipif(not (MODELS / "stories15M").is_dir(), reason="the model is not there")
def test_on_a_real_model_a_tenth_of_the_edges_explains_most(tmp_path):
    """A model of children's stories knows to whom the flower was given; the curve that the README shows."""
    extract(
        model=str(MODELS / "stories15M"),
        prompts=Path(__file__).parent / "stories-ioi.jsonl",
        store=tmp_path / "s",
        run="stories",
        settings=Settings(sizes=(50, 100, 200, 400, 2188)),
    )
    rows = select(open_store(tmp_path / "s"), "select * from curves order by requested").to_pylist()
    explained = {(row["ranking"], row["requested"]): row["explained"] for row in rows}
    assert explained["task", 200] > 0.7
    assert explained["task", 50] < 0.3
    assert explained["task", 2188] == explained["prompt", 2188] == 1
    assert explained["random", 200] < 0.05


def test_a_finished_run_of_other_weights_is_not_added_to(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    run(copy, tmp_path / "s", sizes=(3,))
    weights = load_file(copy / "model" / "model.safetensors")
    weights["transformer.wte.weight"] *= 2
    save_file(weights, copy / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="not the same: revision"):
        run(copy, tmp_path / "s", sizes=(4,))
    assert {row["requested"] for row in effects(tmp_path / "s")} == {3}


def test_effects_are_small_on_disk(tiny, many, tmp_path):
    """Sorted ids pack well: a circuit takes few bytes."""
    run(tiny, tmp_path / "s", prompts=many, levels=("edge",), method="eap")
    parts = read_catalog(tmp_path / "s").run("tiny").parts["effects"]
    assert sum(part.bytes for part in parts) / sum(part.rows for part in parts) < 12
