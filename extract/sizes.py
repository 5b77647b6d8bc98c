"""What a config says of a model's size, and whether it can be one, before anything is built.

A config is a file of others: building what it asks for may take forever, or all memory. A family says in ``sizes``
where its configs have these numbers; here they are compared with what any model has.
"""

import sys
from dataclasses import dataclass, fields
from typing import Any

from ..data import brief
from ..errors import InputError
from ..graphs import Shape

_MOST = {
    "layers": 1_000,
    "heads": 10_000,
    "kv_heads": 10_000,
    "d_model": 1 << 20,
    "d_head": 1 << 16,
    "inner": 1 << 24,
    "vocabulary": 1 << 24,
    "context": 1 << 31,
}
"""More than any model has."""
_EDGES, _WEIGHTS = 1 << 29, 10**13


@dataclass(frozen=True)
class Sizes:
    """The numbers of a config; until they are checked, they are whatever stands there."""

    layers: int
    heads: int
    kv_heads: int
    d_model: int
    vocabulary: int
    context: int
    inner: int | None = None
    """Of the MLP. None: four times d_model."""
    d_head: int | None = None
    """None: a share of d_model, which must come out even."""
    parallel: bool = False

    @property
    def shape(self) -> Shape:
        """Of the wiring."""
        return Shape(self.layers, self.heads, self.kv_heads, parallel=self.parallel)

    @property
    def head_width(self) -> int:
        """d_head, whichever way it is said."""
        return self.d_head or self.d_model // self.heads

    @property
    def weights(self) -> int:
        """About how many there are."""
        attention = 2 * self.d_model * self.head_width * (self.heads + self.kv_heads)
        mlp = 2 * self.d_model * (self.inner or 4 * self.d_model)
        return self.layers * (attention + mlp) + self.vocabulary * self.d_model


def check_sizes(name: str, sizes: Sizes) -> Sizes:
    """Refuse what no model has, in a sentence."""
    wrong = f"The model '{name}' cannot be built: its config says"
    for size in fields(sizes):
        value, most = getattr(sizes, size.name), _MOST.get(size.name)
        if most is None or (value is None and size.default is None):
            continue
        if type(value) is not int or not 0 < value <= most:
            raise InputError(
                f"{wrong} {brief(value)} for its {size.name}, which should be a whole number from 1 to {most:,}."
            )
    if not isinstance(sizes.parallel, bool):
        raise InputError(
            f"{wrong} {brief(sizes.parallel)} for whether its layers are parallel, not true or false."
        )
    if sizes.d_head is None and sizes.d_model % sizes.heads:
        raise InputError(f"{wrong} {sizes.heads} heads, which do not divide its width of {sizes.d_model}.")
    if sizes.heads % sizes.kv_heads:
        raise InputError(
            f"{wrong} {sizes.heads} heads, which cannot share {sizes.kv_heads} key/value heads evenly."
        )
    if sizes.shape.n_edges > _EDGES:
        raise InputError(
            f"{wrong} {sizes.shape}, which makes {sizes.shape.n_edges:,} edges, more than the {_EDGES:,} that can be "
            "kept."
        )
    if sizes.weights > _WEIGHTS:
        raise InputError(f"{wrong} sizes of about {sizes.weights:,} weights, more than any model has.")
    return sizes


def check_gates(name: str, biases: Any, sizes: Sizes) -> None:
    """Refuse gates that are not one number for each head; None: the model is not gated."""
    rows = biases if isinstance(biases, list) else []
    even = len(rows) == sizes.layers and all(
        isinstance(row, list) and len(row) == sizes.heads for row in rows
    )
    if biases is not None and not (even and all(map(_is_number, (bias for row in rows for bias in row)))):
        raise InputError(
            f"The model '{name}' is gated, but gate_bias in its config does not have one number for each of its "
            f"{sizes.layers} x {sizes.heads} heads."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
