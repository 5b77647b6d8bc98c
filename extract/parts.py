"""The parts of a transformer that Wirescope taps: the one interface between it and a model family.

A family is a module with `MODEL_TYPES`, the Hugging Face model types that it covers, a function
``sizes(config) -> Sizes`` that finds the sizes of a model that is not built yet, and a function
``parts(model) -> Parts`` that finds these parts in a model. Nothing else in Wirescope knows where a family
keeps its weights, or how they are laid out. What the parts have in common:

- a block reads the residual stream through a norm: ``q = W_Q norm(x) + b_Q``, likewise k, v and the MLP;
- a block writes by addition: heads as ``z_h W_O^h``, summed, plus a bias that belongs to no head; the MLP as it is.

A family whose blocks do otherwise (a norm on the sum of the heads, say) does not fit, and is not supported.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..graphs import Shape


@dataclass(frozen=True)
class Norm:
    """A norm: ``gain * x_hat + bias``, where x_hat is x, centred or not, over sqrt(mean square + eps)."""

    module: nn.Module
    eps: float
    centred: bool
    """LayerNorm centres, RMSNorm does not."""
    gain: Tensor | None = None
    bias: Tensor | None = None

    def normalised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x_hat [..., d] and 1/sigma [..., 1] in float32."""
        x = x.float()
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        inverse = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return x * inverse, inverse


@dataclass(frozen=True)
class Read:
    """Where a layer's queries, keys or values come from: a projection, and a view of its output."""

    module: nn.Module
    take: Callable[[Tensor], Tensor]
    """[..., output of the projection] -> [..., head, d_head], a view: of activations, gradients and weights."""

    @property
    def weight(self) -> Tensor:
        """[head, d_head, d_model], a view; key/value heads where heads share them."""
        return self.take(matrix(self.module)).movedim(0, -1)


@dataclass(frozen=True)
class Block:
    """One layer."""

    module: nn.Module
    norm: Norm
    """Before the attention."""
    attention: nn.Module
    reads: tuple[Read, Read, Read]
    """q, k, v."""
    out: nn.Module
    """The output projection of the attention; its input is z."""
    mlp_norm: Norm
    mlp: nn.Module


@dataclass(frozen=True)
class Parts:
    """A model in parts."""

    base: nn.Module
    """From token ids to the last norm's output."""
    blocks: tuple[Block, ...]
    norm: Norm
    """Before the unembedding."""
    unembed: nn.Module
    shape: Shape
    d_model: int
    d_head: int
    context: int
    """The longest prompt that the model takes, in tokens."""
    clips: bool = False
    """Whether attention changes the output of its projections in place."""

    @property
    def home(self) -> torch.device:
        """Where everything is that is in no block."""
        return matrix(self.unembed).device

    def device(self, layer: int) -> torch.device:
        """Where a block is; after the last one comes the unembedding, at home."""
        return matrix(self.blocks[layer].out).device if layer < len(self.blocks) else self.home

    def widened(self, output: Tensor) -> Tensor:
        """What a projection gives, with a copy of shared keys or values for each head."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        if kv_heads == heads or output.shape[-1] != kv_heads * self.d_head:
            return output
        return output.unflatten(-1, (kv_heads, -1)).repeat_interleave(heads // kv_heads, dim=-2).flatten(-2)

    def out_weight(self, layer: int) -> Tensor:
        """W_O of a layer as [head, d_head, d_model], a view."""
        return matrix(self.blocks[layer].out).unflatten(0, (self.shape.heads, self.d_head))


def matrix(projection: nn.Module) -> Tensor:
    """The weight of a projection as [in, out], a view: some families keep it so, a Linear keeps [out, in]."""
    weight: Tensor = projection.weight  # type: ignore[assignment]
    return weight.T if isinstance(projection, nn.Linear) else weight


def layer_norm(module: nn.Module) -> Norm:
    """A torch LayerNorm, with gain and bias."""
    assert isinstance(module, nn.LayerNorm)
    return Norm(module, module.eps, centred=True, gain=module.weight, bias=module.bias)
