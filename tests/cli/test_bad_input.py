"""Bad input gets one clear sentence, exit status 2, and nothing half-written."""

import json
import os
import shlex
import shutil

import pytest
from wirescope.data import EMBEDDED

IOI = "gpt2-small-ioi"


TOP = "top -s {store} -r gpt2-small-ioi"
EXPORT = "export -s {store} -r gpt2-small-ioi -k 5"
CALLS = {
    "top -s {store} -r gpt2-small-iio -k 5": (
        "has no run 'gpt2-small-iio' (runs: gpt2-small-ioi). Did you mean 'gpt2-small-ioi'?"
    ),
    f"{TOP} -k 0": "k is 0, but the wiring of 12 layers x 12 heads has 32,491 edges: choose from 1 to 32491.",
    f"{TOP} -k -4": "k is -4, but the wiring of 12 layers x 12 heads has 32,491 edges",
    f"{TOP} -k 32492": "k is 32492, but the wiring of 12 layers x 12 heads has 32,491 edges",
    "stats -s {store} --runs gpt2-small-ioi": "exactly one of k, mass, threshold and effect.",
    f"{TOP} -k 5 --mass 0.5": "exactly one of k, mass, threshold and effect, not by k and mass.",
    f"{TOP} --mass 0.5 --greedy": "Greedy growth needs k",
    f"{TOP} --mass 1.5": "must lie above 0 and at most at 1, not 1.5",
    f"{TOP} -k 5 --level heads": (
        "'heads' is not a level: choose from edge, head, attention. Did you mean 'head'?"
    ),
    f"{TOP} -k 5 --level head": "has no head scores; its levels are: edge.",
    f"{TOP} -k 5 --prompt 7": "has no prompt 7; its prompts are 0 to 0.",
    f"{TOP} --effect 0.9": "has no measured curve at the level edge in the task ranking",
    f"{EXPORT} --to graphm -o {{tmp}}/x": (
        "'graphm' is not a format: choose from mib, auto-circuit, acdc, node-link, graphml, gexf, cytoscape, dot, csv, "
        "parquet. Did you mean 'graphml'?"
    ),
    f"{EXPORT} --to csv -o {{tmp}}/no/x.csv": "Cannot write '{tmp}/no/x.csv': No such file or directory.",
    f"{EXPORT} --to csv -o {{tmp}}": "Cannot write '{tmp}': it is a folder; give the name of a file.",
    "sql -s {store} 'selct 1'": 'Parser Error: syntax error at or near "selct"',
    "sql -s {store} 'select x from runs'": 'Binder Error: Referenced column "x" not found',
    "sql -s {store} 'drop view runs'": "Only a single SELECT can be run on a store; this query is: DROP.",
    "sql -s {store} top_edges -w run=gpt2-small-ioi -w k=many": "k is 'many'; it must be a whole number, 1 or more.",
    "sql -s {store} top_edges -w run=gpt2-small-ioi -w k=1 -w k=2": "'k=2' does not say once which value is what",
    "sql -s {store} head_strenght": "no question or view 'head_strenght'. Did you mean 'head_strength'?",
    "sql -s {store} 'select 1' -w k=1": "Only a ready-made question can be given values",
    "runs -s {store} -f tabel": "'tabel' is not a format: choose from table, csv, json, parquet. Did you mean 'table'?",
    "runs -s {store} -o .": "it is a folder; give the name of a file.",
    f"{TOP} --threshold inf": "must be 0 or more, not inf",
    f"{TOP} --effect 0.9 --signed": "has no measured curve at the level edge in the signed ranking",
    f"{TOP} -k 5 --crossing first": "A crossing is of a measured curve: it goes with effect, not with k.",
    f"{TOP} --effect 0.9 --crossing last": "'last' is not a crossing: choose from sustained, first.",
    f"{TOP} --level head --greedy": "The run 'gpt2-small-ioi' has no head scores",
    "import {circuit} -s {tmp}/s --run ''": "'' cannot be the name of a run",
    "import {circuit} -s {tmp}/a*b": "reads as a pattern",
    "stats -s {store} --runs gpt2-small-ioi gpt2-small-ioi -k 9": "must have different names",
    "sql -s {store} top_edges -w run=gpt2-small-io -w k=5": "Did you mean 'gpt2-small-ioi'?",
    "sql -s {store} multiplier_intervals -w treshold=0.5": "does not take treshold. All that it takes",
    "runs -s {tmp}/nowhere": (
        "There is no store at '{tmp}/nowhere'; make one with 'wirescope extract' or 'wirescope import'."
    ),
    "runs -s {tmp}": "The store '{tmp}' is empty; add a run with",
    "import {tmp}/none.json -s {tmp}/s": "There is no file '{tmp}/none.json'.",
    "import {tmp}/none.pt -s {tmp}/s": "There is no file '{tmp}/none.pt'.",
    "import {circuit} -s {tmp}/s --layers 12": "its --layers and its --heads: give both",
    "import {circuit} -s {tmp}/s --parallel": "its --layers and its --heads: give both",
    "import {circuit} -s {tmp}/s --layers 12 --heads 12 --parallel": "are not parallel: leave out --parallel",
    "import {circuit} -s {tmp}/s --layers 12 --heads 8": "of a model of 12 layers x 12 heads, not of 12 layers x 8",
    "import {circuit} -s {tmp}/s --run a/b": "'a/b' cannot be the name of a run",
    "stats -s {store} --runs gpt2-small-ioi nobody -k 9": "has no run 'nobody'",
}


