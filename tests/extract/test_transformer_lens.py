"""State dicts of TransformerLens, converted: the folder's model is the model that was saved.

The model is a random GPT-2. Here it is written in the form of TransformerLens and, for gated attention,
computed head by head, slowly.
"""

import json
import math
import pickle
from pathlib import Path

import pytest
import torch
import wirescope.extract as extracting  # which also gives transformers the attention 'wirescope'
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.utils.logging import enable_progress_bar

LAYERS, HEADS, D_MODEL, TOKENS, CONTEXT = 2, 3, 12, 23, 10
D_HEAD = D_MODEL // HEADS
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [22, 0, 7, 7, 21, 8, 2, 10]])

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    """All weights random, norms and biases too, and an unembedding of its own."""
    config = GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=D_MODEL,
        vocab_size=TOKENS,
        n_positions=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4 + (".ln_" in name))
    return model


@pytest.fixture
def state(model) -> State:
    """The model as TransformerLens would save it."""
    base = model.transformer
    state = {
        "embed.W_E": base.wte.weight,
        "pos_embed.W_pos": base.wpe.weight,
        "ln_final.w": base.ln_f.weight,
        "ln_final.b": base.ln_f.bias,
        "unembed.W_U": model.lm_head.weight.T,  # [d_model, token]
        "unembed.b_U": torch.zeros(TOKENS),
    }
    for layer, block in enumerate(base.h):
        here = f"blocks.{layer}"
        weights = block.attn.c_attn.weight.chunk(3, dim=1)  # [d_model, head * d_head]
        biases = block.attn.c_attn.bias.chunk(3)
        for letter, weight, bias in zip("QKV", weights, biases, strict=True):
            state[f"{here}.attn.W_{letter}"] = weight.unflatten(1, (HEADS, D_HEAD)).movedim(1, 0)
            state[f"{here}.attn.b_{letter}"] = bias.unflatten(0, (HEADS, D_HEAD))
        state |= {
            f"{here}.attn.W_O": block.attn.c_proj.weight.unflatten(0, (HEADS, D_HEAD)),
            f"{here}.attn.b_O": block.attn.c_proj.bias,
            f"{here}.attn.mask": torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril(),
            f"{here}.attn.IGNORE": torch.tensor(-torch.inf),
            f"{here}.ln1.w": block.ln_1.weight,
            f"{here}.ln1.b": block.ln_1.bias,
            f"{here}.ln2.w": block.ln_2.weight,
            f"{here}.ln2.b": block.ln_2.bias,
            f"{here}.mlp.W_in": block.mlp.c_fc.weight,
            f"{here}.mlp.b_in": block.mlp.c_fc.bias,
            f"{here}.mlp.W_out": block.mlp.c_proj.weight,
            f"{here}.mlp.b_out": block.mlp.c_proj.bias,
        }
    return {key: tensor.detach().clone() for key, tensor in state.items()}


@pytest.fixture
def convert(cli, tmp_path):
    """Save what is given, convert it on the command line, and return what `cli` returns."""

    def run(content: object, *options: object):
        torch.save(content, tmp_path / "lens.pt")
        return cli("convert", tmp_path / "lens.pt", "--out", tmp_path / "out", *options)

    return run


def loaded(folder: Path, **options: object) -> GPT2LMHeadModel:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values())
    return model.eval()


def logits(model: GPT2LMHeadModel) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_folder_has_the_models_own_logits(convert, state, model, tmp_path):
    assert convert(state).status == 0
    assert_same(logits(loaded(tmp_path / "out")), logits(model))


def test_one_sentence_says_what_the_folder_holds(convert, state, tmp_path):
    enable_progress_bar()  # which is not for a file that standard error goes to
    result = convert(state)
    assert result.out == ""
    assert result.err == f"'{tmp_path / 'out'}': a model of the family gpt2, 2 layers x 3 heads, 23 tokens.\n"


def test_an_unembedding_that_is_the_embedding_may_be(convert, state, model, tmp_path):
    state["unembed.W_U"] = state["embed.W_E"].T.contiguous()
    assert convert(state).status == 0
    found = loaded(tmp_path / "out")
    assert_same(found.lm_head.weight, model.transformer.wte.weight)
    assert_same(found.transformer.wte.weight, model.transformer.wte.weight)
    states = model.transformer(IDS).last_hidden_state
    assert_same(logits(found), states @ model.transformer.wte.weight.T)


