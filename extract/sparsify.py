"""Sparse post-training: from a dense model to one that does the same through few open gates.

It starts from the dense weights, with a gate on every pair of tokens in every head (`gates`), all open. Then

    minimise   the expected share of open gates
    subject to cross-entropy <= that of the dense model + epsilon,      for each kind of text

by gradient descent on the mean over kinds of ``multiplier * cross-entropy``, plus the share. Each kind of text has a
multiplier of its own, which grows while the kind is beyond its constraint and shrinks while it is not: slack in one
kind cannot hide damage in another. The dense model reads the same batches, so that the constraint is on the difference,
whose noise is small. In training the loss may first be higher than that, by some slack. In the last 40 % of the steps
this goes down to half of epsilon, and the learning rates and what open gates cost go to zero.

Gates are hard when it counts: on held-out text, every so many steps. The sparsest model that meets the constraint there
is the one that is written.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..data import (
    MAIN_TASKS,
    Prompt,
    Vocabulary,
    check_task,
    disk_errors,
    make_folder,
    make_task,
    read_documents,
    replacing,
    settle_folder,
    task_documents,
)
from ..graphs import InputError, one_of
from .accuracy import Accuracy, accuracy
from .memory import ExtractionError
from .models import DTYPES, Loaded, find_device, load_untapped, quiet_unless_terminal, vocabulary_of
from .settings import Deaf, Listener
from .training import Recipe, Text, Trainer
from .workers import local_rank

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
    epsilon: float
    open_gates: float
    """The share of all pairs of tokens, over layers, heads and kinds of text."""
    losses: Mapping[str, tuple[float, float]]
    """By kind of text, on held-out text, in nats a token."""
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
    one_of("dtype", dtype, DTYPES)
    for task in tasks:
        check_task(task)
    if not texts and not tasks:
        raise InputError("There is nothing to train on: give --text FILE or --task NAME, or several.")
    if out.exists():
        raise InputError(f"'{out}' is there already: choose another --out, or remove it.")
    dense = load_untapped(model, device=find_device(device, local_rank()), dtype=dtype)
    if getattr(dense.model.config, "gate_bias", None) is not None:
        raise InputError(f"The model '{model}' is gated already: start from a dense one.")
    vocabulary = vocabulary_of(dense)
    kinds = _kinds(texts, tasks, vocabulary, recipe)
    judged = _judged(vocabulary, recipe)
    before = {task: accuracy(dense.parts, prompts) for task, prompts in judged.items()}
    partial = out.with_name(f"{out.name}.partial")
    _claim(partial, {"model": model, "revision": dense.revision, "kinds": _hashed(kinds)} | asdict(recipe))
    trainer = Trainer(dense, kinds, recipe, partial, listener)
    best = trainer.run()
    if not trainer.leads:
        return None
    if best is None:
        trained = (found for found in trainer.tried if found.step)
        nearest = min(trained, key=lambda found: found.excess(trainer.dense_losses))
        excess, kind = nearest.excess(trainer.dense_losses)
        shutil.rmtree(partial)
        raise ExtractionError(
            f"No model met the constraint on held-out text: the nearest, after {nearest.step} steps, is {excess:.3f} "
            f"nats worse than the dense one on {kind}, where {recipe.epsilon} are allowed. Nothing was written: give "
            "more --steps, or a larger --epsilon."
        )
    sparse = trainer.finished()
    after = {task: accuracy(dense.family.parts(sparse), prompts) for task, prompts in judged.items()}
    report = Report(
        steps=recipe.steps,
        kept_step=best.step,
        epsilon=recipe.epsilon,
        open_gates=best.open_gates,
        losses={kind: (loss, best.losses[kind]) for kind, loss in trainer.dense_losses.items()},
        tasks={task: (before[task], after[task]) for task in judged},
    )
    _write(sparse, dense, model, report, partial, out)
    return report


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
    return {kind: _parted(documents) for kind, documents in found.items()}


def _parted(documents: list[tuple[int, ...]]) -> Text:
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


def _write(
    sparse: PreTrainedModel, dense: Loaded, base: str, report: Report, partial: Path, out: Path
) -> None:
    """Write the model's folder, whole or not at all."""
    quiet_unless_terminal()
    made = partial / "model"
    sparse.config.base_model = base
    with disk_errors(out):
        sparse.save_pretrained(made)
        if dense.tokenizer is not None:
            dense.tokenizer.save_pretrained(made)
        (made / "sparsify.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
        settle_folder(made, out)
        shutil.rmtree(partial)
