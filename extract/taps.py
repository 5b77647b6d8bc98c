"""Taps: run a model and keep what its nodes wrote and read, and change it on the way.

The Hugging Face model runs itself; hooks on its parts copy to a `Tape` what attribution needs:

- what nodes write: the input embedding, z (the heads' outputs before W_O), the MLPs' outputs;
- what they read, where gradients are wanted: the stream at each norm, and the projections' outputs.

A pass can also be that of a *circuit* of heads or of attention edges: what is not kept of them carries what it is given
instead, and everything else is computed from there.

What is called a prompt here is any text to run, such as a context of one (`metrics`).

Prompts of a batch are padded at the end. Causal attention keeps what comes later from what came before, so
padding changes nothing at the real positions, and no gradient reaches it. Only the last real position matters after the
last attention: there the stream is cut to it, which saves most of a layer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .parts import Norm, Parts, Read

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments by position and by name, without the first."""
Prefix = dict[int, tuple[Tensor, Tensor]]
"""Keys and values [prompt, head, position, d_head] of the positions before the first one, by layer."""
AttentionKept = dict[int, tuple[Tensor, Tensor | None, Tensor]]
"""By layer: pattern and gate [prompt, head, query, key], values [prompt, head, key, d_head]."""


@dataclass(frozen=True)
class Edit:
    """A change to what some rows of a batch read or write, at one place; each row has its own.

    A prompt of several contexts has a row for each of them, one after another.
    """

    layer: int
    """For logits, the number of layers."""
    at: Literal["reads", "mlp", "logits", "z"]
    delta: Tensor
    """[row, position, d_model]: what is added to the stream before the norm. For z, [row, position, head * d_head]."""
    mask: Tensor | None = None
    """For reads, [row, head, letter]: who reads the changed stream; all others read it as it is."""

    def to(self, device: torch.device) -> "Edit":
        """The same on a device."""
        mask = None if self.mask is None else self.mask.to(device)
        return replace(self, delta=self.delta.to(device), mask=mask)

    def with_unchanged(self, rows: int = 1) -> "Edit":
        """The same with one more prompt of so many rows, the first, that changes nothing."""
        first = torch.zeros_like(self.delta[:rows])
        mask = None if self.mask is None else torch.cat([torch.zeros_like(self.mask[:rows]), self.mask])
        return replace(self, delta=torch.cat([first, self.delta]), mask=mask)


