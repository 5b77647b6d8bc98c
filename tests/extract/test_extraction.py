"""Extraction into a store: what is in it, and what happens on the way."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from wirescope.data import encode_pairs, read_catalog, read_pairs
from wirescope.errors import ExtractionError, InputError
from wirescope.extract import Settings, extract, extraction, find_device, load_model
from wirescope.extract.attribution import Attributor
from wirescope.extract.job import Job
from wirescope.extract.taps import Tape
from wirescope.extract.workers import Workers
from wirescope.graphs import Wiring
from wirescope.queries import open_store, select

ROOT = Path(__file__).parents[2]
MODELS = Path(os.environ.get("WIRESCOPE_MODELS", ROOT.parent / "shared" / "models"))
LEVELS = ("edge", "head", "attention")
SCORES = Settings(levels=LEVELS, curves=False)


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.plans, self.steps, self.notes, self.done = [], [], [], []

    def begin(self, plan, what, total, done):
        self.plans.append(plan)
        self.done.append((what, total, done))

    def advance(self, count):
        self.steps.append(count)

    def note(self, message):
        self.notes.append(message)


@pytest.fixture(scope="module")
def many(random_prompts) -> Path:
    """A hundred prompts of several lengths for the tiny model, as token ids."""
    return random_prompts(100, longest=12, seed=1)


def run(tiny, store, **options):
    options = {"prompts": tiny / "prompts.jsonl", "settings": SCORES} | options
    return extract(model=str(tiny / "model"), store=store, run="tiny", **options)


def parts(store) -> dict[str, bytes]:
    return {
        str(file.relative_to(store)): file.read_bytes() for file in sorted(Path(store).glob("*/*/*.parquet"))
    }


def column(store, table, name) -> np.ndarray:
    files = sorted(Path(store).glob(f"{table}/run=*/*.parquet"))
    return np.concatenate([pq.read_table(file)[name].to_numpy() for file in files])


def test_every_unit_of_every_prompt_is_in_the_store(tiny, tmp_path):
    told = Told()
    outcome = run(tiny, tmp_path / "s", listener=told)
    catalog = read_catalog(tmp_path / "s")
    record = catalog.run("tiny")
    assert (outcome.fresh, outcome.prompts, outcome.undefined) == (6, 6, ())
    assert (record.method, record.steps, record.metric, record.ablation) == (
        "eap-ig",
        5,
        "logit_diff",
        "corrupt",
    )
    assert record.integration_rule == "inputs at corrupted + (k/m)(clean - corrupted), k = 0..m-1"
    assert (record.dtype, record.task, record.prompts) == ("float32", "prompts", 6)
    assert record.versions.keys() >= {"torch", "transformers", "wirescope"}
    assert np.array_equal(column(tmp_path / "s", "edge_scores", "edge_id"), np.tile(np.arange(262), 6))
    wiring = Wiring(record.shape)
    heads = np.flatnonzero(wiring.is_kind("head"))
    assert np.array_equal(column(tmp_path / "s", "head_scores", "node_id"), np.tile(heads, 6))
    query, key = (column(tmp_path / "s", "attention_scores", name) for name in ("query", "key"))
    assert len(query) == 6 * 12 * 55
    assert (key <= query).all()
    reference = json.loads((tiny / "reference.json").read_text())["eap-ig-5"]
    mean = column(tmp_path / "s", "edge_scores", "score").reshape(6, 262).mean(0)
    expected = np.array([reference[name] for name in wiring.edge_names().to_pylist()])
    np.testing.assert_allclose(mean, expected, atol=1e-4 * np.abs(expected).max())
    assert told.steps == [6]
    for fact in (
        "gpt2",
        "3 layers x 4 heads",
        "262 edges",
        "float32",
        "6 prompts of 10 tokens",
        "MB on disk",
    ):
        assert fact in told.plans[0]


def test_attention_scores_add_up_to_head_scores(tiny, tmp_path):
    """A head's z is the sum of its messages, so the first-order scores of these sum to the head's."""
    run(tiny, tmp_path / "s")
    table = pq.read_table(next((tmp_path / "s").glob("attention_scores/run=*/*.parquet")))
    scores = table["score"].to_numpy().reshape(6, 12, 55).sum(-1)
    heads = column(tmp_path / "s", "head_scores", "score").reshape(6, 12)
    np.testing.assert_allclose(scores, heads, atol=1e-5)


def test_a_mean_is_over_the_prompts_that_have_the_position(tiny, many):
    model = load_model(str(tiny / "model"), device=find_device())
    prompts = encode_pairs(read_pairs(many), model.vocabulary)
    shards = [range(32), range(32, 64), range(64, 96), range(96, 100)]
    alone = Workers(0, 1, model.device)
    means = Job(model, prompts, shards, Wiring(model.shape), "logit_diff", None, alone, Told()).means
    tapes = [model.taps.run(torch.tensor([prompt.clean_ids]), Tape()) for prompt in prompts]
    for position in (0, 4, 7, 11):
        there = [tape for tape in tapes if tape.input.shape[1] > position]
        assert (len(there) < 100) == (position > 4)
        for ours, theirs in (
            (means.input, [tape.input for tape in there]),
            (means.z[1], [tape.z[1] for tape in there]),
            (means.mlp[2], [tape.mlp[2] for tape in there]),
        ):
            expected = torch.stack([written[0, position] for written in theirs]).mean(0)
            torch.testing.assert_close(ours[position], expected, rtol=1e-4, atol=1e-5)


def test_commands_answer_from_an_extracted_store(tiny, tmp_path, cli):
    store = tmp_path / "s"
    result = cli("extract", "--model", tiny / "model", "--prompts", tiny / "prompts.jsonl", "--store", store)
    assert result.status == 0
    assert result.out == ""
    assert "3 layers x 4 heads, 262 edges" in result.err
    assert f"wirescope top --store {store} --run model-prompts --k 20" in result.err
    top = cli("top", "--store", store, "--run", "model-prompts", "--k", 40, "--format", "json")
    assert top.status == 0
    assert json.loads(top.out)["kept"] > 10
    count = cli("sql", "-s", store, "select count(*) as n from edge_scores", "-f", "csv")
    assert count.out == "n\n1572\n"
    again = cli("extract", "--model", tiny / "model", "--prompts", tiny / "prompts.jsonl", "--store", store)
    assert again.status == 0
    assert "nothing was written" in again.err


@pytest.mark.parametrize("level", ["head", "attention"])
def test_the_next_command_that_is_said_works_at_every_level(tiny, tmp_path, cli, level):
    call = ["--model", tiny / "model", "--prompts", tiny / "prompts.jsonl", "--store", tmp_path / "s"]
    said = cli("extract", *call, "--level", level, "--no-curves").err
    (command,) = [line.removeprefix("Next: wirescope ") for line in said.splitlines() if "Next: " in line]
    result = cli(*command.replace("--k 20", "--k 2").split())
    assert result.status == 0
    assert f"2 units requested at the level {level}, 2 kept" in result.err


def test_what_is_done_is_not_done_again(tiny, many, tmp_path):
    """Three shards are finished, one is torn out; the same call does that one and gives the same bytes."""
    settings = Settings(levels=("edge", "head"), method="eap", curves=False)
    first = run(tiny, tmp_path / "s", prompts=many, settings=settings)
    assert first.fresh == 100
    whole = parts(tmp_path / "s")
    assert len([name for name in whole if name.startswith("edge_scores")]) == 4
    for table in ("edge_scores", "head_scores", "prompts"):
        (tmp_path / "s" / table / "run=tiny" / "part-00002.parquet").unlink()
        told = Told()
        second = run(tiny, tmp_path / "s", prompts=many, settings=settings, listener=told)
        assert second.fresh == 32
        assert told.done == [("prompts", 100, 68)]
        assert parts(tmp_path / "s") == whole


@pytest.mark.parametrize("batch", [1, 7, 32])
def test_the_batch_size_changes_no_score(tiny, many, tmp_path, batch):
    results = []
    for name, size in (("default", None), ("other", batch)):
        run(
            tiny,
            tmp_path / name,
            prompts=many,
            settings=Settings(levels=("edge", "head"), batch_size=size, curves=False),
        )
        results.append([column(tmp_path / name, table, "score") for table in ("edge_scores", "head_scores")])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_out_of_memory_halves_the_batch_and_goes_on(tiny, many, tmp_path, monkeypatch):
    score = Attributor.__call__
    sizes = []

    def short_of_memory(self, batch):
        sizes.append(len(batch))
        if len(batch) > 5:
            raise torch.OutOfMemoryError("out of memory")
        return score(self, batch)

    monkeypatch.setattr(Attributor, "__call__", short_of_memory)
    told = Told()
    settings = Settings(method="eap", curves=False)
    assert run(tiny, tmp_path / "s", prompts=many, limit=10, settings=settings, listener=told).fresh == 10
    assert sizes == [10, 5, 5]
    assert told.notes[:1] == ["Out of memory: going on with 5 prompts at a time (--batch-size 5)."]
    monkeypatch.undo()
    run(tiny, tmp_path / "plain", prompts=many, limit=10, settings=settings)
    ours, theirs = (column(tmp_path / name, "edge_scores", "score") for name in ("s", "plain"))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_out_of_memory_for_one_prompt_says_what_to_try(tiny, tmp_path, monkeypatch, cli):
    def no_memory(self, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Attributor, "__call__", no_memory)
    with pytest.raises(
        ExtractionError, match=r"not enough memory .* one prompt of 10 tokens: try --dtype bfloat16"
    ):
        run(tiny, tmp_path / "s")
    result = cli("extract", "-m", tiny / "model", "-p", tiny / "prompts.jsonl", "-s", tmp_path / "t")
    assert result.status == 1
    assert "the same command goes on" in result.err


def test_out_of_memory_while_loading_says_what_to_try(tiny, tmp_path, monkeypatch):
    def too_large(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(extraction, "load_model", too_large)
    with pytest.raises(ExtractionError, match="not enough memory on cpu for the model: try --dtype bfloat16"):
        run(tiny, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_scores_that_are_no_numbers_are_not_written(tiny, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    weights = load_file(broken / "model" / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"][:] = 1e38
    save_file(weights, broken / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ExtractionError, match=r"of 6 prompts \(0, 1, 2, 3, 4, 5\) are not finite in float32"):
        run(broken, tmp_path / "s")
    assert read_catalog(tmp_path / "s").unfinished == ("tiny",)


def test_other_weights_under_the_same_name_are_another_call(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    run(copy, tmp_path / "s")
    weights = load_file(copy / "model" / "model.safetensors")
    weights["transformer.wte.weight"] *= 2
    save_file(weights, copy / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="not the same: revision"):
        run(copy, tmp_path / "s")


def test_the_order_of_levels_is_nothing(tiny, tmp_path):
    run(tiny, tmp_path / "s", settings=Settings(levels=("head", "edge"), curves=False))
    assert run(tiny, tmp_path / "s", settings=Settings(levels=("edge", "head"), curves=False)).fresh == 0


def test_other_errors_are_not_taken_for_a_lack_of_memory(tiny, tmp_path, monkeypatch):
    def broken(self, batch):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Attributor, "__call__", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(tiny, tmp_path / "s")


def test_another_call_does_not_touch_a_run(tiny, tmp_path):
    run(tiny, tmp_path / "s")
    before = parts(tmp_path / "s")
    with pytest.raises(InputError, match=r"not the same: .*metric"):
        run(tiny, tmp_path / "s", settings=Settings(levels=LEVELS, metric="prob_diff", curves=False))
    assert parts(tmp_path / "s") == before


def test_a_progress_bar_is_for_terminals_only(tiny, tmp_path, cli):
    command = ("extract", "-m", tiny / "model", "-p", tiny / "prompts.jsonl")
    said = cli(*command, "-s", tmp_path / "s", "--sizes", "20").err.splitlines()
    begins = [line.split()[0] for line in said if not line.startswith(" ")]
    assert begins == [str(tiny / "model"), "6", "Accuracy", "wirescope:", "Curves", "Run", "Next:"]


def command(tiny, prompts, store, *options) -> list[str]:
    return [
        "-m",
        "wirescope.cli",
        "--",  # or torchrun would take --run for one of its own
        "extract",
        *("--model", str(tiny / "model"), "--prompts", str(prompts), "--store", str(store), "--run", "tiny"),
        *options,
    ]


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on_and_then_does(tiny, many, tmp_path):
    options = ("--batch-size", "1", "--level", "head", "--level", "edge")
    going = subprocess.Popen(
        [sys.executable, *command(tiny, many, tmp_path / "s", *options)], stderr=subprocess.PIPE, text=True
    )
    first = tmp_path / "s" / "prompts" / "run=tiny" / "part-00000.parquet"
    deadline = time.monotonic() + 120
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    going.send_signal(signal.SIGINT)
    _, said = going.communicate(timeout=60)
    assert going.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert read_catalog(tmp_path / "s").unfinished == ("tiny",)
    done = len(list(first.parent.glob("*.parquet")))
    assert 1 <= done < 4
    whole = subprocess.run(
        [sys.executable, *command(tiny, many, tmp_path / "s", *options)],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert f"{32 * done} of 100 prompts are done already" in whole.stderr
    subprocess.run([sys.executable, *command(tiny, many, tmp_path / "undisturbed", *options)], check=True)
    assert parts(tmp_path / "s") == parts(tmp_path / "undisturbed")


ALONE = os.environ | {"OMP_NUM_THREADS": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ALL_OF_IT = (
    "--ablation",
    "mean",
    "--level",
    "edge",
    "--level",
    "head",
    "--batch-size",
    "8",
    "--sizes",
    "1,5,12",
)


def record_of(store) -> dict:
    """What run.json says, but for when."""
    record = json.loads((store / "runs/run=tiny/run.json").read_text())
    return {key: value for key, value in record.items() if key not in ("started", "finished")}


@pytest.fixture(scope="module")
def by_one(tiny, many, tmp_path_factory) -> Path:
    """Scores and curves by one process, without torchrun."""
    store = tmp_path_factory.mktemp("one") / "s"
    call = [sys.executable, *command(tiny, many, store, *ALL_OF_IT)]
    subprocess.run(call, env=ALONE, check=True, stderr=subprocess.PIPE)
    return store


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_any_number_of_processes_writes_the_same_bytes(tiny, many, by_one, tmp_path, processes):
    """Two do so below."""
    torchrun = [*TORCHRUN, "--nproc-per-node", str(processes), "--standalone"]
    done = subprocess.run(
        [*torchrun, *command(tiny, many, tmp_path / "s", *ALL_OF_IT)],
        env=ALONE,
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stderr.count(f"by {processes} processes") == (processes > 1)
    assert done.stderr.count("circuits measured") == 1
    assert parts(tmp_path / "s") == parts(by_one)
    assert record_of(tmp_path / "s") == record_of(by_one)


@pytest.mark.slow
def test_two_nodes_write_the_same_bytes_as_one_process(tiny, many, by_one, tmp_path):
    """Each node has a launcher of its own; they meet on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = (
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(port),
    )
    nodes = [
        subprocess.Popen(
            [*TORCHRUN, *meet, "--node-rank", str(rank), *command(tiny, many, tmp_path / "s", *ALL_OF_IT)],
            env=ALONE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [node.communicate(timeout=300)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert ["by 2 processes" in text for text in said] == [True, False]
    assert parts(tmp_path / "s") == parts(by_one)
    assert record_of(tmp_path / "s") == record_of(by_one)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list children")
def test_when_one_of_two_processes_is_killed_the_other_does_not_wait_for_it(tiny, many, by_one, tmp_path):
    torchrun = [*TORCHRUN, "--nproc-per-node", "2", "--standalone"]
    call = [*torchrun, *command(tiny, many, tmp_path / "s", *ALL_OF_IT)]
    going = subprocess.Popen(call, env=ALONE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("s/prompts/*/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    first, *_ = Path(f"/proc/{going.pid}/task/{going.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)
    going.communicate(timeout=120)
    assert going.returncode != 0
    assert parts(tmp_path / "s") != parts(by_one)
    subprocess.run(call, env=ALONE, check=True, stderr=subprocess.PIPE)
    assert parts(tmp_path / "s") == parts(by_one)
    assert record_of(tmp_path / "s") == record_of(by_one)


@pytest.mark.slow
@pytest.mark.skipif(not (MODELS / "stories15M").is_dir(), reason="the model is not there")
def test_on_a_real_model_the_top_edges_are_those_of_exact(tmp_path, record_property):
    stores = []
    for method in ("eap-ig", "exact"):
        extract(
            model=str(MODELS / "stories15M"),
            task="ioi",
            limit=16,
            store=tmp_path / method,
            settings=Settings(method=method, curves=False),
        )
        stores.append(column(tmp_path / method, "edge_scores", "score").reshape(16, -1).mean(0))
    estimated, exact = stores
    top = np.argsort(-np.abs(exact))[:50]
    ranks = [np.argsort(np.argsort(x[top])) for x in (estimated, exact)]
    spearman = np.corrcoef(*ranks)[0, 1]
    record_property("spearman", spearman)
    print(f"Spearman over the top 50 edges: {spearman:.3f}")  # noqa: T201
    assert spearman > 0.6
    assert (np.sign(estimated[top]) == np.sign(exact[top])).mean() > 0.75


def test_a_store_can_be_copied_elsewhere(tiny, tmp_path):
    run(tiny, tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "elsewhere")
    assert read_catalog(tmp_path / "elsewhere").run("tiny").prompts == 6


def test_tokens_are_in_the_store_as_they_read(tmp_path):
    extract(model="tiny", task="ioi", store=tmp_path, limit=1, settings=Settings(curves=False))
    (row,) = select(open_store(tmp_path), "select clean, clean_tokens, clean_ids from prompts").to_pylist()
    assert len(row["clean_tokens"]) == len(row["clean_ids"])
    words = [token.strip() for token in row["clean_tokens"]]
    assert "".join(words) == row["clean"].replace(" ", "")


def test_token_ids_without_a_tokenizer_are_their_own_names(tiny, tmp_path):
    run(tiny, tmp_path)
    rows = select(open_store(tmp_path), "select clean_tokens, clean_ids from prompts").to_pylist()
    assert all(row["clean_tokens"] == [str(token) for token in row["clean_ids"]] for row in rows)
