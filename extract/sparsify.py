"""Sparse post-training: from a dense model to one that does the same through few open gates.

It starts from the dense weights, with a gate on every pair of tokens in every head (`gates`), all open. Then

    minimise   the expected share of open gates
    subject to excess over the dense model <= epsilon,      for each kind of text

by gradient descent on the mean over kinds of ``cross-entropy + distill * divergence``, plus ``price * share``. The
excess of a kind is the growth of its cross-entropy. Of a kind that is narrow, such as the prompts of a task, it is the
divergence from the dense model's predictions instead, and so is its loss: cross-entropy falls there by learning the
template, and its bound would bind nothing. Slack in one kind cannot hide damage in another. The dense model reads the
same batches, so that the excess has little noise. The price follows it (`constraint`): gates are closed no faster than
the loss can bear. In training the excess may first be higher than epsilon, by some slack; over the last four
fifths of the steps that goes to zero, and so do the learning rates.

Gates are hard when it counts: on held-out text, every so many steps. The sparsest model that is within all bounds there
is the one that is written.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..data import (
    MAIN_TASKS,
    Prompt,
    Vocabulary,
    check_task,
    disk_errors,
    known_names,
    make_folder,
    make_task,
    read_documents,
    replacing,
    settle_folder,
    task_documents,
)
from ..errors import ExtractionError, InputError, one_of
from .accuracy import Accuracy, accuracy
from .batches import Text
from .models import Loaded, find_device, load_untapped, quiet_unless_terminal, vocabulary_of
from .recipe import Recipe
from .settings import Deaf, Listener
from .training import LAST, Found, Trainer
from .workers import local_rank

_DTYPES = ("auto", "float32", "bfloat16")
_TASK_PROMPTS = 2_000
_JUDGED_PROMPTS = 200
_HELD_OUT = 10
"""One document of so many is held out,"""
_MOST_HELD_OUT = 200
"""but no more of a kind than these."""


@dataclass(frozen=True)
class Report:
    """What came of it; of pairs, the dense model's number is first."""

    steps: int
    kept_step: int
    """After which the model was that is kept."""
    learning_rate: float
    control: bool
    """Whether it was trained without gates."""
    open_gates: float
    """The share of all pairs of tokens, over layers, heads and kinds of text."""
    losses: Mapping[str, tuple[float, float]]
    """By kind of text, on held-out text, in nats a token."""
    divergences: Mapping[str, float]
    """Of the sparse model's predictions from the dense one's, likewise."""
    bounds: Mapping[str, tuple[str, float]]
    """By kind of text, which of the two is bounded, and how much of it there may be."""
    tried: Sequence[Mapping[str, Any]]
    """Every look at held-out text on the way."""
    tasks: Mapping[str, tuple[Accuracy, Accuracy]]
    """By task, those that the tokenizer can do."""


def sparsify(
    *,
    model: str,
    out: Path | str,
    texts: Sequence[Path | str] = (),
    tasks: Sequence[str] = (),
    recipe: Recipe | None = None,
    device: str = "auto",
    dtype: str = "auto",
    listener: Listener | None = None,
) -> Report | None:
    """Make a sparse twin of a dense model and write it to a folder; only the first of several processes reports.

    Each file of `texts` and each task is a kind of text, with a constraint of its own. What is under way is kept beside
    the folder, in ``OUT.partial``; the same call goes on from there.
    """
    recipe, listener, out = recipe or Recipe(), listener or Deaf(), Path(out)
    recipe.check()
    recipe.check_kinds([*(Path(file).stem for file in texts), *tasks])
    one_of("dtype of sparse post-training", dtype, _DTYPES)
    for task in tasks:
        check_task(task)
    if not texts and not tasks:
        raise InputError("There is nothing to train on: give --text FILE or --task NAME, or several.")
    if out.exists():
        raise InputError(f"'{out}' is there already: choose another --out, or remove it.")
    where = find_device(device, local_rank())
    dense, mixed = _load(model, where, dtype, whole=recipe.lora is None)
    if getattr(dense.model.config, "gate_bias", None) is not None:
        raise InputError(f"The model '{model}' is gated already: start from a dense one.")
    vocabulary = vocabulary_of(dense)
    kinds = _kinds(texts, tasks, vocabulary, recipe)
    names = known_names(vocabulary)  # before adapters change the model
    judged = _judged(vocabulary, recipe)
    before = {task: accuracy(dense.parts, prompts) for task, prompts in judged.items()}
    partial = out.with_name(f"{out.name}.partial")
    divergent = [kind for kind in kinds if kind in tasks or kind in recipe.divergent]
    call = {"model": model, "revision": dense.revision, "dtype": dtype, "kinds": _hashed(kinds)}
    _claim(partial, call | asdict(recipe) | {"divergent": divergent})
    trainer = Trainer(dense, kinds, recipe, partial, listener, divergent=divergent, mixed=mixed)
    best = trainer.run()
    if not trainer.leads:
        return None
    if best is None:
        raise ExtractionError(_too_far(trainer, recipe, partial))
    sparse = trainer.finished()
    after = {task: accuracy(dense.family.parts(sparse), prompts) for task, prompts in judged.items()}
    report = Report(
        steps=recipe.steps,
        kept_step=best.step,
        learning_rate=trainer.learning_rate,
        control=recipe.control,
        open_gates=best.open_gates,
        losses={kind: (loss, best.losses[kind]) for kind, loss in trainer.dense_losses.items()},
        divergences=best.divergences,
        bounds=trainer.bounds(),
        tried=[asdict(found) for found in trainer.tried],
        tasks={task: (before[task], after[task]) for task in judged},
    )
    _write(sparse, dense, model, names, report, partial, out)
    return report


