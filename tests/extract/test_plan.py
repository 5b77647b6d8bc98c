"""The plan of an extraction against the memory that the extraction takes, and what the command says of it."""

import re
from dataclasses import replace

import pytest
import torch
from conftest import SIZE
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig
from wirescope.data import Prompt, pair_lines, parse_bytes
from wirescope.errors import InputError
from wirescope.extract import (
    FAMILIES,
    Settings,
    extract,
    extraction,
    find_device,
    load_model,
    plan_extraction,
    planning,
)
from wirescope.extract.edges import EdgeScorer
from wirescope.extract.ledger import Ledger
from wirescope.extract.models import load_sketch, prepared, sketch, tap_model
from wirescope.extract.plan import make_plan
from wirescope.graphs import Wiring

TOKENS = {"bos_token_id": 0, "eos_token_id": 0}
WIDE = GPT2Config(vocab_size=100, n_layer=4, n_head=6, n_embd=192, n_positions=64, **TOKENS)
SHARED = LlamaConfig(
    **SIZE | {"hidden_size": 128, "vocab_size": 100}, intermediate_size=256, num_key_value_heads=2
)
LEVELS = ("edge", "head", "attention")
CASES = {
    "eap": (WIDE, 8, 16, Settings(method="eap", curves=False)),
    "eap-ig and curves at all levels": (WIDE, 6, 12, Settings(levels=LEVELS, steps=3, sizes=(10, 60))),
    "mean ablation": (SHARED, 12, 24, Settings(levels=("edge", "head"), ablation="mean", sizes=(5,))),
    "bfloat16, long prompts": (SHARED, 4, 60, Settings(levels=("edge", "attention"), curves=False)),
    "several tokens": (WIDE, 6, 12, Settings(levels=("edge", "head"), steps=3, sizes=(10, 60))),
    "several tokens, mean": (SHARED, 12, 12, Settings(ablation="mean", method="eap", sizes=(5, 60))),
    "several tokens, exact": (
        SHARED,
        2,
        8,
        Settings(method="exact", levels=("edge", "head"), curves=False, batch_size=16),
    ),
    "exact": (SHARED, 2, 8, Settings(method="exact", levels=LEVELS, curves=False, batch_size=32)),
}


def some_prompts(count, tokens):
    generator = torch.Generator().manual_seed(1)
    clean, corrupted = torch.randint(0, 100, (2, count, tokens), generator=generator).tolist()
    return [
        Prompt(clean_ids=tuple(a), corrupted_ids=tuple(b), correct_answers=((3,),), wrong_answers=((4,),))
        for a, b in zip(clean, corrupted, strict=True)
    ]


def write_prompts(prompts, path):
    path.write_bytes(pair_lines(prompts))
    return path


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_what_an_extraction_takes_or_little_more(case, tmp_path, monkeypatch):
    config, count, tokens, settings = CASES[case]
    dtype = torch.bfloat16 if "bfloat16" in case else torch.float32
    prompts = some_prompts(count, tokens)
    if "several tokens" in case:
        prompts[1:] = [replace(p, correct_answers=((3, 5, 6),), wrong_answers=((4, 7),)) for p in prompts[1:]]
    family = FAMILIES[config.model_type]
    made = make_plan(sketch(config, "sketch", dtype, family), prompts, settings)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    loaded = tap_model(prepared(model, "random", family, find_device()))
    monkeypatch.setattr(extraction, "load_model", lambda *_, **__: loaded)
    file = write_prompts(prompts, tmp_path / "prompts.jsonl")
    with Ledger([find_device()]) as ledger:
        extract(model="random", prompts=file, store=tmp_path / "s", settings=settings)
    above = max(made.peaks) - sum(made.weights)
    assert ledger.peak <= above <= 1.5 * ledger.peak
    weights = {id(weight): weight.nbytes for weight in model.parameters()}
    assert sum(made.weights) == sum(weights.values())


def test_the_terms_are_those_of_the_formulas():
    """What the module says that they come to, for prompts that have nothing in common."""
    model = sketch(WIDE, "sketch", torch.float32, FAMILIES["gpt2"])
    made = make_plan(model, some_prompts(8, 16), Settings(method="eap", curves=False), accelerator=True)
    (scoring,) = made.phases
    rows, layers, heads, d_head, d, steps = 8 * 16, 4, 6, 32, 192, 1
    assert scoring.terms["deltas"] == 4 * rows * (d + layers * (heads * d_head + d))
    slopes = 4 * rows * layers * ((3 * heads * d_head + d) + steps * (2 * d + 3 * heads))
    assert scoring.terms["slopes"] == pytest.approx(
        slopes, rel=0.1
    )  # the last layer's MLP is at one position
    scorer = EdgeScorer(model.parts, Wiring(model.shape))
    workspace = 4 * min(rows, scorer._chunk) * d * (len(scorer._wiring.sources) + scorer._slots)
    assert scoring.terms["workspace"] == pytest.approx(workspace, rel=0.1)


def test_a_ledger_counts_storages_once_and_forgets_what_is_freed():
    with Ledger([find_device()]) as ledger:
        a = torch.zeros(1000)
        kept = a[10:20].view(2, 5)
        b = torch.ones(500)
        assert ledger.peak == 6000
        del a, b
        ledger.begin()
        assert ledger.peak == 4000  # a view keeps all of it
        del kept
        ledger.begin()
        assert ledger.peak == 0


