"""The training loop of sparse post-training: a student with gates, its constraint, and checkpoints.

Everything random in a step (which documents, which noise) follows from the seed, the step and the process, so a
training that was stopped and goes on ends in the same weights.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..data import Documents, replacing
from ..graphs import InputError
from .gates import Gates
from .models import Loaded, is_accelerator
from .parts import Parts
from .settings import Listener

_SMOOTHING = 0.97
_CLIP = 0.01
"""In nats: how far from its constraint a kind counts at most in a step of the multiplier."""
_DECAY = 0.4
"""The share of the steps, the last ones, over which learning rates go to zero, and so does what open gates cost."""
_WARM_UP = 50


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train."""

    steps: int = 3_000
    epsilon: float = 0.01
    """How much cross-entropy may grow, in nats a token, for each kind of text."""
    slack: float = 0.02
    """How much more than half of epsilon it may grow while gates are being closed. Weights get used to closed gates
    only while these are closed, so a bound that is kept all the time keeps many of them open. The last steps make up
    for it, and end at half of epsilon, so that text which was held out stays within all of it."""
    batch_size: int = 32
    """Documents a step and process, the same number of each kind."""
    context: int = 256
    """Tokens a document at most."""
    learning_rate: float = 1e-4
    gate_rate: float = 0.02
    """The learning rate of the gates' biases."""
    bias: float = 5.0
    """Where these begin: gates are all but open."""
    cost: float = 0.3
    """What an open share of 1 costs at first, in nats: one over the multiplier of the constraint."""
    least_cost: float = 0.03
    """It goes no lower: at first any noise does harm, until weights have got used to it."""
    most_cost: float = 6.0
    multiplier_rate: float = 2.0
    distill: float = 0.0
    """How much the divergence from the dense model's predictions counts beside the cross-entropy."""
    lora: int | None = None
    """Train low-rank adapters of this rank instead of all weights, and merge them at the end."""
    evaluate_every: int = 100
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """What share of the learning rates a step has: all, but for the first ones and the last."""
        return min(1.0, (step + 1) / _WARM_UP, self.left_at(step))

    def left_at(self, step: int) -> float:
        """1 until the last steps begin, 0 at their end."""
        return min(1.0, (self.steps - step) / (_DECAY * self.steps))

    def allowed_at(self, step: int) -> float:
        """How much cross-entropy may grow as yet."""
        return self.epsilon / 2 + self.slack * self.left_at(step)

    def check(self) -> None:
        """Refuse what makes no sense."""
        if not self.epsilon >= 0:
            raise InputError(
                f"--epsilon {self.epsilon} is below 0: the sparse model may be worse than the dense one by epsilon "
                "nats a token; 0.01 is usual."
            )
        for name in ("steps", "batch_size", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}: it must be at least 1."
                )
        if self.context < 2:
            raise InputError(f"--context {self.context} leaves nothing to predict: it must be at least 2.")
        if self.lora is not None and self.lora < 1:
            raise InputError(f"--lora {self.lora} is no rank: it must be at least 1.")
        for name in ("slack", "distill"):
            if not getattr(self, name) >= 0:
                raise InputError(f"--{name} {getattr(self, name)} is below 0.")


@dataclass(frozen=True)
class Text:
    """One kind of text, as token ids."""

    train: Documents
    held_out: Documents


@dataclass
class Found:
    """A model on held-out text, with hard gates."""

    step: int
    open_gates: float
    losses: dict[str, float]
    """By kind of text, in nats a token."""

    def excess(self, dense: Mapping[str, float]) -> tuple[float, str]:
        """How much worse than the dense model it is in the kind where that is most, and which."""
        return max((loss - dense[kind], kind) for kind, loss in self.losses.items())


