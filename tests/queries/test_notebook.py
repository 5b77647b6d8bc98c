"""A store in a notebook: relations, answers in other libraries' tables, and objects that show themselves."""

import pandas as pd
import polars as pl
import pytest
import wirescope.queries as q
from IPython.core.formatters import DisplayFormatter
from wirescope.data import TABLES
from wirescope.errors import InputError
from wirescope.queries import VIEWS, Choice, ask, choose

PAIR = ("sparse-ioi", "dense-ioi")


@pytest.fixture
def store(toy) -> q.Store:
    return q.open(toy.path)


def shown(thing: object) -> dict[str, str]:
    """What IPython shows of it, by kind."""
    kinds, _ = DisplayFormatter().format(thing)
    return kinds


@pytest.mark.parametrize("view", ["runs", *TABLES, *VIEWS])
def test_every_view_is_an_attribute_and_a_relation(store, view):
    expected = store.connection.execute(f"select count(*) from {view}").fetchall()
    assert getattr(store, view).aggregate("count(*)").fetchall() == expected
    assert view in dir(store)


def test_what_is_no_view_is_no_attribute(store):
    with pytest.raises(AttributeError, match="has no view 'edge_score'; it has runs, nodes"):
        _ = store.edge_score


def test_answers_are_pandas_polars_or_arrow_on_request(store):
    answer = store.ask("top_edges", run="dense-ioi", k=3)
    expected = ask(store.connection, "top_edges", run="dense-ioi", k=3)
    assert answer.to_arrow_table() == expected
    pd.testing.assert_frame_equal(answer.df(), expected.to_pandas())
    assert answer.pl().equals(pl.from_arrow(expected))


def test_an_answer_does_not_change_with_what_is_asked_after_it(store):
    """Relations are computed late; the threshold of a question is not that of the next one."""
    early = store.ask("multiplier_intervals", threshold=0.5)
    store.ask("multiplier_intervals", threshold=0.9).fetchall()
    assert set(early.df()["threshold"]) == {0.5}


def test_only_a_select_is_run(store, toy):
    assert store.sql("select count(*) from edge_scores where run = 'dense-ioi'").fetchall() == [(4 * 46,)]
    for query in (
        f"copy nodes to '{toy.path}/x.parquet'",
        "create table a as select 1",
        "select 1; select 2",
    ):
        with pytest.raises(InputError, match="Only a single SELECT"):
            store.sql(query)


def test_circuits_and_tops_are_those_of_the_commands(store):
    chosen = choose(store.connection, store.catalog.run("dense-ioi"), Choice(k=20))
    assert store.circuit("dense-ioi", k=20) == chosen.circuit
    assert store.top("dense-ioi", k=20).columns == ["position", "edge_id", "name", "score", "kept"]
    assert len(store.top("dense-ioi", k=20).filter("kept")) == chosen.circuit.kept
    assert len(store.top("dense-ioi")) == len(store.top("dense-ioi", k=20)) == 20
    assert len(store.top("dense-ioi", level="head", k=2)) == 2
    assert store.stats(*PAIR, k=20).columns == ["measure", *PAIR]
    for runs in ((), ("dense-ioi", "dense-ioi")):
        with pytest.raises(InputError, match="must have different names"):
            store.stats(*runs, k=20)


def test_a_circuit_draws_itself(store):
    svg = shown(store.circuit("dense-ioi", k=20))["image/svg+xml"]
    assert svg.count('class="edge"') >= store.circuit("dense-ioi", k=20).kept


def test_an_empty_circuit_is_said_in_words(store):
    empty = store.circuit("dense-ioi", k=1)
    assert empty.kept == 0
    assert shown(empty) == {"text/plain": "Circuit(0 of 1 edges kept, 0 nodes)"}


def test_without_graphviz_a_circuit_is_said_in_words(store, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    monkeypatch.setenv("PATH", "")
    assert list(shown(store.circuit("dense-ioi", k=20))) == ["text/plain"]


def test_figures_show_themselves(store):
    assert "<svg" in shown(store.diagram(*PAIR, k=20))["image/svg+xml"]
    assert "<svg" in shown(store.diagram("dense-ioi", level="head", k=2))["image/svg+xml"]
    assert "<svg" in shown(store.curve(*PAIR, level="head"))["image/svg+xml"]
    page = shown(store.explore(*PAIR))["text/html"]
    assert page.startswith("<iframe srcdoc=")
    assert "<script" not in page  # it is text of an attribute here


def test_a_store_shows_its_runs(store, toy):
    assert repr(store) == f"Store('{toy.path}': 2 runs)"
    text = shown(store)["text/plain"]
    assert "dense-ioi" in text
    assert "sparse-ioi" in text


def test_what_cannot_be_read_is_left_out_with_a_warning(toy_copy):
    (toy_copy.path / "nodes/run=dense-ioi/part-00000.parquet").unlink()
    (toy_copy.path / "runs/run=begun").mkdir()
    with pytest.warns(UserWarning, match=r"Left out: The run 'dense-ioi' .* is missing"):
        store = q.open(toy_copy.path)
    assert repr(store) == f"Store('{toy_copy.path}': 1 runs; 1 not finished; 1 broken)"


def test_relations_go_on_from_each_other(ioi_store):
    """A filter reaches the scan of the files: nothing was computed before it."""
    some = q.open(ioi_store).edge_scores.filter("edge_id < 5").project("edge_id, run")
    assert "edge_id<5" in some.explain().replace(" ", "")
    assert some.fetchall() == [(i, "gpt2-small-ioi") for i in range(5)]