def test_a_plan_is_on_standard_output_and_nothing_is_written(tmp_path, cli, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    command = (
        "extract",
        "-m",
        "tiny",
        "-t",
        "ioi",
        "-s",
        tmp_path / "s",
        "--level",
        "edge",
        "--level",
        "head",
    )
    command += ("--method", "eap")
    result = cli(*command, "--plan", "--memory", "8MB", "--tflops", 2)
    assert result.status == 0
    assert not (tmp_path / "s").exists()
    table = [re.split(r"\s{2,}", line) for line in result.out.splitlines()]
    assert table[0] == ["memory", "scoring", "edge circuits", "head circuits"]
    assert [row[0] for row in table[2:]][0::8] == ["weights", "other"]
    assert table[-1][0] == "all"
    assert "6 layers x 8 heads, 3,628 edges" in result.err
    assert "100 prompts of 14 to 18 tokens" in result.err
    assert re.search(r"It does not fit 8.0 MB; with --batch-size [124] it does", result.err)
    assert "at 2 TFLOP/s" in result.err
    assert cli(*command, "--plan", "--memory", "1MB").err.rstrip().endswith("not even one at a time.")
    assert cli(*command, "--plan", "--memory", "80GB").err.rstrip().endswith("It fits 80.0 GB.")


def test_a_plan_for_two_devices_that_are_not_here(tmp_path, cli):
    command = ("extract", "-m", "tiny", "-t", "ioi", "-s", tmp_path / "s", "--plan", "--dtype", "bfloat16")
    result = cli(*command, "--device-map", "auto", "--devices", 2, "--memory", "24GB")
    assert result.status == 0
    *_, first, second = result.out.splitlines()
    assert first.startswith("on device 0, 3 blocks")
    assert second.startswith("on device 1, 3 blocks")
    assert "It fits 2 devices with 24.0 GB each." in result.err


def test_a_device_that_has_no_block_has_its_weights_only():
    made = plan_extraction(model="tiny", task="ioi", limit=2, device_map="auto", devices=8).plan
    empty = [device for device, blocks in enumerate(made.blocks) if not blocks]
    assert empty
    assert all(made.on(device, phase) == made.weights[device] for device in empty for phase in made.phases)


def test_memory_is_planned_for_the_device_that_is_named():
    """An accelerator that is imagined takes the checkpoint's own dtype; a device by name does as it would do."""
    imagined, here = (
        plan_extraction(model="tiny", task="ioi", limit=2, memory=10**9, device=device).plan
        for device in ("auto", "cpu")
    )
    assert (imagined.dtype, here.dtype) == ("float16", "float32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--memory", "24GB"), "are for --plan"),
        (("--plan", "--memory", "much"), "'much' is no amount of memory: write a number"),
        (("--plan", "--devices", "2"), "--devices is for --device-map"),
        (("--plan", "--device-map", "auto"), "say with --devices"),
        (("--plan", "--task", "no"), "There is no task 'no'"),
        (("--plan", "--device-map", "auto", "--devices", "2", "--device", "cpu"), "leave out --device cpu"),
    ],
)
def test_what_a_plan_cannot_be_made_of_is_refused(tmp_path, cli, options, message):
    result = cli("extract", "-m", "tiny", "-t", "ioi", "-s", tmp_path / "s", *options)
    assert result.status == 2
    assert message in result.err


def test_a_folder_without_weights_can_be_planned_for(tiny, tmp_path):
    (tmp_path / "config.json").write_bytes((tiny / "model" / "config.json").read_bytes())
    planned = plan_extraction(model=str(tmp_path), prompts=tiny / "prompts.jsonl")
    real = load_model(str(tiny / "model"), device=find_device())
    assert (planned.plan.shape, planned.plan.edges) == (real.shape, 262)
    assert (planned.memory, planned.largest) == (None, None)


def test_a_sketch_has_the_dtype_of_the_checkpoint_where_an_accelerator_would():
    assert load_sketch("tiny").dtype_name == "float32"
    assert load_sketch("tiny", accelerator=True).dtype_name == "float16"
    assert load_sketch("tiny", accelerator=True, dtype="bfloat16").dtype_name == "bfloat16"


class Notes(extraction.Deaf):
    def __init__(self):
        self.said = []

    def note(self, message):
        self.said.append(message)


@pytest.mark.parametrize(("free", "size"), [(10**12, None), (14 * 10**6, 8), (1000, 1)])
def test_a_batch_starts_as_large_as_the_plan_says_that_it_fits(tiny, tmp_path, monkeypatch, free, size):
    """As on an accelerator with so many bytes free."""
    monkeypatch.setattr(planning, "free_memory", lambda device: free)
    sizes, scored = [], extraction.score

    def score(job, settings):
        sizes.append(settings.batch_size)
        return scored(job, settings)

    monkeypatch.setattr(extraction, "score", score)
    notes = Notes()
    extract(
        model="tiny", task="ioi", limit=20, store=tmp_path, settings=Settings(curves=False), listener=notes
    )
    assert sizes == [size]
    assert [f"(--batch-size {size})" in note for note in notes.said if "Accuracy" not in note] == (
        [True] if size else []
    )


def test_sizes_of_memory():
    assert parse_bytes("24GB") == parse_bytes("24g") == 24 * 10**9
    assert parse_bytes("80 GiB") == 80 * 2**30
    for text in ("", "GB", "-1GB", "0GB", "24XB"):
        with pytest.raises(InputError, match="is no amount of memory"):
            parse_bytes(text)
