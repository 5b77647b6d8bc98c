"""Bad input to `extract` gets one clear sentence, exit status 2, and nothing half-written.

The model is a random GPT-2 of two layers and two heads, with a tokenizer that knows a few words. What
transformers and the hub log counts as said on standard error: on a terminal it is read there.
"""

import io
import json
import logging
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)
from wirescope.data import read_catalog
from wirescope.errors import InputError
from wirescope.extract import FAMILIES, load_vocabulary
from wirescope.extract import extract as score

WORDS = ["<unk>", "When", "Mary", "John", "Anna", "Paul", "Tom", "and", "gave", "a", "drink", "to"]
TOKENS, CONTEXT = 20, 16

TEXT = {
    "clean": "When Mary and John gave a drink to",
    "corrupted": "When Tom and Anna gave a drink to",
    "correct": [" Mary"],
    "wrong": [" John"],
}
IDS = {"clean_ids": [1, 2, 3], "corrupted_ids": [1, 4, 5], "correct_ids": [2], "wrong_ids": [3]}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder of models: `words` has a tokenizer, `bare` has none, `bloom` is not supported."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=8,
        vocab_size=TOKENS,
        n_positions=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "bare")
    shutil.copytree(folder / "bare", folder / "words")
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder / "words")
    bloom = BloomConfig(
        n_layer=1, n_head=2, hidden_size=8, vocab_size=TOKENS, bos_token_id=None, eos_token_id=None
    )
    BloomForCausalLM(bloom).save_pretrained(folder / "bloom")
    return folder


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    """Prompts that nothing is wrong with."""
    for name, pair in {"text": TEXT, "ids": IDS}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(pair))
    return {name: tmp_path / f"{name}.jsonl" for name in ("text", "ids")}


