"""GPT-NeoX and Pythia: attention and MLP side by side (or not), q, k and v interleaved by head, LayerNorm.

Rotary embeddings turn a part of each head only; they come after the projections and need no care here.
"""

from functools import partial
from typing import Any

from torch import Tensor

from .parts import Block, Parts, Read, layer_norm
from .sizes import Sizes

MODEL_TYPES = ("gpt_neox",)


def sizes(config: Any) -> Sizes:
    """The sizes in a GPTNeoXConfig."""
    return Sizes(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        d_model=config.hidden_size,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        parallel=config.use_parallel_residual,
    )


def parts(model: Any) -> Parts:
    """The parts of a GPTNeoXForCausalLM."""
    config, base = model.config, model.gpt_neox
    size = sizes(config)
    heads, d_head = size.heads, size.head_width

    def take(letter: int, x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, 3, d_head)).select(-2, letter)

    blocks = tuple(
        Block(
            module=layer,
            norm=layer_norm(layer.input_layernorm),
            attention=layer.attention,
            reads=tuple(
                Read(layer.attention.query_key_value, partial(take, letter))
                for letter in range(3)  # type: ignore[arg-type]
            ),
            out=layer.attention.dense,
            mlp_norm=layer_norm(layer.post_attention_layernorm),
            mlp=layer.mlp,
        )
        for layer in base.layers
    )
    return Parts(
        base=base,
        blocks=blocks,
        norm=layer_norm(base.final_layer_norm),
        unembed=model.get_output_embeddings(),
        shape=size.shape,
        d_model=size.d_model,
        d_head=d_head,
        context=size.context,
    )
