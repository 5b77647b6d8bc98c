"""Taps: run a model and keep what its nodes wrote and read, and change it on the way.

The Hugging Face model runs itself; hooks on its parts copy to a `Tape` what attribution needs:

- what nodes write: the input embedding, z (the heads' outputs before W_O), the MLPs' outputs;
- what they read, where gradients are wanted: the stream at each norm, and the projections' outputs.

Prompts of a batch are padded at the end. Causal attention keeps what comes later from what came before, so
padding changes nothing at the real positions, and no gradient reaches it. Only the last real position matters after the
last attention: there the stream is cut to it, which saves most of a layer.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .parts import Norm, Parts, Read

AttentionKept = dict[int, tuple[Tensor, Tensor | None, Tensor]]
"""By layer: pattern and gate [prompt, head, query, key], values [prompt, head, key, d_head]."""


@dataclass(frozen=True)
class Edit:
    """A change to what some rows of a batch read or write, at one place; each row has its own."""

    layer: int
    """For logits, the number of layers."""
    at: Literal["reads", "mlp", "logits", "z"]
    delta: Tensor
    """[row, position, d_model]: what is added to the stream before the norm. For z, [row, position, head * d_head]."""
    mask: Tensor | None = None
    """For reads, [row, head, letter]: who reads the changed stream; all others read it as it is."""

    def with_unchanged(self) -> "Edit":
        """The same with one more row, the first, that changes nothing."""
        first = torch.zeros_like(self.delta[:1])
        mask = None if self.mask is None else torch.cat([torch.zeros_like(self.mask[:1]), self.mask])
        return replace(self, delta=torch.cat([first, self.delta]), mask=mask)


@dataclass
class Tape:
    """What a pass is given besides its tokens, and what it leaves behind."""

    prefix: dict[int, tuple[Tensor, Tensor]] | None = None
    """Keys and values [prompt, head, position, d_head] of the positions before the first one, by layer."""
    last: Tensor | None = None
    """[prompt]: the last real position of each, counted from the first one of this pass. None: nothing is cut."""
    start: Tensor | None = None
    """Goes into the first block instead of the embedding, [prompt, position, d_model]."""
    gradients: bool = False
    again: bool = False
    """Whether to keep what it takes to run it again from a layer on."""
    edit: Edit | None = None
    attention: AttentionKept | None = None
    """Kept if this is a dict."""
    kept_keys: dict[int, tuple[Tensor, Tensor]] | None = None
    """Keys and values by layer, to be another pass's prefix; kept if this is a dict."""

    input: Tensor = field(init=False)
    z: list[Tensor] = field(default_factory=list)
    """By layer, [prompt, position, head * d_head]."""
    mlp: list[Tensor] = field(default_factory=list)
    """By layer, [prompt, position, d_model]; the last layer's has one position if it was cut."""
    streams: dict[nn.Module, Tensor] = field(default_factory=dict)
    """By norm: what went into it."""
    read: dict[nn.Module, Tensor] = field(default_factory=dict)
    """By projection, and by norm before an MLP or the unembedding: what came out of it."""
    final: Tensor = field(init=False)
    """The last norm's output, [prompt, d_model] at the last position; at all positions if nothing is cut."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """How the model called its blocks, so that they can be called again."""
    hidden: list[Tensor] = field(default_factory=list)
    """What went into each block, and into the last norm."""
    _edited: Tensor | None = None

    @property
    def first(self) -> int:
        """The position of the first token."""
        return 0 if self.prefix is None else self.prefix[0][0].shape[2]

    def with_prefix(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions up to the last one of this pass."""
        if self.prefix is not None:
            before_key, before_value = self.prefix[layer]
            key, value = torch.cat([before_key, key], dim=2), torch.cat([before_value, value], dim=2)
        if self.kept_keys is not None:
            self.kept_keys[layer] = (key, value)
        return key, value

    def cut(self, x: Tensor) -> Tensor:
        """[prompt, position, d] at the last position only, [prompt, 1, d]."""
        if self.last is None:
            return x
        return x[torch.arange(len(x), device=x.device), self.last, None]