def _load(model: str, device: torch.device, dtype: str, *, whole: bool) -> tuple[Loaded, bool]:
    """The dense model, and whether passes are made in bfloat16.

    Whole weights are trained in float32; those that adapters are put on may be kept in bfloat16.
    """
    dense = load_untapped(model, device=device, dtype="float32" if whole and dtype == "bfloat16" else dtype)
    mixed = dtype == "bfloat16" or dense.model.dtype != torch.float32
    wanted = torch.bfloat16 if mixed and not whole else torch.float32
    if dense.model.dtype != wanted:
        torch.nn.Module.to(dense.model, wanted)
    return dense, mixed


def _too_far(trainer: Trainer, recipe: Recipe, partial: Path) -> str:
    """What is said where no student is within all bounds: how far the nearest is, and how to have it all the same."""
    nearest: Found = trainer.best or trainer.tried[-1]
    excess, kind = nearest.worst(recipe)
    options = " ".join(
        f"--epsilon {kind}={_rounded_up(excess)}"
        for kind, excess in nearest.excess.items()
        if not excess <= recipe.bound(kind)
    )
    return (
        f"No model met the constraint on held-out text: the nearest, after {nearest.step:,} steps with "
        f"{100 * nearest.open_gates:.2f} % of the gates open, has an excess of {excess:.3f} nats a token on {kind}, "
        f"where {recipe.bound(kind)} are allowed. It is kept in '{partial}': the same call with {options} writes it. "
        "For a nearer one remove that folder, and give more --steps, or less --slack."
    )


def _rounded_up(excess: float) -> str:
    """To two digits.

    >>> _rounded_up(0.01234)
    '0.013'
    """
    unit = 10.0 ** (math.floor(math.log10(excess)) - 1)
    return f"{math.ceil(excess / unit) * unit:.3g}"


def _kinds(
    texts: Sequence[Path | str], tasks: Sequence[str], vocabulary: Vocabulary, recipe: Recipe
) -> dict[str, Text]:
    """Each kind of text, a part of it held out."""
    if vocabulary.encode is None:
        raise InputError(
            "The model has no tokenizer, so it cannot be trained on text: put one into its folder."
        )
    context = min(recipe.context, vocabulary.context)
    found = {Path(file).stem: read_documents(file, vocabulary.encode, context) for file in texts}
    if len(found) < len(texts):
        raise InputError("Two texts have the same name, which is that of their kind: rename one.")
    for task in tasks:
        if task in found:
            raise InputError(f"'{task}' is the name of a text and of a task: rename the text.")
        found[task] = task_documents(make_task(task, vocabulary, _TASK_PROMPTS, recipe.seed))
    for kind, documents in found.items():
        if len(set(documents)) < 2:
            raise InputError(
                f"'{kind}' has one document of at most {context} tokens, and another has to be held out: give more "
                "text, or a smaller --context."
            )
    return {kind: parted(documents) for kind, documents in found.items()}


def parted(documents: list[tuple[int, ...]]) -> Text:
    """Some documents are held out; what is the same as one of them is not trained on."""
    held_out = dict.fromkeys(list(dict.fromkeys(documents))[::_HELD_OUT][:_MOST_HELD_OUT])
    return Text([document for document in documents if document not in held_out], list(held_out))


def _judged(vocabulary: Vocabulary, recipe: Recipe) -> dict[str, list[Prompt]]:
    """Prompts of those tasks that the tokenizer can do, others than those that are trained on."""
    judged = {}
    for task in MAIN_TASKS:
        try:
            judged[task] = make_task(task, vocabulary, _JUDGED_PROMPTS, recipe.seed + 1)
        except InputError:
            continue
    return judged


def _hashed(kinds: Mapping[str, Text]) -> dict[str, str]:
    return {
        kind: hashlib.sha256(json.dumps([text.train, text.held_out]).encode()).hexdigest()
        for kind, text in kinds.items()
    }


def _claim(folder: Path, call: Mapping[str, Any]) -> None:
    """Make a folder for what is under way, or find that it is of the same call."""
    file = folder / "call.json"
    if file.is_file():
        there = json.loads(file.read_text())
        there |= {name: call[name] for name in ("epsilon", "epsilons") if _is_done(folder, there)}
        if other := [key for key, value in call.items() if there.get(key) != json.loads(json.dumps(value))]:
            raise InputError(
                f"'{folder}' is of a training with another {other[0]}: give that call again, remove the folder, or "
                "choose another --out."
            )
        return
    with disk_errors(folder):
        make_folder(folder)
    with replacing(file) as new:
        new.write(json.dumps(call, indent=1).encode())


def _is_done(folder: Path, call: Mapping[str, Any]) -> bool:
    """Whether all steps of a training are done, so that other bounds ask for no other training."""
    last = folder / LAST
    return last.is_file() and torch.load(last, mmap=True, weights_only=True)["step"] == call["steps"]


def _write(
    sparse: PreTrainedModel,
    dense: Loaded,
    base: str,
    names: Sequence[str],
    report: Report,
    partial: Path,
    out: Path,
) -> None:
    """Write the model's folder, whole or not at all; tasks make the same prompts for it as for the dense model."""
    quiet_unless_terminal()
    made = partial / "model"
    sparse.config.base_model = base
    sparse.config.known_names = list(names)
    with disk_errors(out):
        sparse.save_pretrained(made)
        if dense.tokenizer is not None:
            dense.tokenizer.save_pretrained(made)
        (made / "sparsify.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
        settle_folder(made, out)
        shutil.rmtree(partial)
