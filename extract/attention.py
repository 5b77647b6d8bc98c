"""The attention function that Wirescope puts into a model, the same for every family.

    z_i = sum_j  p_ij g_ij v_j        p = softmax over j <= i of q_i.k_j * scaling,  g = 1

It is registered with transformers under the name `NAME`. Differences from transformers' own: it keeps what the
tape asks for, it takes keys and values of the positions before the first one from the tape, and it expects as many
key/value heads as heads (`Taps` repeats shared ones before the rotary embedding, so that each head's own copy can
be told apart). A *gated* model has ``gate_bias`` [layer][head] in its config, and g is whether the logit
``q_i.k_j * scaling + bias`` is above 0; while it is trained, `Gates` say what g is. In a circuit of attention edges,
messages p_ij g_ij v_j that are not kept are replaced.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from .gates import FirstBiases, Gates

NAME = "wirescope"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - causal masks are made here
    *,
    scaling: float,
    sliding_window: int | None = None,
    tape: Any = None,
    gates: Gates | FirstBiases | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values [prompt, head, position, d_head] to z [prompt, position, head, d_head]."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    if key.shape[1] < query.shape[1]:  # without taps, as in an ordinary forward of the model
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    if tape is not None:
        key, value = tape.with_prefix(layer, key, value)
    gate_bias = getattr(module.config, "gate_bias", None)
    mask = _causal(query, key, sliding_window)
    if isinstance(gates, Gates):
        allowed = _full_mask(query, key) if mask is None else mask
        return gates(layer, query, key, value, allowed, scaling).transpose(1, 2), None
    plain = tape is None or (tape.attention is None and tape.pairs is None)
    if gate_bias is None and gates is None and plain:
        z = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None and query.shape[2] > 1, scale=scaling
        )
        return z.transpose(1, 2), None
    logits = query @ key.transpose(-1, -2) * scaling  # [prompt, head, query, key]
    allowed = _full_mask(query, key) if mask is None else mask
    pattern = logits.masked_fill(~allowed, -torch.inf).softmax(-1, dtype=torch.float32).to(value.dtype)
    gate = None
    if gates is not None:
        gate = gates(layer, logits, allowed)
    elif gate_bias is not None:
        bias = torch.tensor(gate_bias[layer], dtype=logits.dtype, device=logits.device)
        gate = (logits + bias[:, None, None] > 0).to(pattern.dtype)
    if tape is not None and tape.attention is not None:
        tape.attention[layer] = (pattern.detach(), None if gate is None else gate.detach(), value.detach())
    weights = pattern if gate is None else pattern * gate
    if tape is None or tape.pairs is None:
        return (weights @ value).transpose(1, 2), None
    kept, others = tape.pairs(layer)
    z = (weights * kept) @ value
    if others is not None:
        other_weights, other_value = others
        z += (other_weights * ~kept) @ other_value
    return z.transpose(1, 2), None


def _causal(query: Tensor, key: Tensor, window: int | None) -> Tensor | None:
    """Which keys each query sees, [query, key]; None where it is the plain triangle that kernels know of."""
    queries, keys = query.shape[2], key.shape[2]
    if queries == keys and (window is None or window >= keys):
        return None
    mask = _full_mask(query, key)
    if window is not None:
        mask &= ~mask.new_ones(mask.shape).tril(keys - queries - window)
    return mask


def _full_mask(query: Tensor, key: Tensor) -> Tensor:
    queries, keys = query.shape[2], key.shape[2]
    return torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)


AttentionInterface.register(NAME, attend)
