"""GPT-2: q, k and v in one projection, [q | k | v] and then by head; weights kept as [in, out]; LayerNorm."""

from functools import partial
from typing import Any

from torch import Tensor

from .parts import Block, Parts, Read, layer_norm
from .sizes import Sizes

MODEL_TYPES = ("gpt2",)


def sizes(config: Any) -> Sizes:
    """The sizes in a GPT2Config."""
    return Sizes(
        layers=config.n_layer,
        heads=config.n_head,
        kv_heads=config.n_head,
        d_model=config.n_embd,
        inner=config.n_inner,
        vocabulary=config.vocab_size,
        context=config.n_positions,
    )


def parts(model: Any) -> Parts:
    """The parts of a GPT2LMHeadModel."""
    config, base = model.config, model.transformer
    size = sizes(config)
    heads, d_head = size.heads, size.head_width

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
        shape=size.shape,
        d_model=size.d_model,
        d_head=d_head,
        context=size.context,
    )
