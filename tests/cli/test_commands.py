"""The commands as a user calls them, in this process; what is printed where, and what comes of it."""

import contextlib
import csv
import gzip
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus import CONTEXT, make_tokenizer
from wirescope.cli import demo
from wirescope.cli.app import EXPORTS
from wirescope.data import (
    EMBEDDED,
    LEVELS,
    MAIN_TASKS,
    TASKS,
    read_catalog,
    read_circuit,
    read_pairs,
    write_run,
)
from wirescope.extract import read_pt
from wirescope.graphs import Wiring, from_networkx, greedy, ranking, top_k
from wirescope.queries import QUESTIONS, open_store, parameters, select

IOI = "gpt2-small-ioi"


def rows(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def test_import_then_ask(cli, tmp_path):
    store = tmp_path / "s"
    result = cli("import", EMBEDDED, "--store", store, "--model", "gpt2", "--task", "ioi")
    assert (result.status, result.out) == (0, "")
    assert "32,491 edges of a model of 12 layers x 12 heads; the 756 that the file marks" in result.err
    again = cli("import", EMBEDDED, "--store", store, "--model", "gpt2", "--task", "ioi")
    assert again.status == 0
    assert "already, from the same call; nothing was written" in again.err
    other = cli("import", EMBEDDED, "--store", store, "--model", "gpt3")
    assert other.status == 2
    assert "not the same: model, task" in other.err

    changed = tmp_path / EMBEDDED.name
    changed.write_bytes(
        gzip.compress(gzip.decompress(EMBEDDED.read_bytes()).replace(b"-0.28153", b"-0.38153"))
    )
    other = cli("import", changed, "--store", store, "--model", "gpt2", "--task", "ioi")
    assert "not the same: source_hash" in other.err

    (run,) = rows(cli("runs", "--store", store, "--format", "csv").out)
    assert (run["run"], run["model"], run["task"], run["edges"]) == (IOI, "gpt2", "ioi", "32491")
    query = "select name, score from edge_means order by abs(score) desc limit 2"
    answer = json.loads(cli("sql", "--store", store, query, "--format", "json").out)
    assert answer == [
        {"name": "a9.h9->logits", "score": pytest.approx(-0.281538, abs=1e-6)},
        {"name": "input->m0", "score": pytest.approx(-0.208455, abs=1e-6)},
    ]


def test_top_says_requested_and_kept(cli, ioi_store):
    result = cli("top", "--store", ioi_store, "--run", IOI, "--k", 64, "--format", "json")
    answer = json.loads(result.out)
    assert (answer["requested"], answer["kept"], len(answer["units"])) == (64, 45, 64)
    assert sum(unit["kept"] for unit in answer["units"]) == 45
    assert [unit["position"] for unit in answer["units"]] == list(range(1, 65))
    assert answer["units"][0]["name"] == "a9.h9->logits"
    assert answer["units"][0]["position"] == 1
    assert "64 units requested at the level edge, 45 kept; ranked by |published score|." in result.err


@pytest.mark.parametrize(
    ("options", "requested", "kept"),
    [
        (["--k", 200, "--greedy"], 200, 190),
        (["--mass", 0.9], 1690, 1643),
        (["--threshold", 0.01], 79, 54),
        (["--k", 162, "--signed"], 162, 110),
        (["--k", 162, "--prompt", 0], 162, 145),
    ],
)
def test_the_ways_to_choose_a_circuit(cli, ioi_store, options, requested, kept):
    answer = json.loads(cli("top", "-s", ioi_store, "-r", IOI, "-f", "json", *options).out)
    assert (answer["requested"], answer["kept"]) == (requested, kept)


def test_an_empty_circuit_comes_with_advice(cli, ioi_store):
    result = cli("top", "-s", ioi_store, "-r", IOI, "-k", 3, "-f", "csv")
    assert result.status == 0
    assert [row["name"] for row in rows(result.out)] == ["a9.h9->logits", "input->m0", "a10.h7->logits"]
    assert {row["kept"] for row in rows(result.out)} == {"false"}
    assert "No path of these edges runs from input to logits: ask for more, or --greedy." in result.err


def test_the_units_of_a_grown_circuit_are_listed_with_their_places_in_the_ranking(cli, ioi_store, published):
    answer = json.loads(cli("top", "-s", ioi_store, "-r", IOI, "-k", 200, "--greedy", "-f", "json").out)
    units = answer["units"]
    assert (len(units), sum(unit["kept"] for unit in units)) == (200, 190)
    order = ranking(published.scores)
    assert [order[unit["position"] - 1] for unit in units] == [unit["edge_id"] for unit in units]
    circuit = greedy(published.wiring, published.scores, 200)
    assert {unit["edge_id"] for unit in units if unit["kept"]} == set(circuit.edges.tolist())


def test_top_lists_twenty_units_or_all_unless_told(cli, toy):
    top = ("top", "-s", toy.path, "-r", "dense-ioi", "-f", "json")
    for options, count in (
        ([], 20),
        (["--signed"], 20),
        (["--level", "head"], 4),
        (["--level", "attention", "--prompt", 1], 20),
        (["--prompt", 1], 20),
        (["--greedy"], 20),
    ):
        found = json.loads(cli(*top, *options).out)
        assert (found["requested"], len(found["units"])) == (count, count), options
        assert found["kept"] == sum(unit["kept"] for unit in found["units"])


def test_top_at_the_other_levels(cli, toy):
    heads = json.loads(
        cli("top", "-s", toy.path, "-r", "dense-ioi", "-k", 3, "--level", "head", "-f", "json").out
    )
    assert (heads["requested"], heads["kept"]) == (3, 3)
    assert all(unit["name"].startswith("a") for unit in heads["units"])
    arguments = ("top", "-s", toy.path, "-r", "dense-ioi", "-k", 5, "--level", "attention", "-f", "csv")
    attention = rows(cli(*arguments, "--prompt", 2).out)
    assert attention[0]["name"] == "a1.h0[1<-0]"
    assert "name it with --prompt" in cli(*arguments).err


def test_effect_takes_the_smallest_measured_circuit(cli, toy):
    found = json.loads(cli("top", "-s", toy.path, "-r", "dense-ioi", "--effect", 0.7, "-f", "json").out)
    assert found["requested"] == 16  # explains 0.8; 4 edges explain 0.2
    never = cli("top", "-s", toy.path, "-r", "dense-ioi", "--effect", 1.5)
    assert never.status == 2
    assert "never explains 1.5" in never.err


def add_run(store, curve: dict[int, float], **kind: str) -> None:
    """A run `ragged` with the scores of the toy's sparse one and this measured curve."""
    record = replace(read_catalog(store).run("dense-ioi"), run="ragged", parts={}, finished=None)
    connection = open_store(store)
    effects = [
        {
            "level": "edge",
            "ranking": "task",
            "ablation": "corrupt",
            "prompt_id": p,
            "requested": k,
            "kept": k,
            "fold": None,
        }
        | {"metric": explained, "m_all": 1.0, "m_none": 0.0}
        | kind
        for k, explained in curve.items()
        for p in range(4)
    ]
    with write_run(store, record) as writer:
        writer.write_wiring(Wiring(record.shape))
        for table in ("prompts", "edge_scores", "head_scores"):
            writer.write(
                table, select(connection, f"select * exclude (run) from {table} where run = 'sparse-ioi'")
            )
        writer.write("effects", pa.Table.from_pylist(effects))


@pytest.mark.parametrize(
    "kind", [{}, {"ranking": "signed"}, {"level": "head"}, {"level": "head", "ranking": "signed"}]
)
def test_effect_takes_the_size_from_which_on_the_curve_stays_there(cli, toy_copy, tmp_path, kind):
    sizes = (1, 2, 3, 4) if kind.get("level") else (1, 4, 30, 46)
    add_run(toy_copy.path, dict(zip(sizes, (0.95, 0.5, 0.92, 1.0), strict=True)), **kind)
    which = ["--effect", 0.9, *(["--signed"] if "ranking" in kind else [])]
    store = ["-s", toy_copy.path]
    level = ["--level", kind.get("level", "edge")]
    for crossing, size in (("sustained", sizes[2]), ("first", sizes[0])):
        found = cli("top", *store, "-r", "ragged", *which, *level, "--crossing", crossing, "-f", "json")
        assert json.loads(found.out)["requested"] == size
        said = f"the curve falls below 0.9 again after {sizes[0]}, and stays there from {sizes[2]} on."
        assert said in found.err
        found = cli("stats", *store, "--runs", "ragged", *which, *level, "--crossing", crossing, "-f", "csv")
        assert int(float(rows(found.out)[0]["ragged"])) == size
        assert said in found.err
    if not kind:
        written = cli("export", *store, "-r", "ragged", *which, "--to", "csv", "-o", tmp_path / "x")
        assert "again after 1, and stays" in written.err
        assert cli("diagram", *store, "--runs", "ragged", *which, "-o", tmp_path / "x.svg").status == 0
        assert "again after 1, and stays" in (tmp_path / "x.caption.txt").read_text()


def test_effect_refuses_a_curve_that_ends_below(cli, toy_copy):
    add_run(toy_copy.path, {1: 0.1, 4: 0.95, 46: 0.8})
    top = ("top", "-s", toy_copy.path, "-r", "ragged", "--effect", 0.9)
    refused = cli(*top)
    assert refused.status == 2
    said = "0.9 of the effect at 4, but falls below that again and ends at 0.8: --crossing first takes the 4"
    assert said in refused.err
    assert json.loads(cli(*top, "--crossing", "first", "-f", "json").out)["requested"] == 4


def test_stats_side_by_side(cli, toy):
    result = cli(
        "stats", "-s", toy.path, "--runs", "sparse-ioi", "dense-ioi", "--k", 30, "--null", 5, "-f", "csv"
    )
    assert result.status == 0
    table = {row["measure"]: row for row in rows(result.out)}
    assert table["requested"] == {"measure": "requested", "sparse-ioi": "30", "dense-ioi": "30"}
    assert float(table["paths"]["sparse-ioi"]) > 0
    assert table["jaccard with sparse-ioi"]["sparse-ioi"] == ""
    assert 0 <= float(table["jaccard with sparse-ioi"]["dense-ioi"]) <= 1
    assert 0 < float(table["jaccard with sparse-ioi, p"]["dense-ioi"]) <= 1


def test_stats_of_different_wirings_are_not_compared(cli, toy, ioi_store, tmp_path):
    store = tmp_path / "s"
    shutil.copytree(toy.path, store)
    cli("import", EMBEDDED, "-s", store)
    result = cli("stats", "-s", store, "--runs", "dense-ioi", IOI, "-k", 30, "-f", "csv")
    assert result.status == 0
    assert f"'{IOI}' has another wiring than 'dense-ioi': measured, not compared." in result.err
    assert not any("with dense-ioi" in row["measure"] for row in rows(result.out))


def test_runs_may_be_given_one_by_one_or_together(cli, toy):
    together = cli(
        "stats", "--runs", "sparse-ioi", "dense-ioi", "-s", toy.path, "-k", 30, "--null", 0, "-f", "csv"
    )
    apart = cli(
        "stats",
        "-s",
        toy.path,
        "-k",
        30,
        "--null",
        0,
        "--runs",
        "sparse-ioi",
        "-f",
        "csv",
        "--runs",
        "dense-ioi",
    )
    assert together.status == apart.status == 0
    assert together.out == apart.out


@pytest.mark.parametrize("to", EXPORTS)
def test_export_writes_what_its_reader_reads(cli, ioi_store, tmp_path, published, to):
    out = tmp_path / f"circuit.{to}"
    result = cli("export", "--store", ioi_store, "--run", IOI, "--k", 200, "--to", to, "--out", out)
    assert (result.status, result.out) == (0, "")
    assert "200 edges requested, 179 kept" in result.err
    circuit = top_k(published.wiring, published.scores, 200)
    names = set(circuit.table()["name"].to_pylist())
    if to == "graphml":
        assert from_networkx(nx.read_graphml(out, force_multigraph=True)) == circuit
    elif to == "gexf":
        assert {e["name"] for _, _, e in nx.read_gexf(out).edges(data=True)} == names
    elif to == "acdc":
        again = read_pt(out)
        assert np.array_equal(np.flatnonzero(again.scores), circuit.edges)
    elif to == "auto-circuit":
        again = read_circuit(out, shape=circuit.wiring.shape)
        assert np.array_equal(again.scores[circuit.edges], -circuit.scores)  # of a loss
        assert (again.listed, int((again.scores != 0).sum())) == (179, 179)
    elif to == "node-link":
        assert from_networkx(nx.node_link_graph(json.loads(out.read_text()), edges="edges")) == circuit
    elif to == "cytoscape":
        assert {e["data"]["name"] for e in json.loads(out.read_text())["elements"]["edges"]} == names
    elif to == "dot":
        assert out.read_text().count(" -> ") == 179
    elif to == "csv":
        assert {row["name"] for row in rows(out.read_text())} == names
    elif to == "parquet":
        assert set(pq.read_table(out)["name"].to_pylist()) == names
    else:
        again = read_circuit(out)
        assert np.array_equal(again.scores, -published.scores)  # of a loss
        assert set(again.wiring.edge_names(np.flatnonzero(again.in_graph)).to_pylist()) == names


def test_a_circuit_exported_as_mib_imports_back_identically(cli, ioi_store, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    cli("export", "-s", ioi_store, "-r", IOI, "-k", 800, "--to", "mib", "-o", first)
    cli("import", first, "-s", tmp_path / "s", "--run", "again")
    cli("export", "-s", tmp_path / "s", "-r", "again", "-k", 800, "--to", "mib", "-o", second)
    assert first.read_bytes() == second.read_bytes()
    parts = [pq.read_table(store / "edge_scores") for store in (ioi_store, tmp_path / "s")]
    assert parts[0].drop(["run"]).equals(parts[1].drop(["run"]))


def test_a_part_of_a_circuit_is_imported_with_the_shape_of_its_model(cli, tmp_path):
    file = tmp_path / "ioi.json"
    file.write_text('{"Resid Start->A9.9.V": 0.5, "A9.9->A11.10.Q": -0.25, "A11.10->Resid End": 1}')
    call = ("import", file, "-s", tmp_path / "s", "--layers", 12, "--heads", 12)
    assert "3 edges of a model of 12 layers x 12 heads; the other 32,488 have score 0." in cli(*call).err
    top = cli("top", "-s", tmp_path / "s", "-r", "ioi", "--mass", 1, "-f", "csv")
    assert [(row["name"], float(row["score"])) for row in rows(top.out)] == [
        ("a11.h10->logits", -1),
        ("input->a9.h9<v>", -0.5),
        ("a9.h9->a11.h10<q>", 0.25),
    ]
    out = tmp_path / "mib.json"
    said = cli("export", "-s", tmp_path / "s", "-r", "ioi", "-k", 3, "--to", "mib", "-o", out).err
    assert "d_model is 0 in the file" in said
    assert int(read_circuit(out).in_graph.sum()) == 3


def test_what_a_file_is_shows_in_its_content_not_in_its_name(cli, ioi_store, tmp_path):
    """A drawing and JSON are told apart, whatever they are called."""
    linked, plain = tmp_path / "a.gv", tmp_path / "b.txt"
    cli("export", "-s", ioi_store, "-r", IOI, "-k", 200, "--to", "node-link", "-o", linked)
    cli("export", "-s", ioi_store, "-r", IOI, "-k", 200, "--to", "mib", "-o", plain)
    assert (
        "179 edges of a model of 12 layers x 12 heads; the other"
        in cli("import", linked, "-s", tmp_path / "s").err
    )
    assert "32,491 edges of a model" in cli("import", plain, "-s", tmp_path / "s").err
    assert [run["run"] for run in rows(cli("runs", "-s", tmp_path / "s", "-f", "csv").out)] == ["a", "b.txt"]


def test_a_question_can_be_asked_by_name(cli, ioi_store, toy):
    heads = rows(cli("sql", "-s", ioi_store, "head_strength", "--with", f"run={IOI}", "-f", "csv").out)
    assert heads[0]["name"] == "a9.h9"
    edges = rows(cli("sql", "-s", ioi_store, "top_edges", "-w", f"run={IOI}", "-w", "k=3", "-f", "csv").out)
    assert [row["name"] for row in edges] == ["a9.h9->logits", "input->m0", "a10.h7->logits"]
    intervals = rows(
        cli("sql", "-s", toy.path, "multiplier_intervals", "-w", "threshold=0.9", "-f", "csv").out
    )
    # dense crosses 0.9 halfway, on a log scale, from 16 to 46 edges or from 3 to 4 heads; sparse at 4 edges or 2 heads
    edges, heads = (16 * 46) ** 0.5 / 4, (3 * 4) ** 0.5 / 2
    assert [float(row["multiplier"]) for row in intervals] == pytest.approx(
        [edges, edges, heads, heads], rel=1e-5
    )
    assert all(float(row["low"]) < float(row["high"]) for row in intervals)
    assert "is missing k and run" in cli("sql", "-s", ioi_store, "top_edges").err
    assert "write name=value" in cli("sql", "-s", ioi_store, "top_edges", "-w", "k").err


def test_the_version_is_that_of_the_package(cli):
    assert cli("--version").out == f"wirescope {version('wirescope')}\n"


def test_formats_of_sql(cli, toy, tmp_path):
    query = "select run, prompts, null as nothing, 'a,\"b' as odd, cast('nan' as float) as n from runs order by run"
    table = cli("sql", "-s", toy.path, query).out
    assert table.splitlines()[0].split() == ["run", "prompts", "nothing", "odd", "n"]
    assert len(table.splitlines()) == 4
    assert rows(cli("sql", "-s", toy.path, query, "-f", "csv").out)[0] == {
        "run": "dense-ioi",
        "prompts": "4",
        "nothing": "",
        "odd": 'a,"b',
        "n": "",
    }
    assert json.loads(cli("sql", "-s", toy.path, query, "-f", "json").out)[1] == {
        "run": "sparse-ioi",
        "prompts": 4,
        "nothing": None,
        "odd": 'a,"b',
        "n": None,
    }
    out = tmp_path / "answer.parquet"
    assert cli("sql", "-s", toy.path, query, "-o", out).out == ""
    assert pq.read_table(out)["run"].to_pylist() == ["dense-ioi", "sparse-ioi"]
    assert cli(
        "sql", "-s", toy.path, "select prompt_id, clean_ids from prompts limit 1", "-f", "csv"
    ).out == ('prompt_id,clean_ids\n0,"[1, 2, 3]"\n')


def test_a_long_table_is_cut_on_a_screen_only(cli, ioi_store):
    query = "select edge_id from edges order by edge_id"
    assert len(cli("sql", "-s", ioi_store, query).out.splitlines()) == 32_493
    result = cli("sql", "-s", ioi_store, query, tty=True)
    assert len(result.out.splitlines()) == 1002
    assert "The first 1,000 of 32,491 rows" in result.err
    refused = cli("sql", "-s", ioi_store, query, "-f", "parquet", tty=True)
    assert (refused.status, refused.out) == (2, "")


def test_out_follows_a_link_and_writes_into_a_pipe(cli, toy, tmp_path):
    real, link, pipe = tmp_path / "real.csv", tmp_path / "link.csv", tmp_path / "pipe.csv"
    link.symlink_to(real)
    assert cli("runs", "-s", toy.path, "-o", link).status == 0
    assert link.is_symlink()
    assert rows(real.read_text())[0]["run"] == "dense-ioi"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert cli("runs", "-s", toy.path, "-o", pipe).status == 0
        assert reader.communicate()[0] == real.read_text()
    assert pipe.is_fifo()


def test_a_full_standard_output_is_said(toy):
    command = f"{sys.executable} -m wirescope.cli runs -s '{toy.path}' > /dev/full"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "wirescope: Writing 'standard output' failed: No space left on device.\n"


def test_unfinished_and_broken_runs_are_named_on_standard_error(cli, toy_copy):
    record = toy_copy.path / "runs/run=dense-ioi/run.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"finished": None}))
    result = cli("runs", "-s", toy_copy.path, "-f", "csv")
    assert [row["run"] for row in rows(result.out)] == ["sparse-ioi"]
    assert "left out, not finished: dense-ioi" in result.err
    record.write_text(json.dumps(content))
    (toy_copy.path / "edges/run=dense-ioi/part-00000.parquet").write_bytes(b"")
    result = cli("runs", "-s", toy_copy.path, "-f", "csv")
    assert result.status == 0
    assert "edges/run=dense-ioi/part-00000.parquet' has 0 bytes" in result.err
    assert cli("top", "-s", toy_copy.path, "-r", "dense-ioi", "-k", 3).status == 1
    shutil.rmtree(toy_copy.path / "runs/run=sparse-ioi")
    result = cli("sql", "-s", toy_copy.path, "runs")
    assert result.status == 1
    assert result.err.endswith(f"wirescope: No run of the store '{toy_copy.path}' can be read.\n")


def test_the_demo_is_not_for_several_processes(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = cli("demo", "--out", tmp_path / "demo")
    assert (result.status, result.err) == (
        2,
        "wirescope: The demo is for one process: run it without torchrun.\n",
    )
    assert not (tmp_path / "demo").exists()


def test_demo_compares_the_embedded_pair_may_be_run_again_and_says_what_to_try_next(
    cli, tmp_path, monkeypatch
):
    monkeypatch.setattr(demo, "_PROMPTS", 4)
    monkeypatch.setattr(demo, "_SIZES", (1, 4, 12, 48, 200, 1000, 3628))
    first = cli("demo", "--out", tmp_path / "demo")
    # another run of the sparse twin, which pairs with the dense one as well, is not the demo's
    again = ("--model", "tiny-sparse", "--task", "ioi", "--limit", 4, "--cross-fit", 2, "--run", "mine")
    assert cli("extract", *again, "--store", tmp_path / "demo/store").status == 0
    again = cli("demo", "--out", tmp_path / "demo")
    assert (first.status, again.status) == (0, 0)
    assert first.out == again.out
    assert re.search(r"ioi-long, tiny-sparse, contrast: 4 prompts, [\d,]+ circuits measured\.", first.err)
    assert "16 of 16 were there already." in again.err
    assert "measured" not in again.err
    header, _, *table = first.out.splitlines()
    assert header.split()[:4] == ["protocol", "ablation", "level", "task"]
    assert [line.split()[:4] for line in table] == [
        [*how, level, task]
        for how in (("published", "zero"), ("published", "smaller"), ("contrast", "corrupt"))
        for level in LEVELS
        for task in MAIN_TASKS
        if (how[1], level) != ("smaller", "attention")
    ]
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    names = ["attention-ioi"]
    for protocol in ("published", "contrast"):
        names += [f"curves-{protocol}-{level}" for level in LEVELS]
        names += [f"wiring-{protocol}-{task}" for task in MAIN_TASKS]
    drawn = {f"{name}.{ending}" for name in names for ending in ("pdf", "svg", "caption.txt")}
    assert written == {"store", "multipliers.csv", "explorer.html", "index.html"} | drawn
    page = (tmp_path / "demo/index.html").read_text()
    assert set(re.findall(r'src="([^"]+)"', page)) == {f"{name}.svg" for name in names} | {"explorer.html"}
    assert first.err.splitlines()[-1] == f"All of it on one page: {tmp_path / 'demo/index.html'}"
    catalog = read_catalog(tmp_path / "demo/store")
    assert {run.model for run in catalog.runs.values()} == {"tiny", "tiny-sparse"}
    assert {run.task for run in catalog.runs.values()} == set(MAIN_TASKS)
    # each row is of the store: dense over sparse
    (full,) = (
        row
        for row in rows((tmp_path / "demo/multipliers.csv").read_text())
        if (row["protocol"], row["task"], row["level"]) == ("contrast", "docstring", "edge")
    )
    assert (full["dense_run"], full["ranking"]) == ("tiny-docstring", "task")
    assert float(full["dense_k"]) / float(full["sparse_k"]) == pytest.approx(float(full["multiplier"]))
    key = ["contrast", "corrupt", "edge", "docstring"]
    shown = next(line.split() for line in table if line.split()[:4] == key)
    assert float(shown[4]) == math.ceil(float(full["dense_k"]))  # as many whole units as suffice
    assert float(shown[6]) == pytest.approx(float(full["multiplier"]), rel=5e-3)
    # the smaller circuit of a model is that of zero or that of mean, whichever is
    zero, smaller = (
        next(line.split() for line in table if line.split()[:4] == ["published", how, "edge", "ioi"])
        for how in ("zero", "smaller")
    )
    assert int(smaller[4].replace(",", "")) <= int(zero[4].replace(",", ""))
    commands = re.findall(r"^  \S+ (\w+ --store .*)$", first.err, flags=re.MULTILINE)
    assert len(commands) == 4
    monkeypatch.chdir(tmp_path)
    for command in commands:
        result = cli(*shlex.split(command))
        assert result.status == 0, result.err
        assert len(result.out.splitlines()) > 3 or (tmp_path / "heads.pdf").exists()


def test_tasks_are_listed_with_an_example_each(cli):
    listed = {row["task"]: row for row in rows(cli("tasks", "-f", "csv").out)}
    assert list(listed) == list(TASKS)
    assert listed["greater-than"]["example"].endswith("to the year 17 -> 56")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    """A model folder of which nothing is there but what says what it can read."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    config = {"model_type": "gpt2", "vocab_size": len(tokenizer), "n_positions": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_task_prints_pairs_that_are_prompts(cli, tmp_path, vocabulary):
    result = cli("tasks", "docstring", "--model", vocabulary, "--limit", 5, "--seed", 3)
    assert (result.status, result.err) == (0, "")
    (tmp_path / "pairs.jsonl").write_text(result.out)
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    assert len(pairs) == 5
    assert all(pair.clean.endswith(":param") for pair in pairs)
    again = cli(
        "tasks", "docstring", "-m", vocabulary, "--limit", 5, "--seed", 3, "-o", tmp_path / "again.jsonl"
    )
    assert again.status == 0
    assert (tmp_path / "again.jsonl").read_text() == result.out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tasks ioi", "Which pairs 'ioi' has depends on the model: give --model."),
        ("tasks iio --model {}", "There is no task 'iio'"),
        ("tasks ioi --model tests/extract/tiny-gpt2/model", "the model has no tokenizer"),
    ],
)
def test_a_wrong_call_of_tasks_gets_one_sentence(cli, call, message, monkeypatch, vocabulary):
    monkeypatch.chdir(Path(__file__).parents[2])
    result = cli(*call.format(vocabulary).split())
    assert (result.status, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_models_and_families_are_listed(cli):
    listed = {row["model"]: row["about"] for row in rows(cli("models", "-f", "csv").out)}
    assert listed["tiny"] == "embedded, dense"
    assert listed["tiny-sparse"] == "embedded, its sparse twin"
    assert {"gpt2", "llama", "olmo", "gpt_neox"} <= set(listed)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_closes_early_is_no_traceback(ioi_store, unbuffered):
    """Far more output than a pipe holds, into a reader that takes one line."""
    command = [sys.executable, "-m", "wirescope.cli", "sql", "-s", str(ioi_store), "edges", "-f", "csv"]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        first = process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert first.startswith("edge_id,")
    assert error == ""
    assert process.returncode == 0


def test_the_help_of_sql_says_what_every_question_needs(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = re.search(r"what they need: (.*?)\. ", " ".join(cli("sql", "--help").out.split())).group(1)
    needs = {}
    for name, values in re.findall(r"(\w+)(?: \(([^)]*)\))?(?:, |$)", said):
        needs[name] = sorted(re.split(", |; ", values)) if values else []
    assert needs == {name: parameters(name) for name in QUESTIONS if not name.startswith("run_")}


@pytest.mark.parametrize(
    "command",
    [
        "",
        "demo",
        "extract",
        "sparsify",
        "convert",
        "import",
        "sql",
        "top",
        "stats",
        "curve",
        "diagram",
        "explore",
        "export",
        "runs",
        "check",
        "tasks",
        "models",
    ],
)
def test_help_reads_well_at_80_columns(cli, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = cli(*command.split(), "--help")
    assert result.status == 0
    assert max(map(len, result.out.splitlines())) <= 80
    assert "Example: wirescope" in " ".join(result.out.split()) or not command
    assert str(Path.cwd()) not in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "sprak"], "'sprak' is not an engine: choose from duckdb, spark. Did you mean 'spark'?"),
        (["--engine", "spark", "--memory", "4GB"], "--memory is DuckDB's; what Spark may take is configured"),
        (["--spark-master", "local"], "--spark-master is for --engine spark."),
        (["--memory", "lots"], "'lots' is no amount of memory: write a number and a unit, as 4GB or 500MB."),
        (["--timeout", "0"], "The timeout is 0; it must be a number of seconds, more than 0."),
    ],
)
def test_options_of_an_engine_that_make_no_sense_are_refused(cli, toy, options, message):
    result = cli("sql", "-s", toy.path, "runs", *options)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


RUNAWAY = "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) as m from t"


def test_a_runaway_query_is_given_up_with_a_sentence(cli, toy):
    result = cli("sql", "-s", toy.path, RUNAWAY, "--timeout", "0.5")
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        "wirescope: The query was given up after 0.5 seconds; ask for less, or allow more with --timeout.\n"
    )


def test_a_runaway_query_ends_at_the_first_interrupt(toy):
    script = f"""
import os, signal, threading, wirescope.cli, wirescope.queries
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
wirescope.cli.main(["sql", "-s", {str(toy.path)!r}, {RUNAWAY!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


def test_a_run_that_goes_while_the_store_is_opened_is_said_and_left_out(cli, toy_copy, monkeypatch):
    from wirescope import data

    def read_catalog(store):
        catalog = data.store.read_catalog(store)
        for part in (toy_copy.path / "edges" / "run=dense-ioi").iterdir():
            part.unlink()
        return catalog

    monkeypatch.setattr(data, "read_catalog", read_catalog)
    result = cli("sql", "-s", toy_copy.path, "select distinct run from edges order by run", "-f", "csv")
    assert result.status == 0
    assert "wirescope: left out: The run 'dense-ioi' cannot be read: " in result.err
    assert "dense-ioi" not in result.out
    assert "sparse-ioi" in result.out


def test_spark_without_java_says_what_it_needs(toy):
    pytest.importorskip("pyspark")
    command = [sys.executable, "-m", "wirescope.cli", "sql", "-s", toy.path, "runs", "--engine", "spark"]
    environment = os.environ | {"JAVA_HOME": str(toy.path)}
    said = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == (
        "wirescope: Spark needs Java, 17 or later: install it, and set JAVA_HOME if it is not found.\n"
    )


def test_extract_is_installed_under_its_own_name():
    program = Path(sys.executable).parent / "extract"
    said = subprocess.run(
        [program, "--level", "hed", "--model", "x", "--store", "s"], capture_output=True, text=True
    )
    assert said.returncode == 2
    assert "'hed' is not a level: choose from edge, head, attention. Did you mean 'head'?" in said.stderr


def on_a_terminal(columns: int, *arguments: object) -> list[str]:
    """What a command shows on a pseudo-terminal, words and data, line by line."""
    import pty
    import termios

    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "wirescope.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends on Linux
            while some := os.read(master, 4096):
                shown += some
    os.close(master)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_tables_fit_the_terminal(toy):
    note, *table = on_a_terminal(80, "runs", "-s", toy.path)
    assert "cut to the width of the terminal without" in note
    assert "--wide" in note
    assert max(map(len, table)) <= 80
    for column in ("run", "task", "prompts", "accuracy", "effect", "effect_stderr"):
        assert column in table[0].split()
    assert [line.split()[0] for line in table[2:]] == ["dense-ioi", "sparse-ioi"]
    note, *table = on_a_terminal(
        80, "sql", "-s", toy.path, f"select run, '{'long ' * 30}' as text, 1.5 as x from runs"
    )
    assert max(map(len, table)) == 80
    assert all("…" in line and line.endswith("1.5") for line in table[2:])


def test_wide_tables_and_pipes_are_whole(toy, cli):
    shown = on_a_terminal(80, "sql", "-s", toy.path, "runs", "--wide")
    piped = cli("sql", "-s", toy.path, "runs").out.splitlines()
    assert shown == piped
    assert max(map(len, piped)) > 300
    assert "…" not in "".join(piped)