@pytest.fixture
def extract(cli, tmp_path, models, files):
    """Run `extract` into the store that `store` is, with the prompts `ids` unless the call says otherwise."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]

    def run(call: str, **places: object):
        places |= {"models": models, "tmp": tmp_path, **files}
        arguments = shlex.split(call.format(**places))
        if "--prompts" not in arguments and "--task" not in arguments:
            arguments += ["--prompts", str(files["ids"])]
        result = cli("extract", "--store", tmp_path / "store", *arguments)
        return result._replace(err=heard.getvalue() + result.err)

    for logger in loggers:
        logger.addHandler(handler)
    yield run
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture
def refused(extract, tmp_path):
    """Run `extract`, see that it refuses, and return what it says."""

    def run(call: str, **places: object) -> str:
        result = extract(call, **places)
        assert result.status == 2
        assert result.out == ""
        assert result.err.startswith("wirescope: ")
        assert len(result.err.splitlines()) == 1
        assert not (tmp_path / "store").exists()
        return result.err

    return run


def test_what_is_broken_below_works_whole(extract):
    for call in ("--model {models}/words --prompts {text}", "--model {models}/bare"):
        result = extract(call)
        assert result.status == 0
        assert result.out == ""


UNFIT = {
    "Line 2 of '{file}' has 8 tokens clean and 6 corrupted": TEXT
    | {"corrupted": "When Tom and Anna gave to"},
    "Line 2 of '{file}' has 2 tokens clean and 3 corrupted": IDS | {"clean_ids": [1, 2]},
    "Line 2 of '{file}' has 'John' among the correct answers and among the wrong": TEXT
    | {"correct": [" Mary", " John"]},
    "Line 2 of '{file}' has '3' among the correct answers and among the wrong": IDS | {"correct_ids": [2, 3]},
    "Line 2 of '{file}' is empty": TEXT | {"clean": "", "corrupted": " "},
    "Line 2 of '{file}' has 17 tokens, more than the 16": TEXT
    | {"clean": "When " * 17, "corrupted": "to " * 17},
    "Line 2 of '{file}' has 18 tokens, more than the 16": IDS
    | {"clean_ids": [1] * 18, "corrupted_ids": [2] * 18},
    "Line 2 of '{file}' has the token id 20 in clean_ids; the model knows 0 to 19": IDS
    | {"clean_ids": [1, 20, 3]},
    "Line 2 of '{file}' has the token id -1 in corrupted_ids": IDS | {"corrupted_ids": [1, 2, -1]},
    "Line 2 of '{file}' has the token id 21 in correct_ids": IDS | {"correct_ids": [21]},
    "Line 2 of '{file}' has the token id 1" + "0" * 30 + " in wrong_ids": IDS | {"wrong_ids": [10**30]},
    "'clean' in line 2 of '{file}' is 3": TEXT | {"clean": 3},
    "Line 2 of '{file}' has no wrong answer, and the metric logit_diff needs one: add it as 'wrong_ids'": IDS
    | {"wrong_ids": []},
    "Line 2 of '{file}' has no correct answer, and the metric logit_diff needs one: add it as 'correct'": {
        key: value for key, value in TEXT.items() if key != "correct"
    },
    "Line 2 of '{file}' has 15 tokens and an answer of 3, more than the 16": IDS
    | {"clean_ids": [1] * 15, "corrupted_ids": [2] * 15, "wrong_ids": [[1, 2, 3]]},
    "Line 2 of '{file}' is not a pair of prompts": {"clean": "When"},
    "Line 2 of '{file}' is not JSON": "{broken",
}


@pytest.mark.parametrize(("message", "pair"), UNFIT.items(), ids=UNFIT)
def test_a_prompt_that_cannot_be_scored_is_named(refused, tmp_path, message, pair):
    good = IDS if not isinstance(pair, dict) or "clean_ids" in pair else TEXT
    line = pair if isinstance(pair, str) else json.dumps(pair)
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{json.dumps(good)}\n{line}\n")
    model = "bare" if good is IDS else "words"
    said = refused(f"--model {{models}}/{model} --prompts {{file}}", file=file)
    assert message.format(file=file) in said
    assert "ine 2 of" in said


def test_all_that_is_wrong_with_a_file_is_said_at_once(extract, tmp_path):
    """What is no pair, and what the tokenizer says of others."""
    lines = [
        json.dumps(TEXT),
        "{",
        json.dumps(TEXT | {"corrupted": "When"}),
        "",
        json.dumps(TEXT | {"wrong": []}),
    ]
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    result = extract("--model {models}/words --prompts {tmp}/bad.jsonl")
    assert (result.status, result.out) == (2, "")
    said = result.err.splitlines()
    assert said[0] == "wirescope: 3 of 4 pairs of prompts cannot be used:"
    places = [f"Line {line} of '{tmp_path}/bad.jsonl'" for line in (2, 3, 5)]
    assert [line.partition("' ")[0] + "'" for line in said[1:]] == places
    assert not (tmp_path / "store").exists()


def test_a_model_that_is_not_there_leaves_what_is_wrong_with_the_file(refused, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{")
    assert "Line 1 of" in refused("--model {tmp}/nowhere --prompts {tmp}/bad.jsonl")


@pytest.mark.parametrize("metric", ["logit_diff", "prob_diff"])
def test_several_texts_have_no_attention_edges_in_common(refused, tmp_path, metric):
    (tmp_path / "long.jsonl").write_text(json.dumps(IDS | {"wrong_ids": [[3, 4]]}))
    said = refused(
        f"--model {{models}}/bare --prompts {{tmp}}/long.jsonl --level attention --metric {metric}"
    )
    assert "choose --first-token, or leave the level out" in said


def test_first_tokens_that_are_right_and_wrong_are_refused(refused, tmp_path):
    (tmp_path / "same.jsonl").write_text(json.dumps(IDS | {"correct_ids": [[3, 4]], "wrong_ids": [[3, 5]]}))
    said = refused("--model {models}/bare --prompts {tmp}/same.jsonl --first-token")
    assert "correct answers and wrong ones with the same first token, '3': leave out --first-token" in said


def test_text_that_no_file_could_hold_is_refused(refused, tmp_path):
    """JSON can spell half a character, which is no text and no tokenizer takes."""
    (tmp_path / "half.jsonl").write_text(json.dumps(TEXT | {"clean": "When \ud800"}))
    said = refused("--model {models}/words --prompts {tmp}/half.jsonl")
    assert "ine 1 of" in said


@pytest.mark.parametrize("content", ["", "\n \n"], ids=ascii)
def test_a_file_without_prompts_is_refused(refused, tmp_path, content):
    (tmp_path / "empty.jsonl").write_text(content)
    said = refused("--model {models}/bare --prompts {tmp}/empty.jsonl")
    assert f"'{tmp_path}/empty.jsonl' has no prompts" in said


CALLS = {
    "--model {models}/bare --prompts {tmp}/none.jsonl": "There is no file '{tmp}/none.jsonl' with prompts.",
    "--model {models}/bare --prompts {tmp}": "'{tmp}' cannot be read as prompts",
    "--model {models}/bare --prompts {text}": "Line 1 of '{text}' is text, but the model has no tokenizer",
    "--model {models}/bare --task ioi": "The task 'ioi' is made of text, but the model has no tokenizer",
    "--model {models}/words --task iio": "There is no task 'iio'; the tasks are greater-than, ioi, ",
    "--model {models}/words --task ioo": "Did you mean 'ioi'?",
    "--model {models}/bare --task ioi --prompts {ids}": "either --task NAME or --prompts FILE",
    "--model ./nowhere": "There is no model folder './nowhere'.",
    "--model {tmp}/nowhere": "There is no model folder '{tmp}/nowhere'.",
    "--model {ids}": "There is no model folder '{ids}'.",
    "--model {models}": "The folder '{models}' is not a model: it has no config.json.",
    "--model {models}/bloom": (
        f"is of the family 'bloom', which is not supported; supported are {', '.join(FAMILIES)}."
    ),
    "--model {models}/bare --level heads": (
        "'heads' is not a level: choose from edge, head, attention. Did you mean 'head'?"
    ),
    "--model {models}/bare --level edge --level nods": "'nods' is not a level: choose from edge, head",
    "--model {models}/bare --method eap_ig": (
        "'eap_ig' is not a method: choose from eap-ig, eap, exact. Did you mean 'eap-ig'?"
    ),
    "--model {models}/bare --metric logit_dif": (
        "'logit_dif' is not a metric: choose from logit_diff, prob_diff, kl. Did you mean 'logit_diff'?"
    ),
    "--model {models}/bare --ablation corupt": ": choose from corrupt, zero, mean. Did you mean 'corrupt'?",
    "--model {models}/bare --dtype float61": "'float61' is not a dtype: choose from auto, float32, bfloat16",
    "--model {models}/bare --dtype flaot32": "Did you mean 'float32'?",
    "--model {models}/bare --device nowhere": "The device 'nowhere' cannot be used here",
    "--model {models}/bare --device meta": "The device 'meta' cannot be used here",
    "--model {models}/bare --ablation mean --level edge --level attention": (
        "The ablation 'mean' is not defined at the level 'attention', where each prompt has edges of its own"
    ),
    "--model {models}/bare --metric kl --method eap": (
        "The metric 'kl' is smallest at the clean run, so its gradient there is zero, and so is every score"
    ),
    "--model {models}/bare --limit 0": "--limit 0 leaves no prompts.",
    "--model {models}/bare --limit -3": "--limit -3 leaves no prompts.",
    "--model {models}/bare --steps 0": "at least one step, not 0.",
    "--model {models}/bare --batch-size 0": "at least one prompt, not 0.",
    "--model {models}/bare --run a/b": "'a/b' cannot be the name of a run",
    "--model {models}/bare --run ''": "'' cannot be the name of a run",
    "--model {models}/bare --store {tmp}/a*b": "The path '{tmp}/a*b' reads as a pattern",
    "--model {models}/bare --store {ids}": "Cannot write '{ids}",
}


@pytest.mark.parametrize(("call", "message"), CALLS.items(), ids=CALLS)
def test_a_wrong_call_gets_one_sentence(refused, tmp_path, models, files, call, message):
    before = sorted(tmp_path.iterdir())
    said = refused(call)
    assert message.format(models=models, tmp=tmp_path, **files) in said
    assert sorted(tmp_path.iterdir()) == before


def test_what_to_score_on_must_be_said(cli, models, tmp_path):
    result = cli("extract", "--model", models / "bare", "--store", tmp_path / "store")
    assert result.status == 2
    assert (
        result.err == "wirescope: Give either --task NAME or --prompts FILE: what the model is scored on.\n"
    )
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["gpt2", "nobody/no-such-model"])
def test_a_hub_name_without_a_network_says_that_a_folder_works(refused, monkeypatch, tmp_path, name):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    said = refused(f"--model {name}")
    assert f"The model '{name}' cannot be had from the hub" in said
    assert "no network" in said
    assert "A local folder works as well: --model FOLDER." in said


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def lacking_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut_short(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])


def with_an_empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def with_a_pickle_that_is_none(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"abc")


def with_config(change: str | dict[str, object]) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(
            change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change)
        )

    return broken


def with_a_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


BROKEN = {
    "no weights": (without_weights, "has no weights: it needs a model.safetensors."),
    "a weight missing": (
        lacking_a_weight,
        "lacks 1 of its weights, transformer.h.1.mlp.c_fc.weight among them",
    ),
    "weights cut short": (cut_short, "cannot be loaded"),
    "weights empty": (with_an_empty_file, "cannot be loaded"),
    "a pickle that is none": (with_a_pickle_that_is_none, "cannot be loaded"),
    "config not JSON": (with_config("{"), "cannot be loaded"),
    "config empty": (with_config("{}"), "cannot be loaded"),
    "an unknown family": (with_config({"model_type": "gpt3"}), "gpt3"),
    "another width": (with_config({"n_embd": 16}), "cannot be loaded"),
    "a layer too many": (with_config({"n_layer": 3}), "lacks 12 of its weights, transformer.h.2."),
    "layers that are no number": (with_config({"n_layer": "two"}), "cannot be loaded"),
    "heads that do not divide the width": (
        with_config({"n_head": 3}),
        "says 3 heads, which do not divide its width of 8",
    ),
    "too few gates": (with_config({"gate_bias": [[0.0, 0.0]]}), "gate_bias"),
    "a broken tokenizer": (with_a_broken_tokenizer, "cannot be loaded"),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN.values(), ids=BROKEN)
def test_a_model_folder_that_is_broken_is_named(refused, models, tmp_path, broken, message):
    folder = tmp_path / "model"
    shutil.copytree(models / "words", folder)
    broken(folder)
    said = refused("--model {tmp}/model")
    assert f"'{folder}'" in said
    assert message in said


def contents(store: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory) -> Path:
    """A store with a run that is called mine, and the folder of its prompts."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "ids.jsonl").write_text(json.dumps(IDS))
    score(model=str(models / "bare"), prompts=folder / "ids.jsonl", store=folder / "store", run="mine")
    return folder / "store"


