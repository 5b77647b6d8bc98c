"""Runs set side by side: pairs, their curves, their multiplier, against the views and slow and obvious numpy."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from wirescope.data import Curves, Run, read_catalog, write_run
from wirescope.errors import InputError
from wirescope.graphs import Inputs, Shape, Wiring
from wirescope.queries import (
    Choice,
    View,
    ask,
    check_labels,
    compare,
    curves_command,
    labels_of,
    open_store,
    pair_up,
    select,
    units,
)

TASK = View(ranking="task")


@pytest.fixture
def opened(toy):
    catalog = read_catalog(toy.path)
    return open_store(catalog), catalog


def names(pairs) -> list[tuple[str, ...]]:
    return [tuple(run.run for run in pair) for pair in pairs]


def add_run(store, name: str, **changes) -> None:
    record = replace(read_catalog(store).run("dense-ioi"), run=name, parts={}, finished=None, **changes)
    with write_run(store, record) as writer:
        writer.write_wiring(Wiring(record.shape))


def test_without_names_the_pairs_of_the_store_in_the_order_of_the_tasks(toy_copy):
    for task in ("zebra", "docstring", "greater-than"):
        add_run(toy_copy.path, f"dense-{task}", task=task)
        add_run(toy_copy.path, f"sparse-{task}", task=task, model="toy-sparse", base_model="toy")
    for i, other in enumerate(
        ({"method": "exact"}, {"metric": "kl"}, {"shape": Shape(2, 2, inputs=Inputs.MERGED)})
    ):
        add_run(toy_copy.path, f"alone-{i}", task="docstring", **other)
    catalog = read_catalog(toy_copy.path)
    tasks = ("greater-than", "ioi", "docstring", "zebra")
    assert names(pair_up(open_store(catalog), catalog, [])) == [(f"sparse-{t}", f"dense-{t}") for t in tasks]


def test_named_runs_go_two_by_two_or_alone(opened):
    connection, catalog = opened
    assert (
        names(pair_up(connection, catalog, ["sparse-ioi", "dense-ioi"] * 2))
        == [("sparse-ioi", "dense-ioi")] * 2
    )
    assert names(pair_up(connection, catalog, ["dense-ioi"])) == [("dense-ioi",)]


def test_what_cannot_be_compared_is_refused(toy_copy, ioi_store):
    add_run(toy_copy.path, "other-task", task="docstring")
    add_run(toy_copy.path, "other-metric", metric="kl")
    catalog = read_catalog(toy_copy.path)
    connection = open_store(catalog)
    for given, message in {
        ("sparse-ioi", "dense-ioi", "dense-ioi"): "two by two, sparse and dense, and these are 3",
        ("sparse-ioi", "other-task"): "has the task ioi and 'other-task' has docstring",
        ("sparse-ioi", "other-metric"): "has the metric logit_diff and 'other-metric' has kl",
        ("dense-ioi", "sparse-ioi"): "give the sparse run first",
        ("sparse-ioi", "dense-iio"): "Did you mean 'dense-ioi'",
    }.items():
        with pytest.raises(InputError, match=message):
            pair_up(connection, catalog, given)
    published = read_catalog(ioi_store)
    with pytest.raises(InputError, match="no sparse run with its dense twin: name runs with --runs"):
        pair_up(open_store(published), published, [])


def test_curves_and_multiplier_are_those_of_the_views(opened):
    connection, catalog = opened
    found = compare(connection, catalog, pair_up(connection, catalog, [])[0], TASK)
    assert [curve.run.run for curve in found.curves] == ["sparse-ioi", "dense-ioi"]
    for curve in found.curves:
        points = ask(
            connection, "run_curve", run=curve.run.run, level="edge", ranking="task", ablation="corrupt"
        )
        assert curve.points.equals(points)
        assert (curve.prompts, curve.ablation) == (4, "corrupt")
    (row,) = select(
        connection, "select * from multipliers where level = 'edge' and ranking = 'task'"
    ).to_pylist()
    assert found.multiplier.multiplier == pytest.approx(row["multiplier"])
    assert found.multiplier.sparse_k == pytest.approx(row["sparse_k"])
    assert found.multiplier.dense_k == pytest.approx(row["dense_k"])
    # draws pick other prompts than all of them once, so the interval is around it
    assert found.multiplier.low <= found.multiplier.multiplier <= found.multiplier.high
    assert found.multiplier.low < found.multiplier.high
    half = compare(
        connection, catalog, pair_up(connection, catalog, [])[0], View(ranking="task", threshold=0.5)
    )
    assert half.multiplier.multiplier != pytest.approx(found.multiplier.multiplier)
    never = compare(
        connection, catalog, pair_up(connection, catalog, [])[0], View(ranking="task", threshold=1.05)
    )
    assert never.multiplier.multiplier is None
    assert never.multiplier.sparse_k is None  # it falls again, to 1
    assert never.multiplier.sparse_first_k is not None
    first = compare(
        connection,
        catalog,
        pair_up(connection, catalog, [])[0],
        View(ranking="task", threshold=1.05, crossing="first"),
    )
    assert first.multiplier.sparse_k == never.multiplier.sparse_first_k


def test_any_two_runs_can_be_compared_whatever_they_came_from(opened):
    connection, catalog = opened
    same = compare(connection, catalog, [catalog.run("dense-ioi")] * 2, TASK)
    assert same.multiplier.multiplier == 1.0
    assert (same.multiplier.low, same.multiplier.high) == (1.0, 1.0)
    alone = compare(connection, catalog, [catalog.run("dense-ioi")], TASK)
    assert alone.multiplier is None


@pytest.mark.parametrize("ranking", ["task", "prompt"])
@pytest.mark.parametrize("level", ["edge", "head"])
def test_the_attributed_curve_agrees_with_numpy(opened, toy, level, ranking):
    connection, catalog = opened
    (curve,) = compare(
        connection,
        catalog,
        [catalog.run("dense-ioi")],
        View(level=level, ranking=ranking),
        attributed=True,
    ).curves
    scores = toy.scores["dense-ioi"]
    if level == "head":
        scores = toy.head_scores["dense-ioi"][:, Wiring(Shape(2, 2)).is_kind("head")]
    scores = scores.astype(np.float64)
    each = np.abs(scores.mean(axis=0, keepdims=True) if ranking == "task" else scores)
    each = -np.sort(-each, axis=1)
    shares = (np.cumsum(each, axis=1) / each.sum(axis=1, keepdims=True)).mean(axis=0)
    sizes = curve.attributed["requested"].to_numpy()
    assert sizes.tolist() == curve.points["requested"].to_pylist()
    np.testing.assert_allclose(curve.attributed["share"].to_numpy(), shares[sizes - 1], rtol=1e-6)


def test_the_attributed_curve_of_attention_edges_is_of_each_prompt(toy_copy):
    effects = [
        {"prompt_id": p, "requested": k, "fold": None, "kept": k, "metric": 1.0, "m_all": 2.0, "m_none": 0.0}
        | {"level": "attention", "ranking": "prompt", "ablation": "corrupt"}
        for k in (1, 5, 15, 24)
        for p in range(4)
    ]
    record = replace(
        read_catalog(toy_copy.path).run("dense-ioi"), run="a", parts={}, finished=None, levels=("attention",)
    )
    scores = select(
        open_store(toy_copy.path),
        # the last prompt has one token less, and three edges less in each head
        "select * from attention_scores where run = 'dense-ioi' and not (prompt_id = 3 and query = 2)",
    ).drop(["run"])
    with write_run(toy_copy.path, record) as writer:
        writer.write_wiring(Wiring(record.shape))
        writer.write("attention_scores", scores)
        writer.write("effects", pa.Table.from_pylist(effects))
    catalog = read_catalog(toy_copy.path)
    (curve,) = compare(
        open_store(catalog), catalog, [catalog.run("a")], View(level="attention"), attributed=True
    ).curves
    shares = []
    for prompt in range(4):
        mine = np.abs(scores["score"].to_numpy().astype(np.float64))[scores["prompt_id"].to_numpy() == prompt]
        ordered = -np.sort(-mine)
        assert len(mine) == (12 if prompt == 3 else 24)
        shares.append([ordered[:k].sum() / ordered.sum() for k in (1, 5, 15, 24)])
    np.testing.assert_allclose(curve.attributed["share"].to_numpy(), np.mean(shares, axis=0), rtol=1e-6)


def test_attention_edges_by_effect_are_as_many_as_the_prompt_itself_needs(toy_copy):
    needed = {0: 2, 1: 5}
    effects = [
        {
            "prompt_id": p,
            "requested": k,
            "fold": None,
            "kept": k,
            "metric": 2.0 * (k >= needed[p]),
            "m_all": 2.0,
            "m_none": 0.0,
        }
        | {"level": "attention", "ranking": "prompt", "ablation": "corrupt"}
        for p in needed
        for k in (1, 2, 5, 24)
    ]
    scores = select(open_store(toy_copy.path), "select * from attention_scores where run = 'dense-ioi'").drop(
        ["run"]
    )
    record = replace(
        read_catalog(toy_copy.path).run("dense-ioi"), run="a", parts={}, finished=None, levels=("attention",)
    )
    with write_run(toy_copy.path, record) as writer:
        writer.write_wiring(Wiring(record.shape))
        writer.write(
            "prompts", select(open_store(toy_copy.path), "from prompts where run = 'dense-ioi'").drop(["run"])
        )
        writer.write("attention_scores", scores)
        writer.write("effects", pa.Table.from_pylist(effects))
    catalog = read_catalog(toy_copy.path)
    connection = open_store(catalog)
    for prompt, size in needed.items():
        found = units(connection, catalog.run("a"), "attention", Choice(effect=0.9, prompt=prompt))
        assert (found.requested, found.rows.num_rows) == (size, size)
    with pytest.raises(InputError, match="no measured curve of the attention edges of prompt 2"):
        units(connection, catalog.run("a"), "attention", Choice(effect=0.9, prompt=2))
    with pytest.raises(InputError, match=r"of the attention edges of prompt 0 never explains 1.4"):
        units(connection, catalog.run("a"), "attention", Choice(effect=1.4, prompt=0))


def test_with_a_split_the_attributed_curve_is_of_the_prompts_that_rank(toy_copy):
    record = read_catalog(toy_copy.path).run("dense-ioi")
    file = toy_copy.path / "runs/run=dense-ioi/run.json"
    split = Curves(ablation="corrupt", split=0.5, sizes={})
    file.write_text(replace(record, curves=(split,)).to_json())
    catalog = read_catalog(toy_copy.path)
    run = catalog.run("dense-ioi")
    chosen = run.ranked_by
    assert len(chosen) == 2
    (curve,) = compare(open_store(catalog), catalog, [run], TASK, attributed=True).curves
    strength = np.sort(np.abs(toy_copy.scores["dense-ioi"][chosen].astype(np.float64).mean(axis=0)))[::-1]
    expected = (strength.cumsum() / strength.sum())[curve.attributed["requested"].to_numpy() - 1]
    np.testing.assert_allclose(curve.attributed["share"].to_numpy(), expected, rtol=1e-6)


def test_a_run_without_the_curve_gets_the_command_that_adds_it(opened, ioi_store):
    connection, catalog = opened
    with pytest.raises(
        InputError, match=r"no measured curve at the level edge.* with the ablation zero\. This adds it: "
    ):
        compare(connection, catalog, [catalog.run("dense-ioi")], View(ablation="zero"))
    published = read_catalog(ioi_store)
    with pytest.raises(InputError, match=r"was imported from 'gpt2-small-ioi\.json\.gz', without a model"):
        compare(open_store(published), published, [published.run("gpt2-small-ioi")], TASK)


def test_edges_with_other_inputs_are_not_counted_against_each_other(toy_copy):
    effects = select(open_store(toy_copy.path), "select * from effects where run = 'dense-ioi'").drop(["run"])
    merged = replace(
        read_catalog(toy_copy.path).run("dense-ioi"),
        run="merged",
        parts={},
        finished=None,
        shape=Shape(2, 2, inputs=Inputs.MERGED),
    )
    with write_run(toy_copy.path, merged) as writer:
        writer.write_wiring(Wiring(merged.shape))
        writer.write("effects", effects)
    catalog = read_catalog(toy_copy.path)
    connection = open_store(catalog)
    pair = [catalog.run("sparse-ioi"), catalog.run("merged")]
    with pytest.raises(InputError, match="have split inputs and those of 'merged' merged ones"):
        compare(connection, catalog, pair, TASK)
    assert compare(connection, catalog, pair, View(level="head")).multiplier.multiplier > 1


def test_a_run_without_an_effect_says_so(toy_copy):
    effects = select(open_store(toy_copy.path), "select * from effects where run = 'dense-ioi'").drop(["run"])
    at = effects.schema.get_field_index("m_all")
    nothing = replace(read_catalog(toy_copy.path).run("dense-ioi"), run="nothing", parts={}, finished=None)
    with write_run(toy_copy.path, nothing) as writer:
        writer.write_wiring(Wiring(nothing.shape))
        writer.write("effects", effects.set_column(at, "m_all", effects["m_none"]))
    catalog = read_catalog(toy_copy.path)
    with pytest.raises(InputError, match="has no effect to explain: with the ablation corrupt"):
        compare(open_store(catalog), catalog, [catalog.run("nothing")], TASK)


def test_a_label_must_be_of_something_in_the_figure(opened):
    _, catalog = opened
    runs = list(catalog.runs.values())
    check_labels(runs, {"toy": "Toy", "sparse-ioi": "Sparse"})
    check_labels(runs, None)
    with pytest.raises(InputError, match="No model or run 'toi' is in the figure to be called 'T'"):
        check_labels(runs, {"toi": "T"})


def test_the_command_says_what_the_run_says():
    run = Run(
        run="r",
        model="allenai/OLMo 7B",
        shape=Shape(2, 2, inputs=Inputs.MERGED),
        task="ioi",
        seed=3,
        prompts=40,
        levels=("edge", "head"),
        method="eap-ig",
        steps=7,
        metric="kl",
        ablation="zero",
        dtype="bfloat16",
    )
    assert curves_command(run, "my store", View()) == (
        "wirescope extract --model 'allenai/OLMo 7B' --task ioi --limit 40 --seed 3 --store 'my store' --run r "
        "--level edge --level head --method eap-ig --metric kl --dtype bfloat16 --steps 7 --merge-qkv --ablation zero"
    )
    # a level that was not scored cannot be added to the run
    other = curves_command(
        replace(run, task="my-pairs", seed=None), "s", View(level="attention", ablation="corrupt")
    )
    assert "--prompts my-pairs.jsonl --limit 40 --store s --run r-attention --level attention " in other
    assert other.endswith("--ablation corrupt")


def test_views_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="no ranking of the task: choose --ranking prompt"):
        View(level="attention", ranking="task")
    with pytest.raises(InputError, match=r"above 0 and at most 1.5, where 1 is all of it, not -1"):
        View(threshold=-1)


def test_labels_are_the_models_unless_two_are_the_same(opened):
    _, catalog = opened
    pair = [catalog.run("sparse-ioi"), catalog.run("dense-ioi")]
    assert labels_of(pair) == ["toy-sparse", "toy"]
    assert labels_of(pair, {"toy": "Toy", "sparse-ioi": "Sparse"}) == ["Sparse", "Toy"]
    assert labels_of([pair[0], replace(pair[1], model="toy-sparse")]) == ["sparse-ioi", "dense-ioi"]
    assert labels_of([replace(pair[0], model="allenai/OLMo-7B")]) == ["OLMo-7B"]
