"""A twin as its difference from its dense model: the twin again, to a fraction of what changed."""

import json
import zipfile

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from wirescope.errors import InputError
from wirescope.extract import convert, write_difference

BIASES = [[0.5, -1.0], [2.0, 0.0]]
CONFIG = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    tie_word_embeddings=True,
)


def changed(model, scale: float = 0.01):
    """Another model, whose projections and norms are a little different; the rest is the same."""
    torch.manual_seed(1)
    twin = LlamaForCausalLM(CONFIG)
    twin.load_state_dict(model.state_dict())
    for name, weight in twin.named_parameters():
        if "embed" not in name:
            weight.data += scale * torch.randn_like(weight)
    twin.config.gate_bias = BIASES
    return twin


@pytest.fixture
def pair(tmp_path):
    torch.manual_seed(0)
    dense = LlamaForCausalLM(CONFIG)
    twin = changed(dense)
    dense.save_pretrained(tmp_path / "dense")
    twin.save_pretrained(tmp_path / "twin")
    return dense, twin


def test_the_twin_comes_back_within_half_a_step(pair, tmp_path):
    dense, twin = pair
    size = write_difference(tmp_path / "twin", tmp_path / "dense", tmp_path / "twin.npz")
    assert size == (tmp_path / "twin.npz").stat().st_size
    config = convert(tmp_path / "twin.npz", tmp_path / "again", base=str(tmp_path / "dense"))
    assert config.gate_bias == BIASES
    written = json.loads((tmp_path / "again/config.json").read_text())
    assert (written["gate_bias"], written["base_model"]) == (BIASES, str(tmp_path / "dense"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").state_dict()
    before, wanted = dense.state_dict(), twin.state_dict()
    for name, weight in again.items():
        steps = (wanted[name] - before[name]).abs().amax(-1, keepdim=True) / 7
        assert ((weight - wanted[name]).abs() <= 0.5001 * steps + 1e-6).all(), name
    assert any(not torch.equal(again[name], before[name]) for name in again)


def test_tied_embeddings_that_differ_come_back_as_well(pair, tmp_path):
    _, twin = pair
    twin.model.embed_tokens.weight.data += 0.1
    twin.save_pretrained(tmp_path / "twin")
    write_difference(tmp_path / "twin", tmp_path / "dense", tmp_path / "twin.npz")
    assert "lm_head.weight" not in np.load(tmp_path / "twin.npz").files
    convert(tmp_path / "twin.npz", tmp_path / "again", base=str(tmp_path / "dense"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    torch.testing.assert_close(again.lm_head.weight, twin.lm_head.weight, atol=1e-5, rtol=0)


def test_weights_that_are_tied_in_one_alone_have_no_difference(pair, tmp_path):
    dense, _ = pair
    untied = LlamaForCausalLM(LlamaConfig(**(CONFIG.to_dict() | {"tie_word_embeddings": False})))
    untied.load_state_dict(dense.state_dict())
    untied.save_pretrained(tmp_path / "untied")
    for one, other in (("untied", "dense"), ("dense", "untied")):
        with pytest.raises(InputError, match="one alone has tied weights"):
            write_difference(tmp_path / one, tmp_path / other, tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


def test_it_is_made_for_one_dense_model_alone(pair, tmp_path, cli):
    write_difference(tmp_path / "twin", tmp_path / "dense", tmp_path / "twin.npz")
    result = cli("convert", tmp_path / "twin.npz", "--base", tmp_path / "twin", "--out", tmp_path / "out")
    assert (result.status, "a difference from other weights" in result.err) == (2, True)
    result = cli("convert", tmp_path / "twin.npz", "--out", tmp_path / "out")
    assert (result.status, "name that with --base" in result.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_what_is_no_difference_is_refused(pair, tmp_path):
    base = str(tmp_path / "dense")
    (tmp_path / "bad.npz").write_bytes(b"PK but no archive")
    np.savez(tmp_path / "objects.npz", config=np.array([{}], dtype=object))
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    np.savez(tmp_path / "more.npz", config=np.frombuffer(b'{"auto_map": "x.py"}', np.uint8))
    np.save(tmp_path / "array", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("config", "{}")
        archive.writestr("model.norm.weight", "raw")
        archive.writestr("model.norm.weight.step", "raw")
    for name in ("bad", "objects", "other", "more", "array", "raw"):
        with pytest.raises(InputError, match="is no difference between models"):
            convert(tmp_path / f"{name}.npz", tmp_path / "out", base=base)
    with pytest.raises(InputError, match="There is no file"):
        convert(tmp_path / "none.npz", tmp_path / "out", base=base)
    assert not (tmp_path / "out").exists()


NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {NORM: np.array(["a"] * 16)},
            "'model.norm.weight' is not whole numbers of one byte with one step a row",
        ),
        ({NORM: np.zeros(16, np.float32)}, "'model.norm.weight' is not whole numbers"),
        ({NORM + ".step": np.zeros((16, 1), np.float32)}, "'model.norm.weight' is not whole numbers"),
        ({NORM + ".step": np.zeros(1, np.float64)}, "'model.norm.weight' is not whole numbers"),
        ({NORM + ".step": np.array([np.nan], np.float32)}, "'model.norm.weight' is not whole numbers"),
        ({NORM + ".step": np.array("a")}, "'model.norm.weight' is not whole numbers"),
        ({"other.step": np.zeros(1, np.float32)}, "its numbers or steps are missing"),
        ({EMBEDDING: np.zeros((50, 16), np.int8)}, "its numbers or steps are missing"),
        (
            {"gate_bias": "hello"},
            "gate_bias in its config does not have one number for each of its 2 x 2 heads",
        ),
        ({"gate_bias": [[1.0]]}, "gate_bias in its config does not have one number"),
        ({"gate_bias": [[0, 10**400], [0, 0]]}, "gate_bias in its config does not have one number"),
        ({"known_names": 5}, "its config says something else"),
        ({"known_names": ["Mary", 5]}, "its config says something else"),
        ({"known_names": None}, "its config says something else"),
        ({"crc32": []}, "a difference from other weights"),
    ],
)
def test_a_difference_with_something_wrong_in_it_is_refused(pair, tmp_path, cli, changes, said):
    write_difference(tmp_path / "twin", tmp_path / "dense", tmp_path / "twin.npz")
    arrays = dict(np.load(tmp_path / "twin.npz"))
    config = json.loads(arrays["config"].tobytes())
    for name, value in changes.items():
        (arrays if isinstance(value, np.ndarray) else config)[name] = value
    arrays["config"] = np.frombuffer(json.dumps(config).encode(), np.uint8)
    np.savez(tmp_path / "twin.npz", **arrays)
    result = cli("convert", tmp_path / "twin.npz", "--base", tmp_path / "dense", "--out", tmp_path / "out")
    assert (result.status, said in result.err, len(result.err.splitlines())) == (2, True, 1), result.err
    assert not (tmp_path / "out").exists()


def test_an_archive_larger_inside_than_outside_is_refused_unread(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("wirescope.extract.difference._MOST", 1_000)
    np.savez_compressed(tmp_path / "large.npz", config=np.zeros(10_000, np.uint8))
    with pytest.raises(InputError, match="larger inside"):
        convert(tmp_path / "large.npz", tmp_path / "out", base=str(tmp_path / "dense"))


def test_models_of_two_shapes_have_no_difference(pair, tmp_path):
    LlamaForCausalLM(LlamaConfig(**(CONFIG.to_dict() | {"vocab_size": 51}))).save_pretrained(
        tmp_path / "other"
    )
    with pytest.raises(InputError, match="different shapes"):
        write_difference(tmp_path / "other", tmp_path / "dense", tmp_path / "x.npz")
