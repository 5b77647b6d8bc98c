"""One ranking, one circuit: with a split, whoever asks for k units gets those that the curves were measured with."""

from dataclasses import replace

import numpy as np
import pytest
from wirescope.data import Curves, read_catalog
from wirescope.errors import InputError
from wirescope.graphs import Wiring, ranking, top_k
from wirescope.queries import Choice, ask, choose, explore, open_store, ranked_by, select, units

K = 9


@pytest.fixture
def split(toy_copy):
    """The toy store, its dense run ranked by two of its four prompts."""
    run = read_catalog(toy_copy.path).run("dense-ioi")
    curves = Curves(ablation="corrupt", split=0.5, sizes={})
    (toy_copy.path / "runs/run=dense-ioi/run.json").write_text(replace(run, curves=(curves,)).to_json())
    return toy_copy


def means(scores: np.ndarray, prompts) -> np.ndarray:
    return scores[prompts].astype(np.float64).mean(axis=0).astype(np.float32)


def test_all_take_the_edges_that_the_ranking_prompts_put_first(split):
    catalog = read_catalog(split.path)
    connection, run = open_store(catalog), catalog.run("dense-ioi")
    mean = means(split.scores["dense-ioi"], run.ranked_by)
    wanted = ranking(mean)[:K].tolist()
    assert wanted != ranking(means(split.scores["dense-ioi"], range(4)))[:K].tolist()

    def first(query: str) -> list[int]:
        return select(connection, query)["edge_id"].to_pylist()

    assert units(connection, run, "edge", Choice(k=K)).rows["edge_id"].to_pylist() == wanted
    assert choose(connection, run, Choice(k=K)).circuit == top_k(run.wiring, mean, K)
    assert ask(connection, "top_edges", run=run.run, k=K)["edge_id"].to_pylist() == wanted
    by_means = (
        f"select edge_id from edge_means where run = 'dense-ioi' order by abs(score) desc, edge_id limit {K}"
    )
    assert first(by_means) == wanted
    page = explore(connection, [[run]], edges=K)
    assert page.panels[0].sides[0].tasks[0].edges.tolist() == wanted
    # and over all prompts, for who wants that
    every = """
        select edge_id from edge_scores where run = 'dense-ioi' group by edge_id
        order by abs(cast(avg(score) as real)) desc, edge_id"""
    assert first(every) == ranking(means(split.scores["dense-ioi"], range(4))).tolist()
    chosen = """
        select edge_id from edge_scores join ranking_prompts using (run, prompt_id)
        where run = 'dense-ioi' group by edge_id order by abs(cast(avg(score) as real)) desc, edge_id"""
    assert first(chosen)[:K] == wanted


def test_heads_too(split):
    catalog = read_catalog(split.path)
    connection, run = open_store(catalog), catalog.run("dense-ioi")
    heads = np.flatnonzero(Wiring(run.shape).is_kind("head"))
    mean = means(split.head_scores["dense-ioi"], run.ranked_by)[heads]
    wanted = heads[ranking(mean)].tolist()
    assert wanted != heads[ranking(means(split.head_scores["dense-ioi"], range(4))[heads])].tolist()
    assert units(connection, run, "head", Choice(k=4)).rows["node_id"].to_pylist() == wanted
    assert ask(connection, "top_heads", run=run.run, k=4)["node_id"].to_pylist() == wanted
    query = "select node_id from head_means where run = 'dense-ioi' order by abs(score) desc, node_id"
    assert select(connection, query)["node_id"].to_pylist() == wanted


