"""GGUF files, converted: the folder's model is the one that the file holds, and its tokenizer comes along."""

import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

LETTERS = [*"abcdefgh", "Ġ", "ab", "Ġa"]
TOKENS = ["<s>", "</s>", *LETTERS, *(f"<{i}>" for i in range(21))]
CONFIG = LlamaConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=1,
    tie_word_embeddings=False,
)
IDS = torch.tensor([[2, 3, 5, 4, 9]])


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture
def write(model, tmp_path):
    """Write the model as a GGUF file, its matrices in a format of GGUF's."""

    def to(kind: gguf.GGMLQuantizationType, architecture: str = "llama") -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        _describe(writer)
        for name, weight in _tensors(model).items():
            if weight.ndim == 2:
                writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return to


def test_the_folder_has_the_models_own_logits_and_its_tokenizer(write, model, cli, tmp_path):
    result = cli("convert", write(gguf.GGMLQuantizationType.F32), "--out", tmp_path / "out")
    assert (result.status, result.out) == (0, "")
    assert (
        result.err == f"'{tmp_path / 'out'}': a model of the family llama, 2 layers x 4 heads, 34 tokens.\n"
    )
    torch.testing.assert_close(_logits(tmp_path / "out"), model(IDS).logits, atol=1e-5, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("ab a", add_special_tokens=False)["input_ids"] == [
        TOKENS.index("ab"),
        TOKENS.index("Ġa"),
    ]


def test_quantised_weights_become_the_numbers_that_they_stand_for(write, model, cli, tmp_path):
    """Q8_0 keeps 8 bits of each number, so the logits are near the model's own, and not the same."""
    kind = gguf.GGMLQuantizationType.Q8_0
    assert cli("convert", write(kind), "--out", tmp_path / "out").status == 0
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    down = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(down, kind), kind)
    assert (weights["model.layers.0.mlp.down_proj.weight"].numpy() == expected).all()
    assert 0 < (_logits(tmp_path / "out") - model(IDS).logits).abs().max() < 0.01


def test_a_family_that_is_not_supported_is_named(write, cli, tmp_path):
    result = cli("convert", write(gguf.GGMLQuantizationType.F32, "mamba"), "--out", tmp_path / "out")
    assert result.status == 2
    assert "mamba" in result.err
    assert len(result.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_what_is_no_gguf_file_is_refused_and_nothing_is_written(cli, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGML and more")
    for file, message in (("model.gguf", "is not a GGUF file"), ("none.gguf", "There is no file")):
        result = cli("convert", tmp_path / file, "--out", tmp_path / "out")
        assert (result.status, message in result.err) == (2, True)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    result = cli("convert", tmp_path / "model.gguf", "--out", tmp_path / "out")
    assert (result.status, "cannot be loaded" in result.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_options_of_state_dicts_are_refused(write, cli, tmp_path):
    path = write(gguf.GGMLQuantizationType.F32)
    result = cli("convert", path, "--out", tmp_path / "out", "--gated")
    assert (result.status, "--gated is for state dicts" in result.err) == (2, True)


def test_without_gguf_the_message_says_what_to_install(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("wirescope.extract.quantised.find_spec", lambda _: None)
    result = cli("convert", tmp_path / "model.gguf", "--out", tmp_path / "out")
    assert (result.status, "pip install 'wirescope[gguf]'" in result.err) == (2, True)


def test_a_disk_that_is_full_is_said_and_nothing_is_left(write, tmp_path):
    path = write(gguf.GGMLQuantizationType.F32)
    (tmp_path / ".out.1.tmp").mkdir()  # of a call that was killed
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    call = f"from wirescope.cli import main; main(['convert', {str(path)!r}, '--out', {str(tmp_path / 'out')!r}])"
    done = subprocess.run([sys.executable, "-c", limited + call], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"Writing '{tmp_path / 'out'}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@torch.no_grad()
def _logits(folder: Path) -> torch.Tensor:
    return AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(CONFIG.rope_parameters["rope_theta"])
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * (len(TOKENS) - 2)])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _tensors(model: LlamaForCausalLM) -> dict[str, object]:
    """The weights under GGUF's names; the rows of q and k lie there in the order of its rotary embedding."""

    def turned(weight: torch.Tensor, heads: int) -> torch.Tensor:
        return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)

    found = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
        "output.weight": model.lm_head.weight,
    }
    for i, layer in enumerate(model.model.layers):
        found |= {
            f"blk.{i}.attn_norm.weight": layer.input_layernorm.weight,
            f"blk.{i}.attn_q.weight": turned(layer.self_attn.q_proj.weight, 4),
            f"blk.{i}.attn_k.weight": turned(layer.self_attn.k_proj.weight, 2),
            f"blk.{i}.attn_v.weight": layer.self_attn.v_proj.weight,
            f"blk.{i}.attn_output.weight": layer.self_attn.o_proj.weight,
            f"blk.{i}.ffn_norm.weight": layer.post_attention_layernorm.weight,
            f"blk.{i}.ffn_gate.weight": layer.mlp.gate_proj.weight,
            f"blk.{i}.ffn_up.weight": layer.mlp.up_proj.weight,
            f"blk.{i}.ffn_down.weight": layer.mlp.down_proj.weight,
        }
    return {name: weight.detach().contiguous().numpy() for name, weight in found.items()}