@pytest.fixture
def mine(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ("--method eap", "not the same: method, steps, integration_rule)"),
        ("--metric prob_diff", "not the same: metric)"),
        ("--steps 3", "not the same: steps)"),
        ("--level head", "not the same: levels)"),
        ("--merge-qkv", "not the same: shape)"),
        ("--dtype bfloat16", "dtype"),
        ("--prompts {tmp}/other/ids.jsonl", "not the same: prompts_hash)"),
        ("--model {models}/words", "not the same: model"),
    ],
)
def test_a_name_that_another_call_has_is_refused_and_its_run_is_left_alone(
    extract, cli, mine, tmp_path, changed, difference
):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ids.jsonl").write_text(json.dumps(IDS | {"wrong_ids": [4]}))
    before = contents(mine)
    result = extract(f"--model {{models}}/bare --run mine {changed}")
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("wirescope: ")
    assert len(result.err.splitlines()) == 1
    assert "has a run 'mine' of another call already" in result.err
    assert difference in result.err
    assert contents(mine) == before
    assert read_catalog(mine).run("mine").finished is not None
    assert cli("top", "--store", mine, "--run", "mine", "--k", 46).status == 0


def test_the_same_call_again_is_no_other_call(extract, mine):
    before = contents(mine)
    again = extract("--model {models}/bare --run mine --batch-size 7")
    assert again.status == 0
    assert "already, from the same call; nothing was written." in again.err
    assert contents(mine) == before