def test_an_unembedding_of_its_own_stays_apart(convert, state, model, tmp_path):
    assert convert(state).status == 0
    found = loaded(tmp_path / "out")
    assert_same(found.lm_head.weight, model.lm_head.weight)
    assert_same(found.transformer.wte.weight, model.transformer.wte.weight)
    assert not torch.equal(found.lm_head.weight, found.transformer.wte.weight)


def test_a_padded_vocabulary_is_cut(convert, state, model, tmp_path):
    padding = 5
    state["embed.W_E"] = functional.pad(state["embed.W_E"], (0, 0, 0, padding), value=9.0)
    state["unembed.W_U"] = functional.pad(state["unembed.W_U"], (0, padding), value=9.0)
    state["unembed.b_U"] = functional.pad(state["unembed.b_U"], (0, padding), value=-torch.inf)
    result = convert(state, "--vocabulary", TOKENS)
    assert result.status == 0
    assert "23 tokens" in result.err
    found = loaded(tmp_path / "out")
    assert found.config.vocab_size == TOKENS
    assert_same(logits(found), logits(model))


@pytest.mark.parametrize("size", [TOKENS + 1, 0, -1])
def test_a_vocabulary_that_cannot_be_cut_out_is_refused(convert, state, tmp_path, size):
    result = convert(state, "--vocabulary", size)
    assert result.status == 2
    assert "has 23 tokens" in result.err
    assert f"vocabulary of {size} " in result.err
    assert not (tmp_path / "out").exists()


WRAPPED = {
    "module": lambda state: {f"module.{key}": value for key, value in state.items()},
    "two prefixes": lambda state: {f"_orig_mod.module.{key}": value for key, value in state.items()},
    "state_dict": lambda state: {"state_dict": state, "epoch": 3, "config": {"n_heads": 3}},
    "model_state_dict": lambda state: {"step": 7, "model_state_dict": state},
    "nested": lambda state: {"model": {"state_dict": {f"model.{k}": v for k, v in state.items()}}},
    "beside a tensor": lambda state: {"step": torch.tensor(7), "state_dict": state},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_what_training_wraps_around_a_state_dict_is_taken_off(convert, state, model, tmp_path, wrap):
    assert convert(wrap(state)).status == 0
    assert_same(logits(loaded(tmp_path / "out")), logits(model))


def test_safetensors_are_read_too(cli, state, model, tmp_path):
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, tmp_path / "lens.safetensors")
    assert cli("convert", tmp_path / "lens.safetensors", "--out", tmp_path / "out").status == 0
    assert_same(logits(loaded(tmp_path / "out")), logits(model))


def test_weights_of_another_precision_become_float32(convert, state, tmp_path):
    halves = {key: tensor.bfloat16() for key, tensor in state.items()}
    assert convert(halves).status == 0
    found = loaded(tmp_path / "out")
    assert found.dtype == torch.float32
    assert torch.equal(found.transformer.wpe.weight, halves["pos_embed.W_pos"].float())


def test_norms_that_are_folded_into_the_weights_are_plain(convert, state, model, tmp_path):
    """Gain and bias of a norm are part of what reads from it; the last one's bias is 0 here."""
    state["ln_final.b"].zero_()
    model = loaded_with(model, ln_f_bias=0.0)
    for layer in range(LAYERS):
        here = f"blocks.{layer}"
        gain, bias = state.pop(f"{here}.ln1.w"), state.pop(f"{here}.ln1.b")
        for letter in "QKV":
            weight = state[f"{here}.attn.W_{letter}"]
            state[f"{here}.attn.b_{letter}"] += bias @ weight
            state[f"{here}.attn.W_{letter}"] = gain[:, None] * weight
        gain, bias = state.pop(f"{here}.ln2.w"), state.pop(f"{here}.ln2.b")
        state[f"{here}.mlp.b_in"] += bias @ state[f"{here}.mlp.W_in"]
        state[f"{here}.mlp.W_in"] *= gain[:, None]
    state["unembed.W_U"] *= state.pop("ln_final.w")[:, None]
    del state["ln_final.b"], state["unembed.b_U"]
    assert convert(state).status == 0
    found = loaded(tmp_path / "out")
    assert torch.equal(found.transformer.h[1].ln_1.weight, torch.ones(D_MODEL))
    assert_same(logits(found), logits(model))