@pytest.mark.parametrize(("call", "message"), CALLS.items(), ids=CALLS)
def test_a_wrong_call_gets_one_sentence(cli, ioi_store, tmp_path, call, message):
    places = {"store": ioi_store, "tmp": tmp_path, "circuit": EMBEDDED}
    result = cli(*shlex.split(call.format(**places)))
    assert result.status == 2
    assert result.out == ""
    assert message.format(**places) in result.err
    assert result.err.startswith("wirescope: ")
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["top"], ["tops"], ["top", "--k", "many"], ["sql", "--store", "x"]])
def test_a_call_that_does_not_parse_has_status_2(cli, arguments):
    result = cli(*arguments)
    assert result.status == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not JSON"),
        (
            "[1, 2, 3]",
            "is not a circuit: it needs the objects 'cfg' and 'edges' of MIB and EAP-IG, scores by edge name",
        ),
        ('{"A0.0->MLP 0": 0.5, "A0.0->MPL 1": 1}', "'MPL 1' is not a component of a transformer"),
        ('{"A0.0->MLP 0": 0.5}', "give --layers and --heads (its names need 1 and 1 at least)"),
        ("digraph { a -> b }", "'<a>' is not a component of a transformer"),
        ('{"cfg": {"n_layers": 1, "n_heads": 1}, "nodes": {}, "edges": {}}', "lacks 8 of the 8 edges"),
        (
            '{"cfg": {"n_layers": 1, "n_heads": 1}, "edges": {"input->m0": {"score": 1}}}',
            "lacks 7 of the 8 edges",
        ),
    ],
)
def test_a_file_that_is_no_circuit_leaves_no_store(cli, tmp_path, content, message):
    file = tmp_path / "bad.json"
    file.write_text(content)
    result = cli("import", file, "--store", tmp_path / "s")
    assert result.status == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "s").exists()


@pytest.fixture
def powerless():
    """Root may write anywhere: give that up for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_store_that_cannot_be_written_is_refused_and_can_be_read(cli, tmp_path, ioi_store, request):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)
    store = tmp_path / "s"
    shutil.copytree(ioi_store, store)
    public = tmp_path / "circuit.json.gz"
    shutil.copy(EMBEDDED, public)
    for path in (store, *store.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    cli("top", "-s", store, "-r", IOI, "-k", 200)  # whatever is imported late is imported while we may
    request.getfixturevalue("powerless")
    refused = cli("import", public, "--store", store, "--run", "other")
    assert refused.status == 2
    assert "Cannot write '" in refused.err
    assert "Permission denied." in refused.err
    read = cli("top", "-s", store, "-r", IOI, "-k", 200, "-f", "json")
    assert read.status == 0
    assert json.loads(read.out)["kept"] == 179
