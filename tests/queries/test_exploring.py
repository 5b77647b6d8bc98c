"""What the explorer is given, against numpy and against the store's own curves."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from wirescope.data import TABLES, Curves, Run, read_catalog, write_run
from wirescope.errors import InputError
from wirescope.graphs import Shape, Wiring, ranking
from wirescope.queries import explore, open_store, select

TINY = Shape(layers=1, heads=2)
WIRING = Wiring(TINY)


def runs_of(path):
    catalog = read_catalog(path)
    return open_store(catalog), catalog


def pair(catalog):
    return catalog.run("sparse-ioi"), catalog.run("dense-ioi")


def write(path, name: str, *, texts, levels=("edge",), curves=None, effects=(), **other) -> np.ndarray:
    """A run with these prompts, random scores and these effects: (prompt, requested, metric, m_all, m_none)."""
    record = Run(
        run=name,
        model=other.pop("model", name),
        shape=TINY,
        task=other.pop("task", "ioi"),
        prompts=len(texts),
        levels=levels,
        ablation="corrupt",
        **other,
    )
    scores = np.random.default_rng(3).normal(size=(len(texts), WIRING.n_edges)).astype(np.float32)
    number = np.arange(len(texts), dtype=np.int32)
    with write_run(path, record) as writer:
        writer.write_wiring(WIRING)
        prompts = [{"prompt_id": i, "clean": text} for i, text in enumerate(texts)]
        writer.write("prompts", pa.Table.from_pylist(prompts, schema=TABLES["prompts"]))
        writer.write(
            "edge_scores",
            pa.table(
                {
                    "prompt_id": np.repeat(number, WIRING.n_edges),
                    "edge_id": np.tile(np.arange(WIRING.n_edges), len(texts)),
                    "score": scores.ravel(),
                }
            ),
        )
        if "head" in levels:
            heads = np.flatnonzero(WIRING.is_kind("head"))
            columns = {"prompt_id": np.repeat(number, len(heads)), "node_id": np.tile(heads, len(texts))}
            writer.write("head_scores", pa.table(columns | {"score": np.ones(len(texts) * len(heads))}))
        if effects:
            rows = [
                {"level": "edge", "ranking": "prompt", "ablation": "corrupt", "prompt_id": prompt, "kept": 1}
                | {"requested": size, "fold": None, "metric": metric, "m_all": m_all, "m_none": m_none}
                for prompt, size, metric, m_all, m_none in effects
            ]
            rows += [row | {"ranking": "task"} for row in rows]
            writer.write("effects", pa.Table.from_pylist(rows))
        if curves:
            writer.finish()
            writer.add_curves(curves)
    return scores


def test_the_task_is_ranked_by_the_mean_and_a_prompt_by_its_own_scores(toy):
    connection, catalog = runs_of(toy.path)
    (panel,) = explore(connection, [pair(catalog)]).panels
    assert panel.name == "IOI"
    assert [prompt.text for prompt in panel.prompts] == [f"clean {i}" for i in range(4)]
    for side in panel.sides:
        scores = toy.scores[side.run.run]
        mean = scores.astype(np.float64).mean(axis=0).astype(np.float32)
        np.testing.assert_array_equal(side.task.edges, ranking(mean))
        np.testing.assert_allclose(side.task.scores, mean[ranking(mean)], rtol=1e-6)
        assert len(side.prompts) == 4
        for own, prompt in zip(side.prompts, panel.prompts, strict=True):
            expected = scores[prompt.prompt_id]
            np.testing.assert_array_equal(own.edges, ranking(expected))
            np.testing.assert_array_equal(own.scores, expected[ranking(expected)])


def test_a_ranking_of_the_task_that_was_measured_is_offered(toy_copy):
    """Of any side; the most helpful edges come first, and its curve is the one that was measured so."""
    connection, catalog = runs_of(toy_copy.path)
    assert explore(connection, [pair(catalog)]).panels[0].rankings == ("task",)
    rows = select(
        connection, "select * exclude (run) from effects where run = 'dense-ioi' and ranking = 'task'"
    )
    at = rows.schema.get_field_index("ranking")
    signed = rows.set_column(at, "ranking", pa.array(["signed"] * rows.num_rows))
    record = replace(catalog.run("dense-ioi"), run="signed", parts={}, finished=None)
    with write_run(toy_copy.path, record) as writer:
        writer.write_wiring(Wiring(record.shape))
        for table in ("prompts", *(f"{level}_scores" for level in record.levels)):
            writer.write(
                table, select(connection, f"select * exclude (run) from {table} where run = 'dense-ioi'")
            )
        writer.write("effects", signed)
    connection, catalog = runs_of(toy_copy.path)
    (panel,) = explore(connection, [[catalog.run("signed"), catalog.run("dense-ioi")]]).panels
    assert panel.rankings == ("task", "signed")
    mean = toy_copy.scores["dense-ioi"].astype(np.float64).mean(axis=0).astype(np.float32)
    for side in panel.sides:
        assert side.tasks[1].edges.tolist() == np.argsort(mean, kind="stable").tolist()
    measured = [[task.curve.num_rows for task in side.tasks] for side in panel.sides]
    assert measured == [[0, 4], [4, 0]]


def test_no_more_edges_and_prompts_than_asked_for(toy):
    connection, catalog = runs_of(toy.path)
    whole = explore(connection, [pair(catalog)]).panels[0].sides[0]
    (panel,) = explore(connection, [pair(catalog)], edges=5, prompts=2).panels
    assert [prompt.prompt_id for prompt in panel.prompts] == [0, 1]
    assert panel.sides[0].task.edges.tolist() == whole.task.edges[:5].tolist()
    assert [len(own.edges) for own in panel.sides[0].prompts] == [5, 5]


def test_curves_are_those_of_the_store(toy):
    connection, catalog = runs_of(toy.path)
    (panel,) = explore(connection, [pair(catalog)]).panels
    for side in panel.sides:
        task = select(
            connection,
            f"select requested, kept, explained from curves where run = '{side.run.run}' and level = 'edge' "
            "and ranking = 'task' order by requested",
        )
        assert side.task.curve.to_pylist() == task.to_pylist()
        effects = select(
            connection,
            f"select * from effects where run = '{side.run.run}' and level = 'edge' and ranking = 'prompt' "
            "and prompt_id = 2 order by requested",
        ).to_pylist()
        expected = [(row["metric"] - row["m_none"]) / (row["m_all"] - row["m_none"]) for row in effects]
        curve = side.prompts[2].curve
        assert curve["requested"].to_pylist() == [row["requested"] for row in effects] == [1, 4, 16, 46]
        assert curve["explained"].to_pylist() == pytest.approx(expected)


def test_where_there_is_no_effect_nothing_is_explained(tmp_path):
    effects = [(0, 1, 0.5, 2.0, 2.0), (0, 8, 0.7, 2.0, 2.0), (1, 1, 0.5, 2.0, 0.0), (1, 8, 2.0, 2.0, 0.0)]
    write(tmp_path / "s", "a", texts=["x", "y"], effects=effects)
    connection, catalog = runs_of(tmp_path / "s")
    first, second = explore(connection, [[catalog.run("a")]]).panels[0].sides[0].prompts
    assert first.curve["explained"].to_pylist() == [None, None]
    assert second.curve["explained"].to_pylist() == [0.25, 1.0]


def test_with_a_split_the_ranking_is_that_of_its_prompts_and_measured_prompts_come_first(tmp_path):
    curves = Curves(ablation="corrupt", split=0.5, sizes={"edge": {"task": (1,), "prompt": (1,)}})
    by, on = curves.prompts(6)
    assert on.max() > by.min()  # or the order would not show
    texts = [f"text {i}" for i in range(6)]
    scores = write(
        tmp_path / "s",
        "a",
        texts=texts,
        curves=curves,
        effects=[(int(prompt), 1, 1.0, 2.0, 0.0) for prompt in on],
    )
    connection, catalog = runs_of(tmp_path / "s")
    (panel,) = explore(connection, [[catalog.run("a")]], prompts=4).panels
    assert [prompt.prompt_id for prompt in panel.prompts] == [*on.tolist(), by[0]]
    (side,) = panel.sides
    mean = scores[by].astype(np.float64).mean(axis=0).astype(np.float32)
    everyone = scores.astype(np.float64).mean(axis=0).astype(np.float32)
    assert ranking(mean).tolist() != ranking(everyone).tolist()
    assert side.task.edges.tolist() == ranking(mean).tolist()
    assert len(side.run.ranked_by) == 3
    assert [own.curve.num_rows for own in side.prompts] == [1, 1, 1, 0]


def test_only_prompts_that_both_runs_have_are_offered(tmp_path):
    write(tmp_path / "s", "a", texts=["same", "of a", None, "last"])
    write(tmp_path / "s", "b", texts=["same", "of b", None, "last", "more"])
    connection, catalog = runs_of(tmp_path / "s")
    (panel,) = explore(connection, [[catalog.run("a"), catalog.run("b")]]).panels
    assert [(prompt.prompt_id, prompt.text) for prompt in panel.prompts] == [(0, "same"), (3, "last")]


def test_labels(toy):
    connection, catalog = runs_of(toy.path)
    runs = pair(catalog)

    def labels(runs=runs, **given):
        (panel,) = explore(connection, [runs], edges=1, prompts=0, **given).panels
        return [side.label for side in panel.sides]

    assert labels() == ["toy-sparse", "toy"]
    assert labels(labels={"toy": "Dense"}) == ["toy-sparse", "Dense"]
    assert labels(labels={"toy": "Dense", "dense-ioi": "This one"}) == ["toy-sparse", "This one"]
    assert labels(labels={"toy": "Same", "toy-sparse": "Same"}) == ["sparse-ioi", "dense-ioi"]
    assert labels([runs[0], replace(runs[1], model="toy-sparse")]) == ["sparse-ioi", "dense-ioi"]


def test_panels_of_one_task_are_told_apart(toy):
    connection, catalog = runs_of(toy.path)
    sparse, dense = pair(catalog)
    panels = explore(connection, [[sparse], [dense]], edges=1, prompts=0).panels
    assert [panel.name for panel in panels] == ["IOI (sparse-ioi)", "IOI (dense-ioi)"]


def test_a_published_circuit_has_edges_and_nothing_else(ioi_store, published):
    connection, catalog = runs_of(ioi_store)
    (panel,) = explore(connection, [[catalog.run("gpt2-small-ioi")]]).panels
    (side,) = panel.sides
    assert panel.prompts == ()
    assert side.task.curve.num_rows == 0
    assert side.task.edges.tolist() == ranking(published.scores)[:10_000].tolist()
    assert side.label == "gpt2"


def test_what_cannot_be_explored_is_refused(tmp_path, toy):
    write(tmp_path / "s", "a", texts=["x"], levels=("head",))
    connection, catalog = runs_of(tmp_path / "s")
    with pytest.raises(InputError, match=r"'a' has no edge scores .*'wirescope extract --level edge'"):
        explore(connection, [[catalog.run("a")]])
    for panels in ([], [[]]):
        with pytest.raises(InputError, match="nothing to explore"):
            explore(connection, panels)
    connection, catalog = runs_of(toy.path)
    for bad in ({"edges": 0}, {"prompts": -1}):
        with pytest.raises(InputError, match="cannot be shown"):
            explore(connection, [pair(catalog)], **bad)
