"""What is exported, by the ending of the file."""

import json

import networkx as nx
import pytest

CALL = ["export", "-r", "gpt2-small-ioi", "-k", "200"]


@pytest.mark.parametrize(
    ("ending", "form"),
    [
        ("graphml", "graphml"),
        ("gexf", "gexf"),
        ("cyjs", "cytoscape"),
        ("dot", "dot"),
        ("gv", "dot"),
        ("csv", "csv"),
        ("parquet", "parquet"),
        ("GraphML", "graphml"),
    ],
)
def test_a_file_is_exported_by_its_ending(cli, ioi_store, tmp_path, ending, form):
    by_ending, by_name = tmp_path / f"a.{ending}", tmp_path / "b"
    assert cli(*CALL, "-s", ioi_store, "-o", by_ending).status == 0
    assert cli(*CALL, "-s", ioi_store, "-o", by_name, "--to", form).status == 0
    assert by_ending.read_bytes() == by_name.read_bytes()
    if form == "graphml":
        assert nx.read_graphml(by_ending).number_of_edges() == 179


@pytest.mark.parametrize("name", ["x.json", "x.txt", "x", "x.json.gz", "x.pdf"])
def test_an_ending_that_does_not_say_what_is_refused(cli, ioi_store, tmp_path, name):
    result = cli(*CALL, "-s", ioi_store, "-o", tmp_path / name)
    assert (result.status, result.out) == (2, "")
    assert "--to" in result.err
    assert ("say which with --to, mib, auto-circuit, node-link." in result.err) is (name == "x.json")
    assert (".graphml, .gexf" in result.err) is (name != "x.json")
    assert len(result.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_named_wins_over_the_ending(cli, ioi_store, tmp_path):
    out = tmp_path / "x.graphml"
    assert cli(*CALL, "-s", ioi_store, "-o", out, "--to", "node-link").status == 0
    assert json.loads(out.read_text())["directed"] is True


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (
            ["top_heads", "-w", "run=gpt2-small-ioi", "-w", "k=5"],
            "The run 'gpt2-small-ioi' has no head scores: its levels are edge, as imported.",
        ),
        (
            ["reach", "-w", "run=gpt2-small-ioi"],
            "The run 'gpt2-small-ioi' has no measured curves: it was imported.",
        ),
        (["areas"], "No run of the store has measured curves."),
        (["multiplier_intervals"], "No two runs of the store that belong together have measured curves."),
    ],
)
def test_a_question_without_an_answer_says_why(cli, ioi_store, toy, question, why):
    result = cli("sql", "-s", ioi_store, *question, "-f", "json")
    assert result.status == 0
    assert json.loads(result.out) == []
    assert why in result.err
    answered = [word.replace("gpt2-small-ioi", "dense-ioi").replace("k=5", "k=2") for word in question]
    assert cli("sql", "-s", toy.path, *answered).err == ""