@dataclass
class Tape:
    """What a pass is given besides its tokens, and what it leaves behind."""

    prefix: Prefix | None = None
    last: Tensor | None = None
    """[prompt]: the last real position of each, counted from the first one of this pass. None: nothing is cut."""
    start: Tensor | None = None
    """Goes into the first block instead of the embedding, [prompt, position, d_model]."""
    gradients: bool = False
    keep_reads: bool = False
    """Whether to keep what nodes read, as passes with gradients do."""
    stop: bool = False
    """Whether to stop when the first block calls its attention."""
    again: bool = False
    """Whether to keep what it takes to run it again from a layer on."""
    edit: Edit | None = None
    heads: Callable[[int], tuple[Tensor, Tensor]] | None = None
    """In a circuit of heads, by layer: which ones each row keeps, [row, head], and z of the others, [row, position,
    head, d_head]."""
    pairs: Callable[[int], tuple[Tensor, tuple[Tensor, Tensor] | None]] | None = None
    """In a circuit of attention edges, by layer: which messages each row keeps, [row, head, query, key], and weights
    and values of the others; None where these are zero."""
    attention: AttentionKept | None = None
    """Kept if this is a dict."""
    kept_keys: Prefix | None = None
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
    calls: list[Call] = field(default_factory=list)
    """How the model called its blocks, so that they can be called again."""
    call: Call = field(init=False)
    """How the first block called its attention; in these families all do it alike."""
    hidden: list[Tensor] = field(default_factory=list)
    """What went into each block, and into the last norm."""
    _edited: Tensor | None = None

    @property
    def keeps_reads(self) -> bool:
        """Whether what nodes read is kept."""
        return self.gradients or self.keep_reads

    @property
    def altered(self) -> bool:
        """Whether the model is changed on the way; nothing that nodes write is kept then."""
        return self.edit is not None or self.heads is not None or self.pairs is not None

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
        self._spread = self._is_spread()
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
        parts.blocks[0].attention.register_forward_pre_hook(self._on_first_attention(), with_kwargs=True)
        parts.norm.module.register_forward_pre_hook(self._before_norm("logits", len(parts.blocks)))
        parts.norm.module.register_forward_hook(self._on_last_norm())

    def _is_spread(self) -> bool:
        return len({self.parts.device(layer) for layer in range(len(self.parts.blocks))}) > 1

    def run(self, ids: Tensor, tape: Tape) -> Tape:
        """Run the model on token ids [prompt, position]."""
        with torch.set_grad_enabled(tape.gradients), self._recording(tape):
            self._forward(ids, tape.first, tape)
        return tape

    def _forward(self, ids: Tensor, first: int, tape: Tape) -> None:
        embedded = self.parts.base.get_input_embeddings()(ids)  # type: ignore[operator]
        positions = torch.arange(first, first + ids.shape[1], device=ids.device)
        self.parts.base(inputs_embeds=embedded, position_ids=positions[None], use_cache=False, tape=tape)

    @torch.no_grad()
    def enter(self, ids: Tensor, first: int = 0) -> tuple[Tensor, Call]:
        """What goes into the first block, [prompt, position, d_model], and how attention is called.

        The tokens are those from the position `first` on.
        """
        tape = Tape(stop=True)
        with suppress(_Enough), self._recording(tape):
            self._forward(ids, first, tape)
        return tape.input, tape.call

    @torch.no_grad()
    def attend(
        self, layer: int, call: Call, projected: Mapping[nn.Module, Tensor], prefix: Prefix | None
    ) -> Tensor:
        """z of a layer, [row, position, head * d_head], whose projections gave this."""
        block = self.parts.blocks[layer]
        rows, positions = next(iter(projected.values())).shape[:2]
        nothing = self.parts.out_weight(layer).new_zeros(()).expand(rows, positions, self.parts.d_model)
        args, kwargs = _moved(call, self.parts.device(layer))
        with ExitStack() as stack:
            for module, output in projected.items():
                stack.enter_context(_standing_in(module, partial(_given, output)))
            stack.enter_context(_standing_in(block.out, lambda z: z))
            z, *_ = block.attention(nothing, *args, **kwargs | {"tape": Tape(prefix=prefix)})
        return z

    @torch.no_grad()
    def rerun(self, before: Tape, edit: Edit) -> Tensor:
        """Run a tape's one prompt again from an edit's layer on, once for each change: final states [row, d_model]."""
        hidden = before.hidden[edit.layer]
        times = len(edit.delta) // len(hidden)
        edit = edit.to(self.parts.device(edit.layer))
        tape = Tape(edit=edit, last=None if before.last is None else before.last.repeat(times))
        with self._recording(tape):
            hidden = hidden.expand(times, -1, -1) if len(hidden) == 1 else hidden.repeat(times, 1, 1)
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
            if (tape := self._tape) is not None and tape.edit is None and layer == 0:
                hidden = args[0] if tape.start is None else tape.start
                tape.input = hidden.detach()
                if tape.gradients:
                    hidden = hidden.detach().requires_grad_()
                args = (hidden, *args[1:])
            if self._spread:
                args, kwargs = _moved((args, kwargs), self.parts.device(layer))
            if tape is not None and tape.again:
                tape.hidden.append(args[0])
                tape.calls.append((args[1:], kwargs))
            return args, kwargs

        return hook

    def _on_first_attention(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            if (tape := self._tape) is not None and tape.stop:
                others = {key: value for key, value in kwargs.items() if key not in ("hidden_states", "tape")}
                tape.call = args[1:], others
                raise _Enough

        return hook

    def _on_norm(self, norm: Norm, layer: int) -> Callable[..., Any]:
        """Before an attention: keep the stream, and norm the changed one too if there is an edit."""

        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return
            if tape.keeps_reads:
                tape.streams[module] = args[0].detach()
            if (edit := tape.edit) and edit.layer == layer and edit.at == "reads":
                tape._edited = norm.module.forward(args[0] + edit.delta)

        return hook

    def _on_projection(self, reads: tuple[Read, ...], layer: int) -> Callable[..., Any]:
        widened = self.parts.widened

        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor | None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return None
            output = widened(output)
            if (edit := tape.edit) and edit.layer == layer and edit.at == "reads":
                assert edit.mask is not None
                changed = widened(module.forward(tape._edited))
                output = output.clone()
                for letter, read in enumerate(reads):
                    if read.module is module:
                        chosen = edit.mask[:, None, :, letter, None]  # [row, 1, head, 1]
                        there = read.take(output)
                        there.copy_(torch.where(chosen, read.take(changed), there))
            if tape.keeps_reads:
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
            if tape.keeps_reads:
                tape.streams[module] = stream.detach()
            return stream

        return hook

    def _on_mlp_norm(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
            if (tape := self._tape) is not None and tape.keeps_reads:
                tape.read[module] = output

        return hook

    def _on_last_norm(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor | None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return None
            if tape.keeps_reads:
                tape.read[module] = output
            tape.final = output if tape.last is None else output[:, 0]
            if tape.last is None or tape.edit is not None:
                return None
            return output.expand(
                -1, tape.input.shape[1], -1
            )  # the model expects all positions, and drops them

        return hook

    def _on_z(self, layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> Tensor | None:  # noqa: ARG001
            if (tape := self._tape) is None:
                return None
            z = args[0]
            if not tape.altered:
                tape.z.append(z)
            elif (edit := tape.edit) and edit.layer == layer and edit.at == "z":
                z = z + edit.delta
            elif tape.heads is not None:
                kept, instead = tape.heads(layer)
                z = torch.where(kept[:, None, :, None], z.unflatten(-1, instead.shape[2:]), instead).flatten(
                    -2
                )
            return tape.cut(z) if layer == len(self.parts.blocks) - 1 else z

        return hook

    def _on_mlp(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
            if (tape := self._tape) is not None and not tape.altered:
                tape.mlp.append(output.detach())

        return hook


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors on a device, in whatever tuples and dicts they are."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return value


def _given(output: Tensor, _: Tensor) -> Tensor:
    return output


class _Enough(Exception):  # noqa: N818
    """Stops a pass whose rest nobody needs."""


@contextmanager
def _standing_in(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let a function do a module's work."""
    before = vars(module).get("forward")
    module.forward = function
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
