"""The training loop of sparse post-training: steps at a pace, looks at held-out text, and checkpoints.

Everything random in a step (which documents, which positions, which noise) follows from the seed, the step and the
process, so a training that was stopped and goes on ends in the same weights.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from ..data import replacing
from ..errors import ExtractionError
from .batches import Batches, Text
from .constraint import Constraint
from .models import Loaded, is_accelerator
from .predictions import Compared
from .recipe import Recipe
from .settings import Listener
from .student import Twins

LAST = "last.pt"
"""In the folder: what a training goes on from."""
PROGRESS = "progress.json"
"""In the folder: what was tried so far, for whoever wants to see."""
_RANGE_STEPS, _RANGE_FIRST, _RANGE_FACTOR = 40, 1e-6, 1.3
_RANGE_HARM, _RANGE_SHARE = 0.1, 0.1


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

    def better(self, other: "Found", recipe: Recipe) -> bool:
        """Whether it is the one to keep: it is sparser, where both are within all bounds, or else nearer to them."""
        within = self.within(recipe)
        if within != other.within(recipe):
            return within
        if within:
            return self.open_gates < other.open_gates
        beyond, others = (
            excess - recipe.bound(kind) for excess, kind in (self.worst(recipe), other.worst(recipe))
        )
        return beyond < others


@dataclass(frozen=True)
class _Done:
    """A step of gradient descent."""

    share: float
    """Of open gates, as expected."""
    own: Tensor
    """Cross-entropy of the student, by kind, on documents without noise; NaN where a kind had none."""
    dense: Tensor
    """The same of the dense model."""
    divergence: Tensor
    """Of the student from the dense model, likewise."""
    excess: Tensor
    """Likewise; infinite where anything was no number."""


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
        self._mixed, self._device = mixed, dense.device
        self._accelerator = Accelerator(
            cpu=not is_accelerator(dense.device), device_placement=False, mixed_precision="no"
        )
        self._batches = Batches(
            kinds,
            recipe,
            len(dense.parts.unembed.weight),  # type: ignore[arg-type]
            process=self._accelerator.process_index,
            processes=self._accelerator.num_processes,
            device=dense.device,
        )
        self._divergent = torch.tensor([kind in divergent for kind in kinds], device=dense.device)
        self._twins = Twins(
            dense,
            lora=recipe.lora,
            mixed=mixed,
            closed=None if recipe.control else recipe.closed,
            some=self._batches.first(),
        )
        self._wrapped, self._optimizer = self._accelerator.prepare(
            self._twins.student, self._twins.optimizer()
        )
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
        self._listener.begin(self._plan(), "steps", recipe.steps, self._step)
        if resumed:
            self._note(self._resumed())
        if self._rate is None:
            self._rate = self._found_rate()
        if not self.tried:
            self._evaluate()
        while self._step < recipe.steps:
            self._train()
            self._listener.advance(1)
            if self._step % recipe.evaluate_every == 0 or self._step == recipe.steps:
                self._evaluate()
                self._save()
        met = self.best is not None and (recipe.control or self.best.within(recipe))
        if met:
            self._twins.load_trained(torch.load(self._folder / "best.pt", weights_only=True))
        self._accelerator.wait_for_everyone()  # before the first of them clears the folder
        return self.best if met else None

    def finished(self) -> PreTrainedModel:
        """The student as a model of its own, its gates in its config."""
        return self._twins.finished()

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self._accelerator.is_main_process

    @property
    def learning_rate(self) -> float:
        """Learning rate of the weights: the recipe's, or what the range test found."""
        assert self._rate is not None
        return self._rate

    def _train(self) -> None:
        recipe, share = self._recipe, self._recipe.rate_at(self._step)
        price = 0.0 if recipe.control else self._constraint.price
        done = self._descend(
            self._step, share * self.learning_rate, share * recipe.gate_rate * self._constraint.pace, price
        )
        self._constraint.update(done.excess, self._step)
        self._step += 1
        if (kind := self._constraint.ruined) is not None:
            raise ExtractionError(self._ruin(kind))
        self._listener.status(
            f"loss {float(done.own.nanmean()):.3f}, dense {float(done.dense.nanmean()):.3f}, "
            f"{100 * done.share:.2f} % open, price {price:.2f}"
        )

    def _descend(self, step: int, rate: float, gate_rate: float, price: float) -> _Done:
        """A step of gradient descent, and what it saw before."""
        recipe, accelerator, kinds = self._recipe, self._accelerator, len(self._kinds)
        torch.manual_seed((recipe.seed * 1_000_003 + step) * 1_009 + accelerator.process_index)
        for group, own_rate in zip(self._optimizer.param_groups, (rate, gate_rate), strict=True):
            group["lr"] = own_rate
        parts = self._batches.of_step(step)
        counts = torch.stack([torch.bincount(part.kinds_drawn, minlength=kinds) for part in parts]).sum(0)
        weights = self._constraint.weights.to(self._device) / counts.clamp(min=1) / kinds
        pairs = sum(part.pairs for part in parts)
        self._twins.student.gates.train()
        narrow = torch.bfloat16 if self._mixed else self._twins.unembedding.dtype
        unembedding = self._twins.unembedding.to(narrow)
        self._optimizer.zero_grad()
        share, seen = 0.0, torch.zeros(4, kinds, device=self._device)  # own, dense, divergence, predictions
        for number, part in enumerate(parts):
            kind, last = part.kinds_drawn, number == len(parts) - 1
            divergent, weight = self._divergent[kind], weights[kind]
            with nullcontext() if last else accelerator.no_sync(self._wrapped):
                with self._twins.passes():
                    states, is_open = self._wrapped(part.ids, part.real, part.noisy)
                    dense_states = self._twins.dense_states(part.ids)
                loss, own, dense, divergence = Compared.apply(
                    states[:, :-1][part.drawn].to(narrow),
                    dense_states[:, :-1][part.drawn].to(narrow),
                    unembedding,
                    part.ids[:, 1:][part.drawn],
                    torch.where(divergent, 0.0, weight),
                    torch.where(divergent, 1 + recipe.distill, recipe.distill) * weight,
                )
                accelerator.backward(loss + price * is_open * (part.pairs / pairs))
            share += float(is_open.detach()) * part.pairs / pairs
            quiet = part.each(~part.noisy)  # as in the finished model
            for row, values in enumerate((own, dense, divergence, torch.ones_like(own))):
                seen[row].index_add_(0, kind[quiet], values[quiet])
        accelerator.clip_grad_norm_(self._twins.student.parameters(), 1.0)
        self._optimizer.step()
        own, dense, divergence = seen[:3] / seen[3]
        divergence = divergence.where(seen[:3].isfinite().all(0), math.inf)
        excess = torch.where(self._divergent | divergence.isinf(), divergence, own - dense)
        divergence, excess = (self._accelerator.reduce(each, "mean").cpu() for each in (divergence, excess))
        return _Done(share, own, dense, divergence, excess)

    def _found_rate(self) -> float:
        """A learning rate by a range test: it grows from step to step, until predictions drift away.

        Near a minimum the gradient is mostly noise, and steps of Adam are of one size however small it is. So weights
        drift, the further the higher the rate: how much harm that does, batch and model decide, and no rule knows. What
        is looked at is the divergence from the dense model, because the loss falls at first where a text is learnt. A
        tenth of the rate that does harm in a few steps is one that can be borne for long.
        """
        weights = {name: weight.clone() for name, weight in self._twins.trained().items()}
        rate, first, drift = _RANGE_FIRST, torch.zeros(len(self._kinds)), torch.zeros(len(self._kinds))
        for step in range(_RANGE_STEPS):
            now = self._descend(self._recipe.steps + step, rate, 0.0, 0.0).divergence
            known = ~now.isnan()
            first = first.where((first > 0) | ~known, now)
            drift = drift.where(~known, (drift + now - first) / 2)
            if float(drift.max()) > _RANGE_HARM:
                break
            rate *= _RANGE_FACTOR
        self._twins.load_trained(weights)
        self._optimizer = self._accelerator.prepare(self._twins.optimizer())
        found = float(f"{_RANGE_SHARE * rate:.1e}")
        self._note(f"Learning rate {found:.1e}, by a range test; --learning-rate sets it.")
        return found

    @torch.no_grad()
    def _held_out(self, *, gated: bool) -> tuple[dict[str, float], dict[str, float], float]:
        """By kind, loss and divergence on held-out text, and the share of open gates; all processes share the work."""
        twins = self._twins
        twins.student.gates.eval()
        sums = torch.zeros(3, len(self._kinds), device=self._device)  # loss, divergence, predictions
        pairs = torch.zeros(2, device=self._device)  # open, all
        for part in self._batches.held_out():
            dense = twins.dense_states(part.ids)
            states = twins.student(part.ids, part.real)[0] if gated else dense
            nothing = torch.zeros(int(part.drawn.sum()), device=self._device)
            _, entropy, _, divergence = Compared.apply(
                states[:, :-1][part.drawn],
                dense[:, :-1][part.drawn],
                twins.unembedding,
                part.ids[:, 1:][part.drawn],
                nothing,
                nothing,
            )
            for row, values in enumerate((entropy, divergence, torch.ones_like(entropy))):
                sums[row].index_add_(0, part.kinds_drawn, values)
            if gated:
                pairs += torch.stack(twins.student.gates.counts())
        sums, pairs = self._accelerator.reduce(sums), self._accelerator.reduce(pairs)
        losses, divergences = (
            dict(zip(self._kinds, (row / sums[2]).tolist(), strict=True)) for row in sums[:2]
        )
        return losses, divergences, float(pairs[0] / pairs[1]) if gated else 1.0

    def _evaluate(self) -> None:
        """Try the student on held-out text, and keep it if it is the sparsest so far that is within all bounds.

        Until one is, the nearest to them is kept. Of a control it is the last.
        """
        recipe = self._recipe
        losses, divergences, share = self._held_out(gated=True)
        excess = {
            kind: divergences[kind] if divergent else loss - self.dense_losses[kind]
            for (kind, loss), divergent in zip(losses.items(), self._divergent.tolist(), strict=True)
        }
        found = Found(self._step, share, losses, divergences, excess)
        self.tried.append(found)
        kept = self._step > 0 and (self.best is None or recipe.control or found.better(self.best, recipe))
        if kept:
            self.best = found
            self._write("best.pt", self._twins.trained())
        if self._step:
            self._constraint.held_out(torch.tensor(list(excess.values())))
        worst, kind = found.worst(recipe)
        said = f"After {self._step:,} steps, on held-out text: {100 * share:.2f} % open, excess {worst:+.4f} on {kind}"
        if not recipe.control and self._constraint.free_for >= recipe.evaluate_every:
            said += f", open gates have cost nothing for {self._constraint.free_for:,} steps"
        self._note(said + (", kept." if kept and (recipe.control or found.within(recipe)) else "."))

    def _save(self) -> None:
        tried = [asdict(found) for found in self.tried]
        self._write(
            LAST,
            {
                "step": self._step,
                "rate": self._rate,
                "trained": self._twins.trained(),
                "optimizer": self._optimizer.state_dict(),
                "constraint": self._constraint.state(),
                "tried": tried,
                "best": None if self.best is None else self.tried.index(self.best),
            },
        )
        if self.leads:
            kept = None if self.best is None else self.best.step
            progress = {"tried": tried, "bounds": self.bounds(), "kept_step": kept}
            with replacing(self._folder / PROGRESS) as file:
                file.write(json.dumps(progress).encode())

    def _resume(self) -> bool:
        """Go on from what is in the folder, if anything is."""
        if not (self._folder / LAST).is_file():
            return False
        state = torch.load(self._folder / LAST, map_location=self._device, weights_only=True)
        self._step, self._rate = state["step"], state["rate"]
        self._twins.load_trained(state["trained"])
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

    def bounds(self) -> dict[str, tuple[str, float]]:
        """By kind of text, whether its loss or its divergence is bounded, and by how much."""
        return {
            kind: ("divergence" if divergent else "loss", self._recipe.bound(kind))
            for kind, divergent in zip(self._kinds, self._divergent.tolist(), strict=True)
        }

    def _ruin(self, kind: str) -> str:
        """What is said where the weights are ruined: how that is seen on a kind of text, and what to do."""
        recipe, excess = self._recipe, self._constraint.excess_of(kind)
        said = "is no number any more. The weights are ruined"
        if math.isfinite(excess):
            said = (
                f"is {excess:.2f} nats a token and grows, though open gates have cost nothing for "
                f"{self._constraint.free_for} steps. The weights are being ruined, not the gates"
            )
        return (
            f"Stopped after {self._step:,} steps: the excess on {kind} {said}: remove '{self._folder}' and lower "
            f"--learning-rate, which is {self.learning_rate:.1e}, or raise --batch-size, which is {recipe.batch_size}"
            + ("" if recipe.distill else ", or give --distill 1")
            + ("; and train the twin likewise." if recipe.control else ".")
        )

    def _note(self, message: str) -> None:
        if self.leads:
            self._listener.note(message)

    def _plan(self) -> str:
        documents = ", ".join(f"{kind} ({len(text.train):,})" for kind, text in self._kinds.items())
        said = ", ".join(f"{kind} {loss:.3f}" for kind, loss in self.dense_losses.items())
        bounds = ", ".join(
            f"{kind} {bound}{' of divergence' if what == 'divergence' else ''}"
            for kind, (what, bound) in self.bounds().items()
        )
        what = "Training without gates, as a control," if self._recipe.control else "Sparse post-training"
        bounded = "" if self._recipe.control else f"; at most so much more: {bounds}"
        return (
            f"{what} in {self._recipe.steps:,} steps on {documents}; the dense model's loss on held-out "
            f"text: {said}{bounded}."
        )

    def _resumed(self) -> str:
        last = self.tried[-1]
        worst, kind = last.worst(self._recipe)
        return (
            f"Resumed after {self._step:,} of {self._recipe.steps:,} steps, where {100 * last.open_gates:.2f} % were "
            f"open and the excess was {worst:+.4f} on {kind}."
        )