def loaded_with(model: GPT2LMHeadModel, *, ln_f_bias: float) -> GPT2LMHeadModel:
    other = GPT2LMHeadModel(model.config).eval().requires_grad_(False)
    other.load_state_dict(model.state_dict())
    other.transformer.ln_f.bias.fill_(ln_f_bias)
    return other


def gated_logits(model: GPT2LMHeadModel, *, gated: bool = True) -> tuple[Tensor, float]:
    """Logits of a GPT-2 with gated attention, by head and query, and the share of gates that are open."""
    base = model.transformer
    hidden = base.wte(IDS) + base.wpe(torch.arange(IDS.shape[1]))  # [prompt, position, d_model]
    gates = []
    for block in base.h:
        q, k, v = block.attn.c_attn(block.ln_1(hidden)).chunk(3, dim=-1)
        z = torch.zeros_like(hidden)
        for prompt in range(len(IDS)):
            for head in range(HEADS):
                own = slice(head * D_HEAD, (head + 1) * D_HEAD)
                for i in range(IDS.shape[1]):
                    scores = k[prompt, : i + 1, own] @ q[prompt, i, own] / math.sqrt(D_HEAD)  # [key]
                    gate = (scores > 0).float() if gated else torch.ones(i + 1)
                    z[prompt, i, own] = (scores.softmax(0) * gate) @ v[prompt, : i + 1, own]
                    gates.append(gate)
        hidden = hidden + block.attn.c_proj(z)
        hidden = hidden + block.mlp(block.ln_2(hidden))
    return model.lm_head(base.ln_f(hidden)), torch.cat(gates).mean().item()


def test_gated_attention_drops_pairs_whose_logit_is_not_above_0(convert, state, model, tmp_path):
    assert_same(gated_logits(model, gated=False)[0], logits(model))
    expected, open_gates = gated_logits(model)
    assert 0.2 < open_gates < 0.8
    assert (expected - logits(model)).abs().max() > 0.1  # the gates matter
    result = convert(state, "--gated")
    assert result.status == 0
    assert "a gated model of the family gpt2, 2 layers x 3 heads" in result.err
    assert_same(logits(loaded(tmp_path / "out", attn_implementation="wirescope")), expected)


def test_a_gated_folder_says_so_and_what_it_came_from(convert, state, tmp_path):
    assert convert(state, "--gated", "--base", "gpt2").status == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["gate_bias"] == [[0.0] * HEADS] * LAYERS
    assert config["base_model"] == "gpt2"


def test_a_folder_that_is_not_gated_does_not_say_so(convert, state, model, tmp_path):
    assert convert(state).status == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not {"gate_bias", "base_model"} & config.keys()
    assert_same(logits(loaded(tmp_path / "out", attn_implementation="wirescope")), logits(model))


def test_a_converted_folder_can_be_extracted_from(convert, cli, state, tmp_path):
    assert convert(state, "--gated").status == 0
    pair = {"clean_ids": [1, 2], "corrupted_ids": [1, 3], "correct_ids": [2], "wrong_ids": [3]}
    (tmp_path / "ids.jsonl").write_text(json.dumps(pair))
    call = ("extract", "--model", tmp_path / "out", "--prompts", tmp_path / "ids.jsonl", "--run", "r")
    assert cli(*call, "--store", tmp_path / "store").status == 0


def test_a_bias_that_is_the_same_for_all_tokens_changes_nothing(convert, state, model, tmp_path):
    state["unembed.b_U"] += 3.0
    assert convert(state).status == 0
    found, expected = (logits(m).log_softmax(-1) for m in (loaded(tmp_path / "out"), model))
    assert_same(found, expected)


def test_the_command_is_the_function(state, model, tmp_path):
    torch.save(state, tmp_path / "lens.pt")
    config = extracting.convert(tmp_path / "lens.pt", tmp_path / "out", gated=True)
    assert (config.n_layer, config.n_head, config.n_positions) == (LAYERS, HEADS, CONTEXT)
    assert_same(logits(loaded(tmp_path / "out")), logits(model))  # transformers' own attention knows no gates


