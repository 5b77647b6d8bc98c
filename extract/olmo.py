"""OLMo: laid out like Llama, with a LayerNorm that has no weights; q, k and v may be clipped."""

from typing import Any

from torch import nn

from .llama import llama_like, sizes
from .parts import Norm, Parts

__all__ = ["MODEL_TYPES", "parts", "sizes"]

MODEL_TYPES = ("olmo",)
_EPS = 1e-5  # OlmoLayerNorm has it in its code, not in the config


def parts(model: Any) -> Parts:
    """The parts of an OlmoForCausalLM."""
    return llama_like(model, _plain_layer_norm)


def _plain_layer_norm(module: nn.Module) -> Norm:
    return Norm(module, _EPS, centred=True)
