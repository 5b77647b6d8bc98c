"""The training loop of sparse post-training: a student with gates, its pace, and checkpoints.

Everything random in a step (which documents, which positions, which noise) follows from the seed, the step and the
process, so a training that was stopped and goes on ends in the same weights. Embedding and unembedding stay as they
are; the trained weights are kept in float32, whatever the passes are computed in.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data import Documents, replacing
from ..graphs import InputError
from .constraint import Constraint
from .gates import FirstBiases, Gates
from .memory import ExtractionError
from .models import Loaded, is_accelerator
from .parts import Parts
from .predictions import Compared, drawn_positions
from .recipe import Recipe
from .settings import Listener

_LOGITS_A_STEP = 1 << 25
_RANGE_STEPS, _RANGE_FIRST, _RANGE_FACTOR = 40, 1e-6, 1.3
_RANGE_HARM, _RANGE_SHARE = 0.1, 0.3
_FIRST_DOCUMENTS = 16
"""Documents that the first biases are found on."""


@dataclass(frozen=True)
class Text:
    """One kind of text, as token ids."""

    train: Documents
    held_out: Documents


@dataclass
class Found:
    """A student on held-out text, with hard gates; in nats a token, by kind of text."""

    step: int
    open_gates: float
    losses: dict[str, float]
    divergences: dict[str, float]
    excess: dict[str, float]

    def worst(self, recipe: Recipe) -> tuple[float, str]:
        """Excess of the kind that is furthest beyond its bound, and that kind."""
        kind = max(self.excess, key=lambda kind: self.excess[kind] - recipe.bound(kind))
        return self.excess[kind], kind

    def within(self, recipe: Recipe) -> bool:
        """Whether every kind is within its bound."""
        return all(excess <= recipe.bound(kind) for kind, excess in self.excess.items())


class Student(nn.Module):
    """A model with gates."""

    def __init__(self, model: nn.Module, parts: Parts, biases: Tensor) -> None:
        super().__init__()
        self.model, self._parts = model, parts
        self.gates = Gates(biases)

    def forward(self, ids: Tensor, real: Tensor, noisy: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Final states [document, position, d_model], and how many gates are open; `noisy` [document] in training."""
        self.gates.begin(real, real[:, 0] if noisy is None else noisy)
        return states_of(self._parts, ids, gates=self.gates), self.gates.counts()[0]


def states_of(parts: Parts, ids: Tensor, **given: Any) -> Tensor:
    """Final states [document, position, d_model]."""
    states: Tensor = parts.base(input_ids=ids, use_cache=False, **given).last_hidden_state
    return states


@dataclass(frozen=True)
class _Part:
    """Some documents of a step."""

    ids: Tensor
    real: Tensor
    """Whether a token is one, [document, position]."""
    kind: Tensor
    """The number of each document's kind, [document]."""
    drawn: Tensor
    """The predictions that count, [document, position - 1]."""


