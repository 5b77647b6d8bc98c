"""A student: a model with gates that starts as its dense model.

Either it is a copy, and all of its weights are trained but embedding and unembedding; or it is the dense model itself
with low-rank adapters, which can be turned off. Trained weights are float32. Passes of training may be made in
bfloat16; what is measured is measured in the weights' own numbers, as the finished model computes.
"""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError
from .batches import Part
from .gates import FirstBiases, Gates
from .models import Loaded
from .parts import Parts


class Student(nn.Module):
    """A model with gates."""

    def __init__(self, model: nn.Module, parts: Parts, biases: Tensor) -> None:
        super().__init__()
        self.model, self._parts = model, parts
        self.gates = Gates(biases)

    def forward(self, ids: Tensor, real: Tensor, noisy: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Final states [document, position, d_model], and the share of open gates; `noisy` [document] in training."""
        self.gates.begin(real, torch.zeros_like(real[:, 0]) if noisy is None else noisy)
        states = states_of(self._parts, ids, gates=self.gates)
        is_open, pairs = self.gates.counts()
        return states, is_open / pairs


def states_of(parts: Parts, ids: Tensor, **given: Any) -> Tensor:
    """Final states [document, position, d_model]."""
    states: Tensor = parts.base(input_ids=ids, use_cache=False, **given).last_hidden_state
    return states


class Twins:
    """A dense model and its student."""

    def __init__(
        self, dense: Loaded, *, lora: int | None, mixed: bool, closed: float | None, some: Part
    ) -> None:
        """`mixed` makes passes in bfloat16; at first gates cut off a share `closed` of the attention to `some`.

        None: gates are open, and stay so.
        """
        model = dense.model if lora else copy.deepcopy(dense.model)
        parts: Parts = dense.family.parts(model)
        self._dense: Parts = dense.family.parts(dense.model)
        self._mixed, self._device = mixed, dense.device
        self._adapted = _adapt(model, lora) if lora else None
        self._gated = closed is not None
        self.student = Student(model, parts, self._first_biases(closed, some))
        ends = {
            id(weight)
            for module in (parts.unembed, model.get_input_embeddings())
            for weight in module.parameters()
        }
        for name, weight in self.student.named_parameters():
            trained = self._gated if name.startswith("gates.") else self._adapted is None or "lora_" in name
            weight.requires_grad_(trained and id(weight) not in ends)
            if weight.requires_grad:
                weight.data = weight.data.float()
        self.unembedding = parts.unembed.weight.detach()  # type: ignore[operator]  # [token, d_model]
        """It is the same for both."""

    def passes(self) -> Any:
        """Around passes of training."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._mixed else nullcontext()

    @torch.no_grad()
    def dense_states(self, ids: Tensor) -> Tensor:
        """The dense model's final states."""
        with self._adapted.disable_adapter() if self._adapted is not None else nullcontext():
            return states_of(self._dense, ids)

    def trained(self) -> dict[str, Tensor]:
        """The weights that are trained."""
        return {
            name: weight.detach() for name, weight in self.student.named_parameters() if weight.requires_grad
        }

    @torch.no_grad()
    def load_trained(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights that were trained."""
        own = dict(self.student.named_parameters())
        for name, weight in weights.items():
            own[name].copy_(weight)

    def optimizer(self) -> torch.optim.Optimizer:
        """A new one, with a group for the weights and one for the gates' biases."""
        weights = [weight for weight in self.student.model.parameters() if weight.requires_grad]
        return torch.optim.AdamW(
            [{"params": weights}, {"params": [self.student.gates.bias]}], betas=(0.9, 0.99), weight_decay=0.0
        )

    def finished(self) -> PreTrainedModel:
        """The student as a model of its own, its gates, if it has any, in its config."""
        model: Any = self.student.model if self._adapted is None else self._adapted.merge_and_unload()
        if self._gated:
            model.config.gate_bias = self.student.gates.biases()
        model.eval().requires_grad_(False)
        return model

    @torch.no_grad()
    def _first_biases(self, closed: float | None, some: Part) -> Tensor:
        shape = self._dense.shape
        if closed is None:
            return torch.full((shape.layers, shape.heads), torch.inf)
        first = FirstBiases(shape.layers, shape.heads, closed, some.real)
        states_of(self._dense, some.ids, gates=first)
        return first.found


def _adapt(model: nn.Module, rank: int) -> Any:
    """Put low-rank adapters on all projections of a model."""
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise InputError("--lora needs peft: pip install 'wirescope[lora]'.") from error
    transposed = any(type(module).__name__ == "Conv1D" for module in model.modules())
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", fan_in_fan_out=transposed)
    return get_peft_model(model, settings)