def refused(result, out: Path) -> str:
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("wirescope: ")
    assert len(result.err.splitlines()) == 1
    assert not out.exists()
    return result.err


def test_a_bias_that_differs_between_tokens_is_refused(convert, state, tmp_path):
    state["unembed.b_U"][7] = 0.5
    said = refused(convert(state), tmp_path / "out")
    assert "unembed.b_U" in said
    assert "differs between tokens" in said


@pytest.mark.parametrize(
    "key",
    [
        "embed.W_E",
        "pos_embed.W_pos",
        "unembed.W_U",
        "blocks.0.attn.W_Q",
        "blocks.1.attn.W_O",
        "blocks.1.mlp.W_in",
    ],
)
def test_a_missing_weight_is_named(convert, state, tmp_path, key):
    del state[key]
    said = refused(convert(state), tmp_path / "out")
    assert f"'{tmp_path / 'lens.pt'}'" in said
    assert f"it has no {key}." in said


UNFIT = {
    "blocks.0.attn.W_Q": (HEADS, D_MODEL),
    "blocks.1.attn.W_K": (HEADS + 1, D_MODEL, D_HEAD),
    "blocks.0.attn.b_V": (HEADS, D_HEAD + 1),
    "blocks.1.mlp.W_out": (D_MODEL, 4 * D_MODEL),
    "pos_embed.W_pos": (CONTEXT, D_MODEL + 1),
    "ln_final.w": (1, D_MODEL),
    "unembed.W_U": (TOKENS, D_MODEL),
    "unembed.b_U": (TOKENS - 1,),
}


@pytest.mark.parametrize(("key", "shape"), UNFIT.items(), ids=UNFIT)
def test_weights_that_do_not_fit_each_other_are_refused(convert, state, tmp_path, key, shape):
    state[key] = torch.zeros(shape)
    assert "lens.pt'" in refused(convert(state), tmp_path / "out")


@pytest.mark.parametrize("content", [[1, 2], {"weights": 3}, {}, torch.zeros(3)], ids=str)
def test_what_is_no_state_dict_is_refused(convert, tmp_path, content):
    assert f"'{tmp_path / 'lens.pt'}' is not a" in refused(convert(content), tmp_path / "out")


@pytest.mark.parametrize("name", ["lens.pt", "lens.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a state dict", bytes(100)], ids=len)
def test_a_file_that_cannot_be_read_is_refused(cli, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    said = refused(cli("convert", tmp_path / name, "--out", tmp_path / "out"), tmp_path / "out")
    assert f"'{tmp_path / name}'" in said


def test_a_file_that_is_not_there_is_named(cli, tmp_path):
    for name in ("none.pt", "none.safetensors"):
        said = refused(cli("convert", tmp_path / name, "--out", tmp_path / "out"), tmp_path / "out")
        assert f"There is no file '{tmp_path / name}'." in said


def test_a_folder_with_something_in_it_is_left_alone(convert, state, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    result = convert(state)
    assert result.status == 2
    assert result.err.startswith(f"wirescope: '{tmp_path / 'out'}' is there already")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_a_file_in_the_place_of_the_folder_is_left_alone(convert, state, tmp_path):
    (tmp_path / "out").write_text("mine")
    result = convert(state)
    assert result.status == 2
    assert result.err.startswith(f"wirescope: '{tmp_path / 'out'}' is there already")
    assert (tmp_path / "out").read_text() == "mine"


def test_an_empty_folder_is_filled(convert, state, model, tmp_path):
    (tmp_path / "out").mkdir()
    assert convert(state).status == 0
    assert_same(logits(loaded(tmp_path / "out")), logits(model))


class Mine:
    """Code that a pickle runs where it is read: it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", ["torch", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(cli, state, tmp_path, protocol):
    trap, file = tmp_path / "ran", tmp_path / "lens.pt"
    content = state | {"mine": Mine(trap)}
    if protocol == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content, protocol=2))
    said = refused(cli("convert", file, "--out", tmp_path / "out"), tmp_path / "out")
    assert f"'{file}' is not a state dict that can be read safely" in said
    assert not trap.exists()
    torch.load(file, weights_only=False) if protocol == "torch" else pickle.loads(file.read_bytes())
    assert trap.exists()  # it would have
