"""GPT-2: q, k and v in one projection, [q | k | v] and then by head; weights kept as [in, out]; LayerNorm."""

from functools import partial
from typing import Any

from torch import Tensor

from ..graphs import Shape
from .parts import Block, Parts, Read, layer_norm

MODEL_TYPES = ("gpt2",)


def parts(model: Any) -> Parts:
    """The parts of a GPT2LMHeadModel."""
    config, base = model.config, model.transformer
    heads, d_head = config.n_head, config.n_embd // config.n_head

    def take(letter: int, x: Tensor) -> Tensor:
        return x.unflatten(-1, (3, heads, d_head)).select(-3, letter)

    blocks = tuple(
        Block(
            module=block,
            norm=layer_norm(block.ln_1),
            attention=block.attn,
            reads=tuple(Read(block.attn.c_attn, partial(take, letter)) for letter in range(3)),  # type: ignore[arg-type]
            out=block.attn.c_proj,
            mlp_norm=layer_norm(block.ln_2),
            mlp=block.mlp,
        )
        for block in base.h
    )
    return Parts(
        base=base,
        blocks=blocks,
        norm=layer_norm(base.ln_f),
        unembed=model.lm_head,
        shape=Shape(layers=config.n_layer, heads=heads),
        d_model=config.n_embd,
        d_head=d_head,
        context=config.n_positions,
    )
