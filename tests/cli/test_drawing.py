"""The commands that draw: what they write, and what they refuse."""

import shlex
import shutil
from dataclasses import replace

import pytest
from pypdf import PdfReader
from wirescope.data import read_catalog, write_run
from wirescope.graphs import Wiring

PAIR = "--runs sparse-ioi dense-ioi"
CALLS = {
    f"curve {PAIR} -o {{tmp}}/x.jpg": "'jpg' is not a file ending of this figure: choose from pdf, svg, png.",
    f"curve {PAIR} -o {{tmp}}/x": "'' is not a file ending of this figure",
    f"curve {PAIR} --level heads -o {{tmp}}/x.pdf": "'heads' is not a level",
    f"curve {PAIR} --ranking tusk -o {{tmp}}/x.pdf": (
        "'tusk' is not a ranking: choose from prompt, task, signed. Did you mean"
    ),
    f"curve {PAIR} --ablation no -o {{tmp}}/x.pdf": "'no' is not an ablation: choose from corrupt, zero, mean.",
    f"curve {PAIR} --threshold 0 -o {{tmp}}/x.pdf": (
        "The threshold is an explained effect above 0 and at most 1.5, where 1 is all of it, not 0."
    ),
    f"curve {PAIR} --threshold 90 -o {{tmp}}/x.pdf": "all of it, not 90. Did you mean 0.9?",
    f"curve {PAIR} --threshold nan -o {{tmp}}/x.pdf": "all of it, not nan.",
    f"curve {PAIR} --width 10 -o {{tmp}}/x.pdf": "at least 144 points wide, not 10 (--width).",
    f"diagram {PAIR} --effect 85 -o {{tmp}}/x.pdf": "not 85. Did you mean 0.85?",
    f"curve {PAIR} --label toy -o {{tmp}}/x.pdf": "'toy' does not say once which value is what: write name=value.",
    f"curve {PAIR} --level attention --ranking task -o {{tmp}}/x.pdf": "choose --ranking prompt.",
    f"curve {PAIR} --level attention -o {{tmp}}/x.pdf": (
        "The run 'sparse-ioi' has no measured curve at the level attention, ranked by prompt, with the ablation "
        "corrupt. This adds it: wirescope extract --model toy-sparse --task ioi --limit 4 --seed 0 --store"
    ),
    "curve --runs sparse-ioi other-task -o {tmp}/x.pdf": "only runs of one task are compared",
    "curve --runs dense-ioi sparse-ioi -o {tmp}/x.pdf": "give the sparse run first, then the dense one.",
    "curve --runs sparse-ioi dense-ioi sparse-ioi -o {tmp}/x.pdf": "two by two, sparse and dense, and these are 3",
    "curve --runs nobody -o {tmp}/x.pdf": "has no run 'nobody'",
    f"curve {PAIR} -o {{tmp}}/no/x.pdf": "Cannot write '{tmp}/no/x.pdf': No such file or directory.",
    f"diagram {PAIR} -k 9 -o {{tmp}}/x.bmp": "'bmp' is not a file ending of this figure: choose from",
    f"diagram {PAIR} -o {{tmp}}/x.pdf": "exactly one of k, mass, threshold and effect.",
    f"diagram {PAIR} -k 99 -o {{tmp}}/x.pdf": "k is 99, but the wiring of 2 layers x 2 heads has 46 edges",
    f"diagram {PAIR} -k 1 -o {{tmp}}/x.pdf": "is empty: of the 1 edges requested, none lies on a path",
    f"diagram {PAIR} --effect 1.4 -o {{tmp}}/x.pdf": "never explains 1.4 of the effect.",
    f"diagram {PAIR} -k 9 --level heads -o {{tmp}}/x.pdf": "'heads' is not a level",
    f"diagram {PAIR} -k 9 --direction left -o {{tmp}}/x.pdf": "'left' is not a direction: choose from down, up.",
    f"diagram {PAIR} -k 9 --limit 0 -o {{tmp}}/x.pdf": "draws at least one edge, not 0 (--limit).",
    f"diagram {PAIR} -k 9 --width 5 -o {{tmp}}/x.pdf": "at least 72 points wide, not 5 (--width).",
    f"diagram {PAIR} -k 40 --highlight a7.h0 -o {{tmp}}/x.pdf": "has no node 'a7.h0'",
    f"diagram {PAIR} -k 9 --level attention -o {{tmp}}/x.pdf": "name it with --prompt.",
    f"diagram {PAIR} -k 9 --level attention --prompt 9 -o {{tmp}}/x.pdf": "has no prompt 9; its prompts are 0 to 3.",
    f"diagram {PAIR} -k 99 --level head -o {{tmp}}/x.pdf": "k is 99, but there are 4 units at the level head",
    "diagram --runs sparse-ioi other-task -k 9 -o {tmp}/x.pdf": "only runs of one task go into one diagram.",
    "diagram --runs other-task -k 9 --level head -o {tmp}/x.pdf": "has no head scores; its levels are: edge.",
    f"explore {PAIR} -o {{tmp}}/x.pdf": "'pdf' is not a file ending of this figure: choose from html.",
    "explore --runs dense-ioi sparse-ioi -o {tmp}/x.html": "give the sparse run first",
    "explore --runs heads-only -o {tmp}/x.html": "has no edge scores to explore",
}