class Constraint:
    """How much the loss of each kind of text counts against the share of open gates: a Lagrange multiplier a kind.

    A multiplier grows while its kind is beyond its constraint, smoothed over some steps, and shrinks while it is not.
    """

    def __init__(self, recipe: Recipe, kinds: int) -> None:
        self._recipe = recipe
        self.logs = torch.full((kinds,), -math.log(recipe.cost))
        self.beyond: Tensor | None = None

    def update(self, excess: Tensor, step: int) -> None:
        """Take in a step's cross-entropy less the dense model's, by kind; NaN where it is not known."""
        now = excess - self._recipe.allowed_at(step)
        before = now.nan_to_num(0.0) if self.beyond is None else self.beyond
        self.beyond = torch.where(now.isnan(), before, _SMOOTHING * before + (1 - _SMOOTHING) * now)
        self.logs += self._recipe.multiplier_rate * self.beyond.clamp(-_CLIP, _CLIP)
        self.logs.clamp_(-math.log(self._recipe.most_cost), -math.log(self._recipe.least_cost))

    @property
    def weights(self) -> Tensor:
        """How much each kind counts, 1 on average, [kind]."""
        return self.logs.softmax(0) * len(self.logs)

    @property
    def cost(self) -> float:
        """What an open share of 1 costs, in nats: one over the mean of the multipliers."""
        return 1 / float(self.logs.exp().mean())


