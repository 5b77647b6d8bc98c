"""Files that would run code if they were trusted: they never do, and the command says what is wrong."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

TINY = Path(__file__).parents[1] / "extract" / "tiny-gpt2"
CODE = """
from pathlib import Path
Path({ran!r}).touch()
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizer
class Config(GPT2Config):
    model_type = "mine"
class Model(GPT2LMHeadModel):
    config_class = Config
class Tokenizer(PreTrainedTokenizer):
    vocab_size = 97
    def get_vocab(self):
        return {{"a": 0}}
    def _tokenize(self, text):
        return list(text)
    def _convert_token_to_id(self, token):
        return 0
"""


@pytest.fixture
def ran(tmp_path) -> Path:
    """A file that is there as soon as any of the code has run."""
    return tmp_path / "ran"


class Payload:
    """What unpickles by making a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_the_payload_runs_where_it_is_trusted(ran):
    pickle.loads(pickle.dumps(Payload(ran)))
    assert ran.exists()


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(TINY / "model", folder)
    return folder


@pytest.fixture
def refused(cli, model, ran, tmp_path):
    """Extract from the model: refused in one sentence, with no store and nothing run; what it says."""

    def run() -> str:
        store = tmp_path / "store"
        result = cli("extract", "--model", model, "--prompts", TINY / "prompts.jsonl", "--store", store)
        assert result.status == 2
        assert result.out == ""
        (said,) = result.err.splitlines()
        assert said.startswith("wirescope: The model ")
        assert not ran.exists()
        assert not store.exists()
        return said

    return run


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | values))


AUTO_MAP = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}


def test_the_code_of_a_model_is_not_run(model, ran, refused):
    (model / "code.py").write_text(CODE.format(ran=str(ran)))
    change(model / "config.json", model_type="mine", auto_map=AUTO_MAP)
    assert "it needs code of its own, which is never run" in refused()


def test_the_code_of_a_model_of_a_known_family_is_not_run(cli, model, ran, tmp_path):
    """The family's own code does for it."""
    (model / "code.py").write_text(CODE.format(ran=str(ran)))
    change(model / "config.json", auto_map=AUTO_MAP)
    words = ("extract", "--model", model, "--prompts", TINY / "prompts.jsonl", "--no-curves")
    assert cli(*words, "--run", "a", "--store", tmp_path / "ours").status == 0
    assert not ran.exists()


def test_the_code_of_a_tokenizer_is_not_run(cli, model, ran, refused):
    (model / "code.py").write_text(CODE.format(ran=str(ran)))
    change(
        model / "tokenizer_config.json",
        tokenizer_class="Tokenizer",
        auto_map={"AutoTokenizer": ["code.Tokenizer", None]},
    )
    refused()
    result = cli("tasks", "ioi", "--model", model)
    assert result.status == 2
    assert len(result.err.splitlines()) == 1
    assert not ran.exists()


def test_pickled_weights_are_loaded_and_cannot_run_code(cli, model, ran, refused, tmp_path):
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")
    words = ("extract", "--model", model, "--prompts", TINY / "prompts.jsonl", "--no-curves")
    assert cli(*words, "--store", tmp_path / "plain").status == 0
    torch.save(weights | {"transformer.wte.weight": Payload(ran)}, model / "pytorch_model.bin")
    assert "a pickle of more than tensors and plain values, which could run code" in refused()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(ran), protocol=2))
    refused()


@pytest.mark.parametrize("form", ["archive", "legacy", "pickle", "nested"])
def test_a_pt_file_runs_nothing_when_it_is_imported_or_converted(cli, tmp_path, ran, form):
    file = tmp_path / "evil.pt"
    content = {"state_dict": {"embed.W_E": Payload(ran)}, "cfg": Payload(ran)}
    if form == "pickle":
        file.write_bytes(pickle.dumps(Payload(ran), protocol=2))
    elif form == "nested":
        torch.save({"cfg": pickle.dumps(Payload(ran)), "edges_scores": [content]}, file)
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "archive")
    for words in (
        ("import", file, "--store", tmp_path / "store"),
        ("convert", file, "--out", tmp_path / "converted"),
    ):
        result = cli(*words)
        assert result.status == 2
        assert result.err.startswith(f"wirescope: '{file}' is not a ")
        assert len(result.err.splitlines()) == 1
    assert not ran.exists()
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "converted").exists()