def test_a_run_without_a_split_ranks_by_all_and_a_prompt_by_itself(split):
    catalog = read_catalog(split.path)
    connection = open_store(catalog)
    count = "select run, count(*) as n from ranking_prompts group by run order by run"
    assert select(connection, count)["n"].to_pylist() == [2, 4]
    assert set(select(connection, "select run, prompts from edge_means")["prompts"].to_pylist()) == {2, 4}
    held_out = catalog.run("dense-ioi").held_out
    assert not set(held_out) & set(catalog.run("dense-ioi").ranked_by)
    for prompt in held_out.tolist():
        found = ask(connection, "top_edges", run="dense-ioi", k=K, prompt=prompt)
        assert found["edge_id"].to_pylist() == ranking(split.scores["dense-ioi"][prompt])[:K].tolist()


def test_the_prompts_that_rank_are_named(split, cli, tmp_path):
    run = read_catalog(split.path).run("dense-ioi")
    said = "ranked by |mean score| over 2 of 4 prompts (--split 0.5)"
    assert ranked_by(run, Choice(k=1)) == said
    assert ranked_by(run, Choice(k=1, signed=True)) == (
        "ranked by how much they help (mean score) over 2 of 4 prompts (--split 0.5)"
    )
    assert ranked_by(run, Choice(k=1, prompt=3)) == "ranked by |score| for prompt 3"
    assert ranked_by(replace(run, curves=()), Choice(k=1)) == "ranked by |mean score| over 4 prompts"
    store = ["--store", split.path]
    out = tmp_path / "circuit.csv"
    for command in (
        ["top", *store, "--run", "dense-ioi", "-k", 20],
        ["stats", *store, "--runs", "dense-ioi", "-k", 20],
        ["stats", *store, "--runs", "dense-ioi", "-k", 2, "--level", "head"],
        ["export", *store, "--run", "dense-ioi", "-k", 20, "--to", "csv", "--out", out],
    ):
        assert said in cli(*command).err
    cli("diagram", *store, "--runs", "dense-ioi", "-k", 20, "--out", tmp_path / "d.svg")
    assert said in (tmp_path / "d.caption.txt").read_text().replace("Ranked", "ranked")
    cli("curve", *store, "--runs", "dense-ioi", "--ranking", "task", "--out", tmp_path / "c.svg")
    assert "over 2 of 4 prompts (--split 0.5), others than" in (tmp_path / "c.caption.txt").read_text()


def test_signed_takes_what_helps_by_the_direction_of_the_metric(toy_copy):
    """Of a divergence, what helps has a positive score."""
    file = toy_copy.path / "runs/run=dense-ioi/run.json"
    heads = np.flatnonzero(Wiring(read_catalog(toy_copy.path).run("dense-ioi").shape).is_kind("head"))
    for metric, sign in (("logit_diff", -1), ("prob_diff", -1), ("kl", 1), (None, -1)):
        file.write_text(replace(read_catalog(toy_copy.path).run("dense-ioi"), metric=metric).to_json())
        catalog = read_catalog(toy_copy.path)
        connection, run = open_store(catalog), catalog.run("dense-ioi")
        assert run.helpful_sign == sign
        assert (
            select(connection, "select helpful_sign from runs where run = 'dense-ioi'")[0][0].as_py() == sign
        )
        for level, scores, ids in (
            ("edge", toy_copy.scores, slice(None)),
            ("head", toy_copy.head_scores, heads),
        ):
            mean = means(scores["dense-ioi"], range(4))[ids]
            found = units(connection, run, level, Choice(k=4, signed=True)).rows
            order = np.argsort(-sign * mean, kind="stable")[:4]
            np.testing.assert_allclose(found["score"].to_numpy(), mean[order])
            assert found["position"].to_pylist() == [1, 2, 3, 4]
        share = choose(connection, run, Choice(mass=0.5, signed=True)).circuit
        assert (sign * share.scores > 0).all()
        above = choose(connection, run, Choice(threshold=0.5, signed=True)).circuit
        assert (sign * above.scores >= 0.5).all()
    with pytest.raises(InputError, match="At the level attention, a circuit is chosen by"):
        units(connection, run, "attention", Choice(k=4, signed=True, prompt=0))