class Student(nn.Module):
    """A model with gates."""

    def __init__(self, model: nn.Module, parts: Parts, bias: float) -> None:
        super().__init__()
        self.model, self._parts = model, parts
        self.gates = Gates(parts.shape.layers, parts.shape.heads, bias)

    def forward(self, ids: Tensor, real: Tensor, noisy: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits [document, position, token], and the share of open gates; `noisy` [document] in training."""
        self.gates.begin(real, real[:, 0] if noisy is None else noisy)
        return logits_of(self._parts, ids, gates=self.gates), self.gates.share()


def logits_of(parts: Parts, ids: Tensor, **given: Any) -> Tensor:
    """Logits [document, position, token]."""
    hidden = parts.base(input_ids=ids, use_cache=False, **given).last_hidden_state
    return parts.unembed(hidden).float()


class Trainer:
    """Trains a student of a dense model on kinds of text; keeps what it needs to go on in a folder."""

    def __init__(
        self, dense: Loaded, kinds: Mapping[str, Text], recipe: Recipe, folder: Path, listener: Listener
    ) -> None:
        self._recipe, self._kinds, self._folder, self._listener = recipe, kinds, folder, listener
        self._accelerator = Accelerator(cpu=not is_accelerator(dense.device))
        model = dense.model if recipe.lora else copy.deepcopy(dense.model)
        parts = dense.family.parts(model)
        self._dense_parts: Parts = dense.family.parts(dense.model)
        self._adapted = _adapt(model, recipe.lora) if recipe.lora else None
        self._student = Student(model, parts, recipe.bias)
        for name, weight in self._student.named_parameters():
            weight.requires_grad_(self._adapted is None or "lora_" in name or name.startswith("gates."))
        own = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(
            [
                {"params": own, "lr": recipe.learning_rate, "weight_decay": 0.01},
                {"params": [self._student.gates.bias], "lr": recipe.gate_rate, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.98),
        )
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._wrapped, self._optimizer = self._accelerator.prepare(self._student, optimizer)
        self._constraint = Constraint(recipe, len(kinds))
        self._step = 0
        self.dense_losses: dict[str, float] = {}
        self.tried: list[Found] = []
        self.best: Found | None = None

    def run(self) -> Found | None:
        """Train to the end; the sparsest model that met the constraint, which the student then is, if any did."""
        recipe = self._recipe
        self.dense_losses, _ = self._held_out(gated=False)
        self._resume()
        self._listener.begin(self._plan(), "steps", recipe.steps, self._step)
        if not self.tried:
            self._evaluate()
        while self._step < recipe.steps:
            self._train()
            self._listener.advance(1)
            if self._step % recipe.evaluate_every == 0 or self._step == recipe.steps:
                self._evaluate()
                self._save()
        if self.best is not None:
            self._load_trained(torch.load(self._folder / "best.pt", weights_only=True))
        self._accelerator.wait_for_everyone()  # before the first of them clears the folder
        return self.best

    def finished(self) -> PreTrainedModel:
        """The student as a model of its own, its gates in its config."""
        model: Any = self._student.model if self._adapted is None else self._adapted.merge_and_unload()
        model.config.gate_bias = self._student.gates.biases()
        model.eval().requires_grad_(False)
        return model

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self._accelerator.is_main_process

    def _train(self) -> None:
        recipe, accelerator = self._recipe, self._accelerator
        torch.manual_seed((recipe.seed * 1_000_003 + self._step) * 1_009 + accelerator.process_index)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * recipe.rate_at(self._step)
        ids, real, kind = self._batch(self._drawn())
        self._student.gates.train()
        with torch.no_grad():
            dense_logits = self._dense(ids)
            dense = _cross_entropy(dense_logits, ids)
        noisy = (torch.arange(len(ids), device=ids.device) + self._step) % 2 == 0
        logits, share = self._wrapped(ids, real, noisy)
        own = _cross_entropy(logits, ids)
        minded = own + recipe.distill * _divergence(dense_logits, logits) if recipe.distill else own
        weighted = self._constraint.weights.to(own) * self._by_kind(minded, real, kind)
        # at the end nothing more is closed, and the weights make the best of it
        loss = weighted.mean() + self._constraint.cost * recipe.left_at(self._step) * share
        self._optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(self._student.parameters(), 1.0)
        self._optimizer.step()
        # what the finished model would do, which has no noise
        excess = self._by_kind((own - dense).detach(), real & ~noisy[:, None], kind)
        self._constraint.update(accelerator.reduce(excess, "mean").cpu(), self._step)
        self._step += 1

        def mean(losses: Tensor) -> float:
            return float(self._by_kind(losses.detach(), real, kind).mean())

        self._listener.status(
            f"loss {mean(own):.3f} against {mean(dense) + recipe.allowed_at(self._step - 1):.3f}, "
            f"{100 * float(share.detach()):.2f} % open, multiplier {1 / self._constraint.cost:.2f}"
        )

    def _drawn(self) -> list[tuple[int, tuple[int, ...]]]:
        """The documents of a step, each with the number of its kind."""
        rng = np.random.default_rng([self._recipe.seed, self._step, self._accelerator.process_index])
        each = max(1, self._recipe.batch_size // len(self._kinds))
        return [
            (number, text.train[i])
            for number, text in enumerate(self._kinds.values())
            for i in rng.choice(len(text.train), min(each, len(text.train)), replace=False)
        ]

    def _batch(self, documents: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids and whether they are real, [document, position], and kinds, [document]."""
        longest = max(len(ids) for _, ids in documents)
        device = self._accelerator.device
        ids = torch.tensor([[*own, *[0] * (longest - len(own))] for _, own in documents], device=device)
        lengths = torch.tensor([len(own) for _, own in documents], device=device)
        real = torch.arange(longest, device=device) < lengths[:, None]
        return ids, real, torch.tensor([number for number, _ in documents], device=device)

    def _dense(self, ids: Tensor) -> Tensor:
        """The dense model's logits."""
        with self._adapted.disable_adapter() if self._adapted is not None else nullcontext():
            return logits_of(self._dense_parts, ids)

    def _by_kind(self, values: Tensor, real: Tensor, kind: Tensor) -> Tensor:
        """The mean over the tokens of each kind of text, [kind], of [document, position - 1]."""
        counted = real[:, 1:]
        zeros = values.new_zeros(len(self._kinds))
        sums = zeros.index_add(0, kind, (values * counted).sum(1))
        return sums / zeros.index_add(0, kind, counted.sum(1).to(values))

    @torch.no_grad()
    def _held_out(self, *, gated: bool) -> tuple[dict[str, float], float]:
        """By kind, the loss on held-out text, and the share of open gates; all processes share the work."""
        self._student.gates.eval()
        size, device = self._recipe.batch_size, self._accelerator.device
        losses = torch.zeros(len(self._kinds), 2, device=device)  # sum, tokens
        pairs = torch.zeros(2, device=device)  # open, all
        for number, text in enumerate(self._kinds.values()):
            own = text.held_out[self._accelerator.process_index :: self._accelerator.num_processes]
            for first in range(0, len(own), size):
                ids, real, _ = self._batch([(number, document) for document in own[first : first + size]])
                logits = self._student(ids, real)[0] if gated else self._dense(ids)
                counted = real[:, 1:]
                losses[number] += torch.stack([(_cross_entropy(logits, ids) * counted).sum(), counted.sum()])
                if gated:
                    pairs += torch.stack(self._student.gates.counts())
        losses, pairs = self._accelerator.reduce(losses), self._accelerator.reduce(pairs)
        means = (losses[:, 0] / losses[:, 1]).tolist()
        return dict(zip(self._kinds, means, strict=True)), float(pairs[0] / pairs[1]) if gated else 1.0

    def _evaluate(self) -> None:
        """Try the student on held-out text, and keep it if it is the sparsest so far that meets the constraint."""
        losses, share = self._held_out(gated=True)
        found = Found(self._step, share, losses)
        self.tried.append(found)
        excess, kind = found.excess(self.dense_losses)
        sparser = self.best is None or share < self.best.open_gates
        kept = self._step > 0 and excess <= self._recipe.epsilon and sparser
        if kept:
            self.best = found
            self._write("best.pt", self._trained())
        if self.leads:
            self._listener.note(
                f"After {self._step:,} steps, on held-out text: {100 * share:.2f} % open, loss {excess:+.4f} on {kind}"
                + (", kept." if kept else ".")
            )

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
                "trained": self._trained(),
                "optimizer": self._optimizer.state_dict(),
                "multipliers": self._constraint.logs,
                "beyond": self._constraint.beyond,
                "tried": [asdict(found) for found in self.tried],
                "best": None if self.best is None else self.tried.index(self.best),
            },
        )

    def _resume(self) -> None:
        if not (self._folder / "last.pt").is_file():
            return
        state = torch.load(self._folder / "last.pt", map_location=self._accelerator.device, weights_only=True)
        self._step = state["step"]
        self._load_trained(state["trained"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._constraint.logs = state["multipliers"].cpu()
        self._constraint.beyond = state["beyond"].cpu()
        self.tried = [Found(**found) for found in state["tried"]]
        self.best = None if state["best"] is None else self.tried[state["best"]]

    def _write(self, name: str, content: Any) -> None:
        if self.leads:
            with replacing(self._folder / name) as file:
                torch.save(content, file)
        self._accelerator.wait_for_everyone()

    def _plan(self) -> str:
        documents = ", ".join(f"{kind} ({len(text.train):,})" for kind, text in self._kinds.items())
        said = ", ".join(f"{kind} {loss:.3f}" for kind, loss in self.dense_losses.items())
        return (
            f"Sparse post-training in {self._recipe.steps:,} steps on {documents}; the dense model's loss on held-out "
            f"text: {said}; at most {self._recipe.epsilon} more."
        )


def _cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """[document, position - 1]: of each token but the first, in nats."""
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


def _divergence(dense: Tensor, sparse: Tensor) -> Tensor:
    """[document, position - 1]: of the sparse model's predictions from the dense one's, in nats."""
    return functional.kl_div(
        sparse[:, :-1].log_softmax(-1), dense[:, :-1].log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)


def _adapt(model: nn.Module, rank: int) -> Any:
    """Put low-rank adapters on all projections of a model."""
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise InputError("--lora needs peft: pip install 'wirescope[lora]'.") from error
    transposed = any(type(module).__name__ == "Conv1D" for module in model.modules())
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", fan_in_fan_out=transposed)
    return get_peft_model(model, settings)