@pytest.mark.parametrize("call", ["--limit 0", "--prompts {text}", "--metric kl --method eap"])
def test_a_failed_call_leaves_a_store_that_is_there_untouched(extract, mine, call):
    before = contents(mine)
    assert extract(f"--model {{models}}/bare --run other {call}").status == 2
    assert contents(mine) == before
    assert {folder.name for folder in (mine / "runs").iterdir()} == {"run=mine"}


@pytest.mark.parametrize("method", ["eap-ig", "eap", "exact"])
def test_prompts_whose_clean_and_corrupted_are_the_same_are_scored_0_and_named(extract, tmp_path, method):
    same = IDS | {"corrupted_ids": IDS["clean_ids"]}
    lines = (json.dumps(pair) for pair in (IDS, same, IDS, same))
    (tmp_path / "same.jsonl").write_text("\n".join(lines))
    call = f"--model {{models}}/bare --prompts {{tmp}}/same.jsonl --run r --method {method}"
    result = extract(f"{call} --level edge --level head --level attention")
    assert result.status == 0
    assert result.out == ""
    warning = result.err.splitlines()[-1]
    assert warning.startswith("wirescope: ")
    assert "2 of 4 prompts (1, 3)" in warning
    assert "explained effect is undefined" in warning
    for table in ("edge_scores", "head_scores", "attention_scores"):
        (file,) = (tmp_path / "store" / table / "run=r").iterdir()
        rows = pq.read_table(file, columns=["prompt_id", "score"]).to_pydict()
        scores = {
            prompt: [s for p, s in zip(*rows.values(), strict=True) if p == prompt] for prompt in range(4)
        }
        assert {*scores[1], *scores[3]} == {0.0}
        assert any(scores[0])
        assert scores[0] == pytest.approx(scores[2], abs=1e-6)


def test_a_folder_called_like_a_model_of_the_package_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, _ = (load_vocabulary(name) for name in ("tiny", "tiny-sparse"))
    assert own.encode is not None
    (tmp_path / "tiny").mkdir()
    with pytest.raises(
        InputError, match=r"'tiny' is a model of the package and a folder here: write \./tiny"
    ):
        load_vocabulary("tiny")
    with pytest.raises(InputError, match=r"The folder './tiny' is not a model"):
        load_vocabulary("./tiny")