@pytest.fixture(scope="module")
def store(toy, tmp_path_factory):
    """The toy store, with a run of another task and one without edges."""
    path = tmp_path_factory.mktemp("drawing") / "store"
    shutil.copytree(toy.path, path)
    dense = replace(read_catalog(path).run("dense-ioi"), parts={}, finished=None)
    for record in (
        replace(dense, run="other-task", task="docstring", levels=("edge",)),
        replace(dense, run="heads-only", levels=("head",)),
    ):
        with write_run(path, record) as writer:
            writer.write_wiring(Wiring(record.shape))
    return path


@pytest.mark.parametrize(("call", "message"), CALLS.items(), ids=CALLS)
def test_a_wrong_call_gets_one_sentence_and_writes_nothing(cli, store, tmp_path, call, message):
    command, *rest = shlex.split(call.format(tmp=tmp_path))
    result = cli(command, "--store", store, *rest)
    assert result.status == 2
    assert result.out == ""
    assert message.format(tmp=tmp_path) in result.err
    assert result.err.startswith("wirescope: ")
    assert len(result.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_curve_writes_the_figure_and_the_facts_beside_it(cli, toy, tmp_path, ending):
    out = tmp_path / f"ioi.{ending}"
    result = cli(
        "curve", "--store", toy.path, "--out", out, "--label", "toy=Dense", "--attributed", "--no-random"
    )
    assert (result.status, result.out) == (0, "")
    assert result.err == f"'{out}', and the facts for its caption in '{tmp_path / 'ioi.caption.txt'}'.\n"
    said = (tmp_path / "ioi.caption.txt").read_text()
    assert "Dense: run dense-ioi, 4 prompts; accuracy 0.75, top-1 0.5; logit_diff 2 clean" in said
    assert "Dotted: the share of the total |score|" in said
    assert out.stat().st_size > 1000


def test_curve_takes_one_run_alone(cli, toy, tmp_path):
    out = tmp_path / "one.svg"
    assert cli("curve", "--store", toy.path, "--runs", "dense-ioi", "--level", "head", "-o", out).status == 0
    text = out.read_text()
    assert 'id="curve:dense-ioi"' in text
    assert 'id="bar"' not in text


@pytest.mark.parametrize("ending", ["pdf", "svg", "png", "dot", "tex"])
def test_diagram_writes_the_figure_and_the_facts_beside_it(cli, toy, tmp_path, ending):
    out = tmp_path / f"ioi.{ending}"
    options = ["--slots", "--head-numbers", "--direction", "up", "--highlight", "input->logits", "--no-mlps"]
    result = cli("diagram", "--store", toy.path, *PAIR.split(), "--k", 40, "--out", out, *options)
    assert (result.status, result.out) == (0, "")
    said = (tmp_path / "ioi.caption.txt").read_text()
    assert "layers run upwards" in said
    assert "edges from and to MLPs are not drawn" in said
    assert out.stat().st_size > 1000


def test_diagram_takes_any_number_of_runs_and_every_level(cli, toy, tmp_path):
    one = ["diagram", "--store", toy.path, "--k", 4, "--runs", "dense-ioi"]
    assert cli(*one, "--level", "head", "-o", tmp_path / "heads.dot").status == 0
    assert cli(*one, "--level", "attention", "--prompt", 0, "-o", tmp_path / "arcs.dot").status == 0
    assert (tmp_path / "arcs.dot").read_text().count(" -> ") == 4
    three = ["diagram", "--store", toy.path, "--mass", 0.9, "--runs", "sparse-ioi", "dense-ioi", "sparse-ioi"]
    assert cli(*three, "-o", tmp_path / "three.dot").status == 0
    assert '"3/input"' in (tmp_path / "three.dot").read_text()


def test_explore_writes_one_page(cli, toy, tmp_path):
    out = tmp_path / "page.html"
    result = cli("explore", "--store", toy.path, "--out", out, "--prompts", 2)
    assert (result.status, result.out) == (0, "")
    assert f"'{out}': 0.1 MB; open it in a browser." in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.slow
def test_the_command_that_an_error_names_adds_the_curve(cli, tmp_path):
    call = [
        "extract",
        "--model",
        "tiny",
        "--task",
        "greater-than",
        "--limit",
        3,
        "--store",
        tmp_path / "my store",
    ]
    assert cli(*call, "--no-curves", "--method", "eap", "--level", "edge", "--merge-qkv").status == 0
    curve = [
        "curve",
        "--store",
        tmp_path / "my store",
        "--runs",
        "tiny-greater-than",
        "-o",
        tmp_path / "x.svg",
    ]
    refused = cli(*curve)
    assert refused.status == 2
    command = shlex.split(refused.err.partition("This adds it: ")[2])
    assert command[0] == "wirescope"
    assert cli(*command[1:], "--sizes", "1,10,100").status == 0
    assert cli(*curve).status == 0
    # a level that was not scored becomes a run of its own
    refused = cli(*curve, "--level", "head")
    command = shlex.split(refused.err.partition("This adds it: ")[2])
    assert cli(*command[1:], "--sizes", "1,10").status == 0
    curve[4] = "tiny-greater-than-head"
    assert cli(*curve, "--level", "head").status == 0


@pytest.mark.parametrize("width", [150, 234, 300.5, 468])
@pytest.mark.parametrize("level", ["edge", "head", "attention"])
def test_a_diagram_is_at_most_as_wide_as_is_asked_for(cli, toy, tmp_path, width, level):
    size = ["-k", 40] if level == "edge" else ["-k", 4]
    prompt = ["--prompt", 0] if level == "attention" else []
    label = ["--label", "toy=A model with a name that is longer than the picture is wide"]
    options = [*size, *prompt, *label, "--level", level, "--width", width]
    assert cli("diagram", "-s", toy.path, *PAIR.split(), *options, "-o", tmp_path / "x.pdf").status == 0
    (page,) = PdfReader(tmp_path / "x.pdf").pages
    assert 0.3 * width < float(page.mediabox.width) <= width


def test_curve_is_as_wide_as_is_asked_for(cli, toy, tmp_path):
    assert cli("curve", "-s", toy.path, "--width", 300, "-o", tmp_path / "x.pdf").status == 0
    (page,) = PdfReader(tmp_path / "x.pdf").pages
    assert float(page.mediabox.width) == pytest.approx(300, abs=0.5)


def test_a_published_circuit_alone_has_an_attributed_curve(cli, ioi_store, tmp_path):
    out = tmp_path / "x.svg"
    call = ["curve", "-s", ioi_store, "--runs", "gpt2-small-ioi", "-o", out]
    refused = cli(*call)
    assert refused.status == 2
    assert "it was imported from" in refused.err
    assert cli(*call, "--attributed").status == 0
    text = out.read_text()
    assert 'id="attributed:gpt2-small-ioi"' in text
    assert 'id="curve:gpt2-small-ioi"' not in text
    assert "Share of |score|" in text
    said = (tmp_path / "x.caption.txt").read_text()
    assert "attributed, not measured. No circuit was run." in said
    assert "Scores are of an imported circuit (gpt2-small-ioi" in said
    assert "not known" not in said


def test_the_caption_of_a_published_circuit_says_what_is_known(cli, ioi_store, tmp_path):
    call = ["diagram", "-s", ioi_store, "--runs", "gpt2-small-ioi", "-k", 200, "-o", tmp_path / "x.dot"]
    assert cli(*call).status == 0
    said = (tmp_path / "x.caption.txt").read_text()
    assert "Scores are of an imported circuit (gpt2-small-ioi" in said
    assert "not known" not in said
