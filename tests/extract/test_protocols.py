"""Extraction under a protocol: a run for each of its ablations, all of them whatever happens in between."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from wirescope.data import PROTOCOLS, read_catalog
from wirescope.errors import InputError
from wirescope.extract import (
    Settings,
    extract,
    extract_each,
    plan_each,
    plan_extraction,
    settings_under,
)
from wirescope.extract.settings import Deaf
from wirescope.queries import View, curves_command, open_store, select

SIZES = {"sizes": (5, 60)}


class Told(Deaf):
    """A listener that remembers what is noted."""

    def __init__(self) -> None:
        self.notes = []

    def note(self, message):
        self.notes.append(message)


def under(tiny, store, protocol="published", listener=None, run="tiny", **given):
    return extract_each(
        model=str(tiny / "model"),
        prompts=tiny / "prompts.jsonl",
        store=store,
        run=run,
        settings=settings_under(protocol, **SIZES, **given),
        listener=listener or Told(),
    )


def pair_under(tiny, folder: Path) -> Path:
    """A store with runs of the protocol `published`: of a model, and of a copy that names it as its dense original."""
    dense, sparse = tiny / "model", folder / "sparse"
    shutil.copytree(dense, sparse)
    config = json.loads((sparse / "config.json").read_text())
    (sparse / "config.json").write_text(json.dumps(config | {"base_model": str(dense)}))
    for name, model in (("dense", dense), ("sparse", sparse)):
        extract_each(
            model=str(model),
            prompts=tiny / "prompts.jsonl",
            store=folder / "s",
            run=name,
            settings=settings_under("published", **SIZES),
        )
    return folder / "s"


def scores_and_effects(store: Path, run: str) -> dict[str, bytes]:
    return {
        file.parent.parent.name + "/" + file.name: file.read_bytes()
        for file in sorted(store.glob(f"*/run={run}/*.parquet"))
    }


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory) -> tuple[Path, Mapping[str, object]]:
    """A store with the runs of the protocol `published`, and what came of them."""
    store, told = tmp_path_factory.mktemp("published") / "s", Told()
    outcomes = under(tiny, store, levels=("edge", "attention"), listener=told)
    return store, {"outcomes": outcomes, "notes": told.notes}


def test_a_protocol_makes_a_run_for_each_of_its_ablations(made):
    store, told = made
    runs = read_catalog(store).runs
    assert list(runs) == ["tiny-mean", "tiny-zero"]
    assert [outcome.run for outcome in told["outcomes"]] == ["tiny-zero", "tiny-mean"]
    for ablation in ("zero", "mean"):
        run = runs[f"tiny-{ablation}"]
        assert (run.ablation, run.protocol, run.stem) == (ablation, "published", "tiny")
        assert [curves.ablation for curves in run.curves] == [ablation]
        assert set(run.curves[0].sizes["edge"]) == {"prompt", "task", "random"}
        assert json.loads((store / f"runs/run={run.run}/run.json").read_text())["protocol"] == "published"
    rows = select(
        open_store(store), "select run, protocol, stem, schema_version from runs order by run"
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("tiny-mean", "published", "tiny", 5),
        ("tiny-zero", "published", "tiny", 5),
    ]


def test_each_run_is_what_its_ablation_alone_makes(made, tiny, tmp_path):
    """The same numbers as those of a call without a protocol, which loads the model for itself."""
    store, _ = made
    for ablation, levels in (("zero", ("edge", "attention")), ("mean", ("edge",))):
        extract(
            model=str(tiny / "model"),
            prompts=tiny / "prompts.jsonl",
            store=tmp_path / "s",
            run=f"tiny-{ablation}",
            settings=Settings(ablation=ablation, levels=levels, **SIZES),
        )
        alone = scores_and_effects(tmp_path / "s", f"tiny-{ablation}")
        assert scores_and_effects(store, f"tiny-{ablation}") == alone
        assert read_catalog(tmp_path / "s").run(f"tiny-{ablation}").protocol is None


def test_the_mean_run_leaves_out_attention_and_says_so(made):
    store, told = made
    runs = read_catalog(store).runs
    assert runs["tiny-zero"].levels == ("edge", "attention")
    assert runs["tiny-mean"].levels == ("edge",)
    said = "the ablation mean is not defined at the level attention: the run with it has the levels edge."
    assert [note for note in told["notes"] if "not defined" in note] == [f"wirescope: {said}"]


def test_attention_alone_has_the_run_with_zero_alone(tiny, tmp_path):
    told = Told()
    (outcome,) = under(tiny, tmp_path / "s", levels=("attention",), listener=told)
    assert outcome.run == "tiny-zero"
    assert list(read_catalog(tmp_path / "s").runs) == ["tiny-zero"]
    assert sum("there is the run with zero alone" in note for note in told.notes) == 1


def test_single_options_override_a_protocol():
    assert list(PROTOCOLS) == ["published", "contrast"]
    assert settings_under(None) == {"": Settings()}
    both = settings_under("published")
    assert {ending: one.ablation for ending, one in both.items()} == {"-zero": "zero", "-mean": "mean"}
    assert {one.rankings for one in both.values()} == {("prompt", "task")}
    (one,) = settings_under("published", ablation="mean", rankings=("signed",)).items()
    assert (one[0], one[1].ablation, one[1].rankings) == ("", "mean", ("signed",))
    (one,) = settings_under("contrast", rankings=None, ablation=None).items()
    assert (one[0], one[1].ablation, one[1].rankings) == ("", "corrupt", ("task", "prompt"))
    with pytest.raises(
        InputError, match=r"'publish' is not a protocol: choose from published, contrast\. Did you mean"
    ):
        settings_under("publish")
    with pytest.raises(InputError, match="not a protocol"):
        Settings(protocol="publish").check()
    with pytest.raises(
        InputError, match="not defined at the level 'attention'"
    ):  # asked for by name, it is refused
        settings_under("published", ablation="mean", levels=("attention",))[""].check()


def test_a_run_by_another_ablation_is_not_called_after_the_protocol(tiny, tmp_path):
    told = Told()
    under(tiny, tmp_path / "s", ablation="zero")
    under(tiny, tmp_path / "s", ablation="corrupt", run="other", listener=told)
    runs = read_catalog(tmp_path / "s").runs
    assert (runs["tiny"].protocol, runs["tiny"].stem, runs["other"].protocol) == ("published", "tiny", None)
    said = (
        "the ablation corrupt is none of the protocol published (zero, mean): the run is not named after it."
    )
    assert f"wirescope: {said}" in told.notes


def test_another_protocol_of_the_same_name_is_refused(made, tiny):
    store, _ = made
    with pytest.raises(InputError, match="not the same: protocol"):
        under(tiny, store, "contrast", run="tiny-zero")


def test_the_commands_of_a_run_are_those_that_made_it(made, tiny, cli, tmp_path):
    """What `check` prints does nothing again; what a figure prints adds the curve to the same run."""
    store, _ = made
    copy = tmp_path / "s"
    subprocess.run(["cp", "-r", store, copy], check=True)
    before = read_catalog(copy).run("tiny-mean")
    words = before.command(copy)
    assert words[words.index("--protocol") + 1] == "published"
    result = cli(*words[1:], "--no-curves")
    assert "nothing was written" in result.err, result.err
    line = curves_command(before, copy, View(ranking="signed", ablation="mean"))
    result = cli(*shlex.split(line)[1:], "--sizes", "5")
    assert result.status == 0, result.err
    after = read_catalog(copy).run("tiny-mean")
    assert after.curves[-1].sizes["edge"]["signed"] == (5,)
    line = curves_command(before, copy, View(ablation="corrupt"))
    assert cli(*shlex.split(line)[1:], "--sizes", "5").status == 0
    after = read_catalog(copy).run("tiny-mean")
    assert (after.curves[-1].ablation, after.ablation, after.protocol) == ("corrupt", "mean", "published")


def test_a_level_that_the_runs_of_a_protocol_lack_is_added_by_the_command_that_is_named(tiny, cli, tmp_path):
    """Also where that makes runs of another name: those that had curves before are still drawn without being named."""
    store, model = pair_under(tiny, tmp_path), tiny / "model"
    draw = ["curve", "-s", store, "--protocol", "published", "-o", tmp_path / "c.svg", "--level"]
    assert cli(*draw, "edge").status == 0
    for name in ("dense", "sparse"):
        refused = cli(*draw, "head")
        assert refused.status == 2
        line = refused.err.partition("This adds it: ")[2]
        assert "--protocol published" in line and "--ablation" not in line
        line = line.replace("--run sparse-head", f"--run {name}-head")
        if name == "dense":  # the sparse one is missed first
            line = line.replace(str(tmp_path / "sparse"), str(model))
        assert cli(*shlex.split(line)[1:], "--sizes", "1,2").status == 0
    for level, names in (("edge", ("sparse", "dense")), ("head", ("sparse-head", "dense-head"))):
        drawn = cli(*draw, level)
        assert drawn.status == 0, drawn.err
        caption = (tmp_path / "c.caption.txt").read_text()
        assert all(re.search(f"run {name}-(zero|mean),", caption) for name in names), caption


def test_a_diagram_and_the_explorer_take_runs_of_a_protocol_without_their_ablation(made, cli, tmp_path):
    store, _ = made
    for command in (("diagram", "-k", "40"), ("explore",)):
        out = tmp_path / ("d.svg" if command[0] == "diagram" else "e.html")
        assert cli(*command, "-s", store, "--runs", "tiny", "-o", out).status == 2
        result = cli(*command, "-s", store, "--runs", "tiny", "--protocol", "published", "-o", out)
        assert result.status == 0, result.err
    assert re.search(r"run tiny-(zero|mean)", (tmp_path / "d.caption.txt").read_text())
    assert re.search(r"Ablation (zero|mean), protocol published\.", (tmp_path / "e.html").read_text())


def test_without_a_protocol_an_ablation_takes_those_pairs_that_have_it(tiny, cli, tmp_path):
    store = pair_under(tiny, tmp_path)
    draw = ["curve", "-s", store, "-o", tmp_path / "c.svg"]
    assert "choose it with --ablation, or a --protocol" in cli(*draw).err
    result = cli(*draw, "--ablation", "zero")
    assert result.status == 0, result.err
    assert "sparse-mean" not in (tmp_path / "c.caption.txt").read_text()


KILLED_BETWEEN = """
import os, signal, sys
from wirescope.extract import extract_each, settings_under
from wirescope.extract.settings import Deaf
class Fatal(Deaf):
    def note(self, message):
        if "-mean'" in message:
            os.kill(os.getpid(), signal.SIGKILL)