class Trainer:
    """Trains a student of a dense model on kinds of text; keeps what it needs to go on in a folder."""

    def __init__(
        self,
        dense: Loaded,
        kinds: Mapping[str, Text],
        recipe: Recipe,
        folder: Path,
        listener: Listener,
        *,
        divergent: Sequence[str] = (),
        mixed: bool = False,
    ) -> None:
        self._recipe, self._kinds, self._folder, self._listener = recipe, kinds, folder, listener
        self._accelerator = Accelerator(
            cpu=not is_accelerator(dense.device), mixed_precision="bf16" if mixed else "no"
        )
        model = dense.model if recipe.lora else copy.deepcopy(dense.model)
        self._dense_parts: Parts = dense.family.parts(dense.model)
        parts: Parts = dense.family.parts(model)
        device = self._accelerator.device
        self._divergent = torch.tensor([kind in divergent for kind in kinds], device=device)
        self._adapted = _adapt(model, recipe.lora) if recipe.lora else None
        self._student = Student(model, parts, self._first_biases())
        fixed = {
            id(weight)
            for module in (parts.unembed, model.get_input_embeddings())
            for weight in module.parameters()
        }
        for name, weight in self._student.named_parameters():
            trained = self._adapted is None or "lora_" in name or name.startswith("gates.")
            weight.requires_grad_(trained and id(weight) not in fixed)
            if weight.requires_grad:
                weight.data = weight.data.float()
        dtype = torch.bfloat16 if mixed else dense.model.dtype
        self._unembedding = parts.unembed.weight.detach().to(device, dtype)  # type: ignore[operator]
        self._wrapped, self._optimizer = self._accelerator.prepare(self._student, self._new_optimizer())
        self._constraint = Constraint(recipe, list(kinds))
        self._step = 0
        self._rate = recipe.learning_rate
        self.dense_losses: dict[str, float] = {}
        self.tried: list[Found] = []
        self.best: Found | None = None

    def run(self) -> Found | None:
        """Train to the end; the sparsest student within all bounds, which the student then is, if any is.

        If none is, it is the one that is nearest to them that is kept in the folder.
        """
        recipe = self._recipe
        self.dense_losses = self._held_out(gated=False)[0]
        resumed = self._resume()
        if self._rate is None:
            self._rate = self._found_rate()
        self._listener.begin(self._plan(), "steps", recipe.steps, self._step)
        if resumed:
            self._listener.note(self._resumed())
        if not self.tried:
            self._evaluate()
        while self._step < recipe.steps:
            self._train()
            self._listener.advance(1)
            if self._step % recipe.evaluate_every == 0 or self._step == recipe.steps:
                self._evaluate()
                self._save()
        if self.best is not None and self.best.within(recipe):
            self._load_trained(torch.load(self._folder / "best.pt", weights_only=True))
        self._accelerator.wait_for_everyone()  # before the first of them clears the folder
        return self.best if self.best is not None and self.best.within(recipe) else None

    def finished(self) -> PreTrainedModel:
        """The student as a model of its own, its gates in its config, its weights in the dense model's dtype."""
        model: Any = self._student.model if self._adapted is None else self._adapted.merge_and_unload()
        model.config.gate_bias = self._student.gates.biases()
        model.eval().requires_grad_(False)
        return model.to(self._dense_parts.home)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self._accelerator.is_main_process

    @property
    def learning_rate(self) -> float:
        """Learning rate of the weights: the recipe's, or what the range test found."""
        assert self._rate is not None
        return self._rate

    def _new_optimizer(self) -> torch.optim.Optimizer:
        weights = [weight for weight in self._student.model.parameters() if weight.requires_grad]
        return torch.optim.AdamW(
            [{"params": weights}, {"params": [self._student.gates.bias]}], betas=(0.9, 0.99), weight_decay=0.0
        )

    def _train(self) -> None:
        recipe = self._recipe
        share, entropies, dense, excess = self._descend(
            self._step, self.learning_rate, recipe.gate_rate, self._constraint.price
        )
        self._constraint.update(self._accelerator.reduce(excess, "mean").cpu(), self._step)
        self._step += 1
        if (kind := self._constraint.ruined) is not None:
            assert self._constraint.excess is not None
            raise ExtractionError(
                f"Stopped after {self._step:,} steps: the excess on {kind}, now "
                f"{float(self._constraint.excess.max()):.3f} nats a token, grows though open gates have long cost "
                "nothing. The weights are being ruined, not the gates: lower --learning-rate, which is "
                f"{self.learning_rate:.1e}, or raise --batch-size, which is {recipe.batch_size}."
            )
        self._listener.status(
            f"loss {float(entropies.mean()):.3f}, dense {float(dense.mean()):.3f}, {100 * share:.2f} % open, "
            f"price {self._constraint.price:.2f}"
        )

    def _descend(
        self, step: int, rate: float, gate_rate: float, price: float
    ) -> tuple[float, Tensor, Tensor, Tensor]:
        """A step of gradient descent: the expected share of open gates, and [kind] of documents without noise: the
        student's cross-entropy, the dense model's, and the excess.
        """
        recipe, accelerator = self._recipe, self._accelerator
        torch.manual_seed((recipe.seed * 1_000_003 + step) * 1_009 + accelerator.process_index)
        for group, own_rate in zip(self._optimizer.param_groups, (rate, gate_rate), strict=True):
            group["lr"] = own_rate * recipe.rate_at(step)
        parts = self._parts(self._drawn(step))
        counts = sum((self._sums(part, part.drawn.float()) for part in parts), self._zeros())
        pairs = sum(
            int((length * (length + 1) // 2).sum()) for part in parts for length in [part.real.sum(1)]
        )
        pairs *= self._student.gates.bias.numel()
        weights = self._constraint.weights.to(counts) / counts.clamp(min=1) / len(counts)
        self._student.gates.train()
        self._optimizer.zero_grad()
        share, seen = 0.0, torch.zeros(4, len(counts), device=counts.device)
        for number, part in enumerate(parts):
            noisy = (torch.arange(len(part.ids), device=part.ids.device) + step) % 2 == 0
            kind = part.kind[:, None].expand_as(part.drawn)[part.drawn]  # [position]
            divergent, weight = self._divergent[kind], weights[kind]
            last = number == len(parts) - 1
            with nullcontext() if last else accelerator.no_sync(self._wrapped):
                states, is_open = self._wrapped(part.ids, part.real, noisy)
                loss, own, dense, divergence = Compared.apply(
                    states[:, :-1][part.drawn].to(self._unembedding.dtype),
                    self._dense_states(part.ids)[:, :-1][part.drawn].to(self._unembedding.dtype),
                    self._unembedding,
                    part.ids[:, 1:][part.drawn],
                    torch.where(divergent, 0.0, weight),
                    torch.where(divergent, (1 + recipe.distill) * weight, recipe.distill * weight),
                )
                accelerator.backward(loss + price * is_open / pairs)
            share += float(is_open.detach()) / pairs
            quiet = (~noisy)[:, None].expand_as(part.drawn)[part.drawn].float()  # as in the finished model
            for row, values in enumerate((own, dense, divergence, torch.ones_like(own))):
                seen[row].index_add_(0, kind, values * quiet)
        accelerator.clip_grad_norm_(self._student.parameters(), 1.0)
        self._optimizer.step()
        own, dense, divergence = seen[:3] / seen[3]  # NaN where a kind had noise throughout
        return share, own, dense, torch.where(self._divergent, divergence, own - dense)

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self._kinds), device=self._accelerator.device)

    def _sums(self, part: _Part, values: Tensor) -> Tensor:
        """The sum over the predictions of each kind, [kind], of [document, position - 1]."""
        return self._zeros().index_add(0, part.kind, values.sum(1))

    def _drawn(self, step: int) -> list[tuple[int, tuple[int, ...]]]:
        """The documents of a step, each with the number of its kind."""
        rng = np.random.default_rng([self._recipe.seed, step, self._accelerator.process_index])
        each = max(1, self._recipe.batch_size // len(self._kinds))
        return [
            (number, text.train[i])
            for number, text in enumerate(self._kinds.values())
            for i in rng.choice(len(text.train), min(each, len(text.train)), replace=False)
        ]

    def _parts(self, documents: Sequence[tuple[int, tuple[int, ...]]]) -> list[_Part]:
        """A step's documents, sorted by length and cut into equal parts, so that few tokens are padding."""
        if self._recipe.accumulate > 1:
            documents = sorted(documents, key=lambda document: len(document[1]))
        cuts = np.array_split(np.arange(len(documents)), min(self._recipe.accumulate, len(documents)))
        batches = [self._batch([documents[i] for i in cut]) for cut in cuts]
        most = self._recipe.positions or max(1, _LOGITS_A_STEP // len(self._unembedding))
        longest = max(real.shape[1] for _, real, _ in batches)
        real = torch.cat([nn.functional.pad(real, (0, longest - real.shape[1])) for _, real, _ in batches])
        drawn = drawn_positions(real, torch.cat([kind for *_, kind in batches]), most, len(self._kinds))
        split = drawn.split([len(ids) for ids, *_ in batches])
        return [
            _Part(ids, real, kind, own[:, : ids.shape[1] - 1])
            for (ids, real, kind), own in zip(batches, split, strict=True)
        ]

    def _batch(self, documents: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids and whether they are real, [document, position], and kinds, [document]."""
        longest = max(len(ids) for _, ids in documents)
        device = self._accelerator.device
        ids = torch.tensor([[*own, *[0] * (longest - len(own))] for _, own in documents], device=device)
        lengths = torch.tensor([len(own) for _, own in documents], device=device)
        real = torch.arange(longest, device=device) < lengths[:, None]
        return ids, real, torch.tensor([number for number, _ in documents], device=device)

    @torch.no_grad()
    def _dense_states(self, ids: Tensor) -> Tensor:
        """The dense model's final states."""
        with (
            self._adapted.disable_adapter() if self._adapted is not None else nullcontext(),
            self._accelerator.autocast(),
        ):
            return states_of(self._dense_parts, ids)

    @torch.no_grad()
    def _first_biases(self) -> Tensor:
        """Biases of gates that are all but open, from the dense model's attention to some documents."""
        texts = list(self._kinds.items())
        some = [(0, text.train[0]) for _, text in texts]
        longest = max((text.train for _, text in texts), key=lambda train: sum(map(len, train)) / len(train))
        ids, real, _ = self._batch([*some, *((0, document) for document in longest[:_FIRST_DOCUMENTS])])
        shape = self._dense_parts.shape
        first = FirstBiases(shape.layers, shape.heads, self._recipe.closed, real)
        states_of(self._dense_parts, ids, gates=first)
        return first.found

    def _found_rate(self) -> float:
        """A learning rate by a range test: it grows from step to step, until it does harm.

        Near a minimum the gradient is mostly noise, and steps of Adam are of one size however small it is. So weights
        drift, the further the higher the rate: how much harm that does, batch and model decide, and no rule knows.
        """
        before = {name: weight.clone() for name, weight in self._trained().items()}
        rate, harm = _RANGE_FIRST, 0.0
        for step in range(_RANGE_STEPS):
            *_, excess = self._descend(self._recipe.steps // 4 + step, rate, 0.0, 0.0)
            known = self._accelerator.reduce(excess, "mean").nan_to_num(0.0)
            harm = 0.5 * harm + 0.5 * float(known.mean())
            if harm > _RANGE_HARM:
                break
            rate *= _RANGE_FACTOR
        self._load_trained(before)
        self._optimizer = self._accelerator.prepare(self._new_optimizer())
        found = float(f"{_RANGE_SHARE * rate:.1e}")
        self._listener.note(f"Learning rate {found:.1e}, by a range test; --learning-rate sets it.")
        return found

    @torch.no_grad()
    def _held_out(self, *, gated: bool) -> tuple[dict[str, float], dict[str, float], float]:
        """By kind, loss and divergence on held-out text, and the share of open gates; all processes share the work."""
        self._student.gates.eval()
        accelerator, size = self._accelerator, max(1, self._recipe.batch_size // self._recipe.accumulate)
        sums = torch.zeros(3, len(self._kinds), device=accelerator.device)  # loss, divergence, tokens
        pairs = torch.zeros(2, device=accelerator.device)  # open, all
        for number, text in enumerate(self._kinds.values()):
            own = text.held_out[accelerator.process_index :: accelerator.num_processes]
            by_length = sorted(own, key=len)
            for first in range(0, len(own), size):
                ids, real, _ = self._batch(
                    [(number, document) for document in by_length[first : first + size]]
                )
                with self._exactly():
                    dense = self._dense_states(ids)
                    states = self._student(ids, real)[0] if gated else dense
                counted = real[:, 1:]
                ones = torch.ones(int(counted.sum()), device=ids.device)
                _, entropy, _, divergence = Compared.apply(
                    states[:, :-1][counted],
                    dense[:, :-1][counted],
                    self._unembedding.to(states),
                    ids[:, 1:][counted],
                    ones,
                    ones,
                )
                sums[:, number] += torch.stack([entropy.sum(), divergence.sum(), ones.sum()])
                if gated:
                    pairs += torch.stack(self._student.gates.counts())
        sums, pairs = accelerator.reduce(sums), accelerator.reduce(pairs)
        losses, divergences = (
            dict(zip(self._kinds, (row / sums[2]).tolist(), strict=True)) for row in sums[:2]
        )
        return losses, divergences, float(pairs[0] / pairs[1]) if gated else 1.0

    def _exactly(self) -> Any:
        """A pass in the weights' own numbers, as the finished model will make it."""
        return torch.autocast(self._accelerator.device.type, enabled=False)

    def _evaluate(self) -> None:
        """Try the student on held-out text, and keep it if it is the sparsest so far that is within all bounds.

        Until one is, the nearest to them is kept.
        """
        recipe = self._recipe
        losses, divergences, share = self._held_out(gated=True)
        excess = {
            kind: divergences[kind] if divergent else loss - self.dense_losses[kind]
            for (kind, loss), divergent in zip(losses.items(), self._divergent.tolist(), strict=True)
        }
        found = Found(self._step, share, losses, divergences, excess)
        self.tried.append(found)
        kept = self._step > 0 and (self.best is None or self._better(found, self.best))
        if kept:
            self.best = found
            self._write("best.pt", self._trained())
        if self._step:
            self._constraint.held_out(torch.tensor(list(excess.values())))
        if self.leads:
            worst, kind = found.worst(recipe)
            said = ", kept." if kept and found.within(recipe) else "."
            self._listener.note(
                f"After {self._step:,} steps, on held-out text: {100 * share:.2f} % open, excess {worst:+.4f} on "
                f"{kind}{said}"
            )

    def _better(self, found: Found, best: Found) -> bool:
        recipe = self._recipe
        if found.within(recipe) != best.within(recipe):
            return found.within(recipe)
        if found.within(recipe):
            return found.open_gates < best.open_gates
        beyond = [one.worst(recipe)[0] - recipe.bound(one.worst(recipe)[1]) for one in (found, best)]
        return beyond[0] < beyond[1]

    def _trained(self) -> dict[str, Tensor]:
        return {
            name: weight.detach() for name, weight in self._student.named_parameters() if weight.requires_grad
        }

    def _load_trained(self, weights: Mapping[str, Tensor]) -> None:
        own = dict(self._student.named_parameters())
        with torch.no_grad():
            for name, weight in weights.items():
                own[name].copy_(weight)

    def _save(self) -> None:
        self._write(
            "last.pt",
            {
                "step": self._step,
                "rate": self._rate,
                "trained": self._trained(),
                "optimizer": self._optimizer.state_dict(),
                "constraint": self._constraint.state(),
                "tried": [asdict(found) for found in self.tried],
                "best": None if self.best is None else self.tried.index(self.best),
            },
        )

    def _resume(self) -> bool:
        """Go on from what is in the folder, if anything is."""
        if not (self._folder / "last.pt").is_file():
            return False
        state = torch.load(self._folder / "last.pt", map_location=self._accelerator.device, weights_only=True)
        self._step, self._rate = state["step"], state["rate"]
        self._load_trained(state["trained"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._constraint.load(state["constraint"])
        self.tried = [Found(**found) for found in state["tried"]]
        self.best = None if state["best"] is None else self.tried[state["best"]]
        return True

    def _write(self, name: str, content: Any) -> None:
        if self.leads:
            with replacing(self._folder / name) as file:
                torch.save(content, file)
        self._accelerator.wait_for_everyone()

    def _plan(self) -> str:
        documents = ", ".join(f"{kind} ({len(text.train):,})" for kind, text in self._kinds.items())
        said = ", ".join(f"{kind} {loss:.3f}" for kind, loss in self.dense_losses.items())
        bounds = ", ".join(
            f"{kind} {self._recipe.bound(kind)}{' of divergence' if divergent else ''}"
            for kind, divergent in zip(self._kinds, self._divergent.tolist(), strict=True)
        )
        return (
            f"Sparse post-training in {self._recipe.steps:,} steps on {documents}; the dense model's loss on held-out "
            f"text: {said}; at most so much more: {bounds}."
        )

    def _resumed(self) -> str:
        last = self.tried[-1]
        worst, kind = last.worst(self._recipe)
        return (
            f"Resumed after {self._step:,} of {self._recipe.steps:,} steps: {100 * last.open_gates:.2f} % open, excess "
            f"{worst:+.4f} on {kind}."
        )


def _adapt(model: nn.Module, rank: int) -> Any:
    """Put low-rank adapters on all projections of a model."""
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise InputError("--lora needs peft: pip install 'wirescope[lora]'.") from error
    transposed = any(type(module).__name__ == "Conv1D" for module in model.modules())
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", fan_in_fan_out=transposed)
    return get_peft_model(model, settings)
