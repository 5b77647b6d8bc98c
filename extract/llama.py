"""Llama and what shares its architecture: separate q, k and v, key/value heads shared by groups of heads, RMSNorm.

Mistral adds a sliding window, Qwen2 biases on q, k and v; neither changes where the parts are.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .parts import Block, Norm, Parts, Read
from .sizes import Sizes

MODEL_TYPES = ("llama", "mistral", "qwen2")


def sizes(config: Any) -> Sizes:
    """The sizes in a config of these models, and in those of models laid out like Llama."""
    return Sizes(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        d_model=config.hidden_size,
        d_head=getattr(config, "head_dim", None),
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
    )


def parts(model: Any) -> Parts:
    """The parts of a LlamaForCausalLM, MistralForCausalLM or Qwen2ForCausalLM."""
    return llama_like(model, _rms_norm)


def llama_like(model: Any, norm: Callable[[Any], Norm]) -> Parts:
    """The parts of a model laid out like Llama, whatever its norm."""
    config, base = model.config, model.model
    size = sizes(config)
    d_head = base.layers[0].self_attn.head_dim

    def take(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, d_head))

    blocks = tuple(
        Block(
            module=layer,
            norm=norm(layer.input_layernorm),
            attention=layer.self_attn,
            reads=(
                Read(layer.self_attn.q_proj, take),
                Read(layer.self_attn.k_proj, take),
                Read(layer.self_attn.v_proj, take),
            ),
            out=layer.self_attn.o_proj,
            mlp_norm=norm(layer.post_attention_layernorm),
            mlp=layer.mlp,
        )
        for layer in base.layers
    )
    return Parts(
        base=base,
        blocks=blocks,
        norm=norm(base.norm),
        unembed=model.lm_head,
        shape=size.shape,
        d_model=size.d_model,
        d_head=d_head,
        context=size.context,
        clips=getattr(config, "clip_qkv", None) is not None,
    )


def _rms_norm(module: nn.Module) -> Norm:
    return Norm(module, module.variance_epsilon, centred=False, gain=module.weight)  # type: ignore[arg-type]