folder, store = sys.argv[1:]
settings = settings_under("published", sizes=(5, 60), levels=("edge", "attention"))
extract_each(model=f"{folder}/model", prompts=f"{folder}/prompts.jsonl", store=store, run="tiny", settings=settings,
             listener=Fatal())
"""


def test_killed_between_the_runs_it_goes_on_with_the_second(made, tiny, tmp_path):
    store, _ = made
    died = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, tiny, tmp_path / "s"], check=False)
    assert died.returncode == -signal.SIGKILL
    assert list(read_catalog(tmp_path / "s").runs) == ["tiny-zero"]
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/run=tiny-zero/*")}
    first, second = under(tiny, tmp_path / "s", levels=("edge", "attention"))
    assert (first.fresh, first.circuits) == (0, 0)
    assert (second.fresh, second.circuits) == (6, 36)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/run=tiny-zero/*")} == written
    for run in ("tiny-zero", "tiny-mean"):
        assert scores_and_effects(tmp_path / "s", run) == scores_and_effects(store, run)


def test_the_plan_is_of_all_runs_together(tiny, cli):
    asked = {"model": str(tiny / "model"), "prompts": tiny / "prompts.jsonl", "memory": 10**9}
    settings = settings_under("published", levels=("edge", "attention"))
    both = plan_each(settings=settings, **asked)
    alone = [plan_extraction(settings=one, **asked).plan for one in settings.values()]
    assert both.plan.passes == pytest.approx(sum(plan.passes for plan in alone))
    assert both.plan.disk == sum(plan.disk for plan in alone)
    assert both.plan.peaks == (max(plan.peaks[0] for plan in alone),)
    assert [phase.name for phase in both.plan.phases] == [
        *("zero scoring", "zero edge circuits", "zero attention circuits"),
        *("mean means", "mean scoring", "mean edge circuits"),
    ]
    least = plan_each(settings=settings, **asked | {"memory": int(both.plan.peaks[0] * 1.05)})
    assert least.largest is None or least.largest < both.plan.batch_size
    options = ["--model", tiny / "model", "--prompts", tiny / "prompts.jsonl", "--store", "nowhere", "--plan"]
    result = cli("extract", *options, "--protocol", "published", "--level", "attention", "--level", "edge")
    assert result.status == 0, result.err
    assert (
        f"2 runs (zero, mean), together about as much work as {both.plan.passes:,.0f} forward" in result.err
    )
    assert "the run with it has the levels edge" in result.err
    assert "mean edge circuits" in result.out
    assert not Path("nowhere").exists()


def test_the_command_makes_both_runs_and_says_of_each_what_it_came_to(tiny, cli, tmp_path):
    options = ["--model", tiny / "model", "--prompts", tiny / "prompts.jsonl", "--store", tmp_path / "s"]
    result = cli("extract", *options, "--protocol", "published", "--sizes", "5", "--split", "0.5")
    assert result.status == 0, result.err
    runs = read_catalog(tmp_path / "s").runs
    assert list(runs) == ["model-prompts-mean", "model-prompts-zero"]
    assert {run.split for run in runs.values()} == {0.5}
    for ablation in ("zero", "mean"):
        name = f"model-prompts-{ablation}"
        assert f"Run '{name}', protocol published, ablation {ablation}:" in result.err
        assert f"Run '{name}' in '{tmp_path / 's'}': 6 prompts scored, " in result.err


@pytest.mark.slow
def test_several_processes_make_the_same_runs(tiny, tmp_path):
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "wirescope.cli",
        "--",
    ]
    asked = [
        "--model",
        tiny / "model",
        "--prompts",
        tiny / "prompts.jsonl",
        "--run",
        "tiny",
        "--sizes",
        "5,60",
    ]
    asked += ["--protocol", "published", "--level", "edge", "--level", "attention"]
    for store, how in (("one", ["-m", "wirescope.cli"]), ("two", torchrun)):
        done = subprocess.run(
            [sys.executable, *how, "extract", *asked, "--store", tmp_path / store],
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # bytes depend on it
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Run 'tiny-zero', protocol published") == 1
    for run in ("tiny-zero", "tiny-mean"):
        assert scores_and_effects(tmp_path / "two", run) == scores_and_effects(tmp_path / "one", run)