class Taps:
    """A model with hooks on its parts; without a tape they do nothing."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tape: Tape | None = None
        for layer, block in enumerate(parts.blocks):
            block.module.register_forward_pre_hook(self._on_block(layer), with_kwargs=True)
            block.norm.module.register_forward_hook(self._on_norm(block.norm, layer))
            block.mlp_norm.module.register_forward_pre_hook(self._before_norm("mlp", layer))
            block.mlp_norm.module.register_forward_hook(self._on_mlp_norm())
            for module in dict.fromkeys(read.module for read in block.reads):
                module.register_forward_hook(self._on_projection(block.reads, layer))
            block.out.register_forward_pre_hook(self._on_z(layer))
            block.mlp.register_forward_hook(self._on_mlp())
        parts.norm.module.register_forward_pre_hook(self._before_norm("logits", len(parts.blocks)))
        parts.norm.module.register_forward_hook(self._on_last_norm())

    def run(self, ids: Tensor, tape: Tape) -> Tape:
        """Run the model on token ids [prompt, position]."""
        with torch.set_grad_enabled(tape.gradients), self._recording(tape):
            embedded = self.parts.base.get_input_embeddings()(ids)  # type: ignore[operator]
            positions = torch.arange(tape.first, tape.first + ids.shape[1], device=ids.device)
            self.parts.base(inputs_embeds=embedded, position_ids=positions[None], use_cache=False, tape=tape)
        return tape

    @torch.no_grad()
    def rerun(self, before: Tape, edit: Edit) -> Tensor:
        """Run a tape's one prompt again from an edit's layer on, a row for each change: final states [row, d_model]."""
        rows = len(edit.delta)
        tape = Tape(edit=edit, last=None if before.last is None else before.last.expand(rows))
        with self._recording(tape):
            hidden = before.hidden[edit.layer].expand(rows, -1, -1)
            for block, (args, kwargs) in zip(
                self.parts.blocks[edit.layer :], before.calls[edit.layer :], strict=True
            ):
                hidden = block.module(hidden, *args, **kwargs | {"tape": tape})
            self.parts.norm.module(hidden)
        return tape.final

    @contextmanager
    def _recording(self, tape: Tape) -> Any:
        self._tape = tape
        try:
            yield
        finally:
            self._tape = None

    def _on_block(self, layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
            if (tape := self._tape) is None or tape.edit is not None:
                return None
            (hidden, *others) = args
            if layer == 0:
                hidden = hidden if tape.start is None else tape.start
                tape.input = hidden.detach()
                if tape.gradients:
                    hidden = hidden.detach().requires_grad_()
            if tape.again:
                tape.hidden.append(hidden)
                tape.calls.append((tuple(others), kwargs))
            return (hidden, *others), kwargs

        return hook

    def _on_norm(self, norm: Norm, layer: int) -> Callable[..., Any]:
        """Before an attention: keep the stream, and norm the changed one too if there is an edit."""

        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return
            if tape.gradients:
                tape.streams[module] = args[0].detach()
            if (edit := tape.edit) and edit.layer == layer and edit.at == "reads":
                tape._edited = norm.module.forward(args[0] + edit.delta)

        return hook

    def _on_projection(self, reads: tuple[Read, ...], layer: int) -> Callable[..., Any]:
        heads, groups = self.parts.shape.heads, self.parts.shape.heads // self.parts.shape.kv_heads

        def widened(output: Tensor, module: nn.Module) -> Tensor:
            """Shared keys and values as a copy for each head."""
            if groups == 1 or module is reads[0].module:
                return output
            return output.unflatten(-1, (heads // groups, -1)).repeat_interleave(groups, dim=-2).flatten(-2)

        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor | None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return None
            output = widened(output, module)
            if (edit := tape.edit) and edit.layer == layer and edit.at == "reads":
                assert edit.mask is not None
                changed = widened(module.forward(tape._edited), module)
                output = output.clone()
                for letter, read in enumerate(reads):
                    if read.module is module:
                        chosen = edit.mask[:, None, :, letter, None]  # [row, 1, head, 1]
                        there = read.take(output)
                        there.copy_(torch.where(chosen, read.take(changed), there))
            if tape.gradients:
                tape.read[module] = output
                if self.parts.clips:
                    output = output.clone()
            return output

        return hook

    def _before_norm(self, at: str, layer: int) -> Callable[..., Any]:
        """Before an MLP or the unembedding."""

        def hook(module: nn.Module, args: tuple[Tensor]) -> Tensor | None:
            if (tape := self._tape) is None:
                return None
            stream = args[0]
            if layer == len(self.parts.blocks) and tape.again:
                tape.hidden.append(stream)
            if (edit := tape.edit) and edit.layer == layer and edit.at == at:
                stream = stream + edit.delta
            if layer >= len(self.parts.blocks) - 1:
                stream = tape.cut(stream)
            if tape.gradients:
                tape.streams[module] = stream.detach()
            return stream

        return hook

    def _on_mlp_norm(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
            if (tape := self._tape) is not None and tape.gradients:
                tape.read[module] = output

        return hook

    def _on_last_norm(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor | None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return None
            if tape.gradients:
                tape.read[module] = output
            tape.final = output if tape.last is None else output[:, 0]
            if tape.last is None or tape.edit is not None:
                return None
            return output.expand(
                -1, tape.z[-1].shape[1], -1
            )  # the model expects all positions, and drops them

        return hook

    def _on_z(self, layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> Tensor | None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return None
            z = args[0]
            if (edit := tape.edit) is None:
                tape.z.append(z)
            elif edit.layer == layer and edit.at == "z":
                z = z + edit.delta
            return tape.cut(z) if layer == len(self.parts.blocks) - 1 else z

        return hook

    def _on_mlp(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
            if (tape := self._tape) is not None and tape.edit is None:
                tape.mlp.append(output.detach())

        return hook
