"""Random small models of every family, and prompts for them."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from slow import Slow
from transformers import (
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OlmoConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.models.auto import AutoModelForCausalLM
from wirescope.data import Prompt
from wirescope.extract import FAMILIES, Model, find_device
from wirescope.extract.models import prepared, tap_model

SIZE = {
    "vocab_size": 40,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MLP = {"intermediate_size": 48}
SHARED = {"num_key_value_heads": 2}
GATES = [[0.1, -0.2, 0.3, 0.0], [-0.1, 0.0, 0.2, -0.3]]
CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    ),
    "gpt2-deep": GPT2Config(
        vocab_size=40, n_embd=32, n_layer=4, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    ),
    "gpt2-gated": GPT2Config(
        vocab_size=40,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        gate_bias=GATES,
    ),
    "llama": LlamaConfig(**SIZE, **MLP, **SHARED),
    "llama-gated": LlamaConfig(**SIZE, **MLP, **SHARED, gate_bias=GATES),
    "mistral": MistralConfig(**SIZE, **MLP, **SHARED, sliding_window=3),
    "qwen2": Qwen2Config(**SIZE, **MLP, **SHARED),
    "olmo": OlmoConfig(**SIZE, **MLP, clip_qkv=1.5),
    "neox": GPTNeoXConfig(**SIZE, **MLP, max_position_embeddings=32),
    "neox-sequential": GPTNeoXConfig(**SIZE, **MLP, max_position_embeddings=32, use_parallel_residual=False),
}


def new_model(name: str, attention: str = "eager") -> PreTrainedModel:
    """A model whose every weight matters: large random ones, biases and gains included."""
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict())
    config._attn_implementation = attention
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            gain = weight.dim() == 1 and key.endswith("weight")
            weight.copy_(1 + 0.3 * noise if gain else 0.25 * noise)
    return model


def new_tapped(name: str, dtype: torch.dtype = torch.float32) -> Model:
    model = new_model(name).to(dtype)
    return tap_model(prepared(model, name, FAMILIES[model.config.model_type], find_device()))


@pytest.fixture(scope="session", params=list(CONFIGS))
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def make_model() -> Callable[..., PreTrainedModel]:
    return new_model


@pytest.fixture(scope="session")
def make_tapped() -> Callable[..., Model]:
    return new_tapped


@pytest.fixture(scope="session")
def slow_models(make_model):
    made = {}

    def get(name):
        if name not in made:
            made[name] = Slow(make_model(name))
        return made[name]

    return get


@pytest.fixture(scope="session")
def random_prompts(tmp_path_factory) -> Callable[..., Path]:
    """Writes a file of random pairs for the tiny model, as token ids, of different lengths."""

    def write(count: int, *, longest: int, seed: int) -> Path:
        rng = random.Random(seed)
        lines = []
        for _ in range(count):
            clean = [rng.randrange(97) for _ in range(rng.randint(5, longest))]
            corrupted = [token if rng.random() < 0.5 else rng.randrange(97) for token in clean]
            correct, wrong = rng.sample(range(97), 2)
            answers = {"correct_ids": [correct], "wrong_ids": [wrong]}
            lines.append(json.dumps({"clean_ids": clean, "corrupted_ids": corrupted} | answers))
        path = tmp_path_factory.mktemp("prompts") / "many.jsonl"
        path.write_text("\n".join(lines))
        return path

    return write


@pytest.fixture(scope="session")
def tiny() -> Path:
    """A folder with a small GPT-2, prompts for it, and scores computed by another implementation."""
    return Path(__file__).parent / "tiny-gpt2"


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """One tapped model of each kind; tapping leaves no state, so they are shared."""
    return {name: new_tapped(name) for name in CONFIGS}


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Pairs of different lengths, with different common beginnings, and one or two answers."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for length, same in ((6, 1), (6, 4), (4, 0), (7, 2), (6, 1)):
        clean = torch.randint(0, 40, (length,), generator=generator).tolist()
        corrupted = torch.randint(0, 40, (length,), generator=generator).tolist()
        corrupted[:same] = clean[:same]
        made.append(
            Prompt(
                clean_ids=tuple(clean),
                corrupted_ids=tuple(corrupted),
                correct_answers=((1,), (2,)) if length == 7 else ((3,),),
                wrong_answers=((4,), (5,), (6,)) if length == 4 else ((7,),),
            )
        )
    return made
