"""A TransformerLens-style state dict of a GPT-2 as an ordinary Hugging Face folder.

TransformerLens keeps heads apart: ``blocks.0.attn.W_Q`` is [head, d_model, d_head], W_O [head, d_head, d_model]. A
checkpoint may have the unembedding apart from the embedding, a vocabulary padded beyond the tokenizer's, norms folded
into the weights that follow (no ``ln1.w``), and buffers that are no weights. What a GPT-2 folder cannot hold is
refused: a bias on the unembedding that differs between tokens.

With `gated`, the config says that attention is gated by ``q.k / sqrt(d_head) > 0``: every head's ``gate_bias`` is 0.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from ..data import brief, new_folder
from ..errors import InputError
from .models import quiet_unless_terminal, reason_of, saving
from .saved import is_plain, load_saved

_CONTAINERS = ("state_dict", "model_state_dict", "model")


def convert_state_dict(
    file: Path | str,
    out: Path | str,
    *,
    vocabulary: int | None = None,
    gated: bool = False,
    base: str | None = None,
) -> GPT2Config:
    """Read a state dict, write a GPT-2 folder; with `vocabulary`, tokens beyond it are padding and are cut off."""
    with new_folder(Path(out)) as folder:
        weights = read_state_dict(file)
        config, tensors = to_gpt2(weights, vocabulary, str(file))
        if gated:
            config.gate_bias = [[0.0] * config.n_head for _ in range(config.n_layer)]
        if base is not None:
            config.base_model = base
        model = GPT2LMHeadModel(config)
        quiet_unless_terminal()
        try:
            model.load_state_dict(tensors, strict=True)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
            raise InputError(f"'{file}' has weights that do not fit each other: {reason}.") from error
        with saving(Path(out)):
            model.save_pretrained(folder)
    return config


def read_state_dict(file: Path | str) -> dict[str, Tensor]:
    """The tensors of a ``.pt`` or ``.safetensors``, read without running anything that it contains."""
    path = Path(file)
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = load_saved(path)
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}'.") from error
    except InputError:
        raise
    except Exception as error:  # a broken file can make it fail in any way
        raise InputError(
            f"'{file}' is not a state dict that can be read safely: {reason_of(error)}."
        ) from error
    while isinstance(content, Mapping) and (inner := next((k for k in _CONTAINERS if k in content), None)):
        content = content[inner]
    if not isinstance(content, Mapping):
        raise InputError(f"'{file}' is not a state dict: it holds a {type(content).__name__}.")
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if hollow := next((key for key, value in tensors.items() if not is_plain(value)), None):
        raise InputError(
            f"'{file}' has no numbers for {brief(hollow)} that can be read: save it as a plain tensor, not a sparse, "
            "expanded, quantised or empty one."
        )
    prefix = re.compile(r"^(?:(?:module|model|_orig_mod)\.)+")
    return {prefix.sub("", key): value.float() for key, value in tensors.items()}


def to_gpt2(
    weights: Mapping[str, Tensor], vocabulary: int | None, where: str
) -> tuple[GPT2Config, dict[str, Tensor]]:
    """The config and the tensors of a GPT2LMHeadModel."""

    def get(key: str) -> Tensor:
        if key not in weights:
            raise InputError(f"'{where}' is not a TransformerLens state dict of a GPT-2: it has no {key}.")
        return weights[key]

    embed, positions = get("embed.W_E"), get("pos_embed.W_pos")
    if (w_q := get("blocks.0.attn.W_Q")).dim() != 3 or embed.dim() != 2 or positions.dim() != 2:
        raise InputError(f"'{where}' has weights with too few or too many dimensions for TransformerLens.")
    heads, d_model, d_head = w_q.shape
    layers = 1 + max(int(match[1]) for key in weights if (match := re.match(r"blocks\.(\d+)\.", key)))
    if heads * d_head != d_model:
        raise InputError(
            f"'{where}' has {heads} heads of {d_head} for a width of {d_model}: no GPT-2 is like that."
        )
    size = len(embed) if vocabulary is None else vocabulary
    if not 0 < size <= len(embed):
        raise InputError(
            f"'{where}' has {len(embed)} tokens: a vocabulary of {size} cannot be cut out of it."
        )

    def bias(key: str, *shape: int) -> Tensor:
        return weights.get(key, torch.zeros(shape))

    def norm(ours: str, theirs: str) -> dict[str, Tensor]:
        gain = weights.get(f"{theirs}.w", torch.ones(d_model))
        return {f"{ours}.weight": gain, f"{ours}.bias": bias(f"{theirs}.b", d_model)}

    tensors = {
        "transformer.wte.weight": embed[:size],
        "transformer.wpe.weight": positions,
        "lm_head.weight": get("unembed.W_U").T[:size].contiguous(),
        **norm("transformer.ln_f", "ln_final"),
    }
    for layer in range(layers):
        ours, theirs = f"transformer.h.{layer}", f"blocks.{layer}"
        qkv = [
            get(f"{theirs}.attn.W_{x}").movedim(0, 1).flatten(1) for x in "QKV"
        ]  # [d_model, head * d_head]
        qkv_bias = [bias(f"{theirs}.attn.b_{x}", heads, d_head).flatten() for x in "QKV"]
        w_in, w_out = get(f"{theirs}.mlp.W_in"), get(f"{theirs}.mlp.W_out")
        tensors |= {
            f"{ours}.attn.c_attn.weight": torch.cat(qkv, dim=1),
            f"{ours}.attn.c_attn.bias": torch.cat(qkv_bias),
            f"{ours}.attn.c_proj.weight": get(f"{theirs}.attn.W_O").flatten(0, 1),
            f"{ours}.attn.c_proj.bias": bias(f"{theirs}.attn.b_O", d_model),
            f"{ours}.mlp.c_fc.weight": w_in,
            f"{ours}.mlp.c_fc.bias": bias(f"{theirs}.mlp.b_in", w_in.shape[1]),
            f"{ours}.mlp.c_proj.weight": w_out,
            f"{ours}.mlp.c_proj.bias": bias(f"{theirs}.mlp.b_out", d_model),
            **norm(f"{ours}.ln_1", f"{theirs}.ln1"),
            **norm(f"{ours}.ln_2", f"{theirs}.ln2"),
        }
    unembed_bias = bias("unembed.b_U", len(embed))[:size]
    if unembed_bias.shape != (size,) or (unembed_bias - unembed_bias[0]).abs().max() > 1e-6:
        raise InputError(
            f"'{where}' has a bias on the unembedding (unembed.b_U) that differs between tokens, which a GPT-2 "
            "folder cannot hold: save the model again without folding the last norm's bias (fold_ln=False)."
        )
    config = GPT2Config(
        vocab_size=size,
        n_positions=len(positions),
        n_embd=d_model,
        n_layer=layers,
        n_head=heads,
        n_inner=tensors["transformer.h.0.mlp.c_fc.bias"].shape[0],
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return config, tensors
