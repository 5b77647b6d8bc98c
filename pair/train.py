"""Train a pair from nothing: a small dense model that does the four tasks, its sparse twin, and a control.

    python pair/train.py [--seed 0] [--out pairs/seed-0] [--embed]
    python pair/train.py --embedded

The dense model is a GPT-2 of 6 layers x 8 heads. Its first steps are mostly on echoes, from which it learns to look
back; then come all kinds of text. The sparse twin is what `wirescope sparsify` makes of it. The control is the dense
model trained on for as many steps, on text of the same kinds and with the same learning rates, without gates: what it
does otherwise than the dense one is due to more training, not to sparsity. Weights are kept in float16.

What is there already is not made again. At the end, a table says how well all three do. It takes one thread, so that
several seeds can be trained beside each other. ``--embed`` puts the dense model and its twin into the package;
``--embedded`` takes those two from there, and trains their control alone.
"""

import argparse
import json
import math
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import process_time

import torch
from corpus import CONTEXT, KINDS, make_tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils.logging import disable_progress_bar
from wirescope.data import MAIN_TASKS, make_task
from wirescope.extract.accuracy import accuracy
from wirescope.extract.models import load_untapped, vocabulary_of
from wirescope.extract.recipe import Recipe
from wirescope.extract.settings import Deaf
from wirescope.extract.sparsify import sparsify
from wirescope.extract.student import Student

TOKENIZER = make_tokenizer()
DENSE_STEPS, ECHO_STEPS = 3_000, 600
RATE, WARM_UP = 3e-3, 100
ECHO = {"echo": 24, "plain": 1, "ioi": 3, "ioi-long": 3, "greater-than": 4, "docstring": 3}
MIX = {"echo": 5, "plain": 1, "ioi": 6, "ioi-long": 6, "greater-than": 11, "docstring": 7}
"""Documents of each kind in a step, at first and then."""
DROPOUT, DROPOUT_FROM = 0.1, 0.65
SPARSE_RATE = 1e-3
RECIPE = Recipe(
    steps=2_600,
    epsilon=0.01,
    slack=0.05,
    batch_size=30,
    context=CONTEXT,
    learning_rate=SPARSE_RATE,
    gate_rate=0.02,
    distill=1.0,
)
EMBEDDED = Path(__file__).parents[1] / "data" / "models"
DOCUMENTS, HELD_OUT = 20_000, 200
"""Of each kind: for the sparse twin, and for the table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--embed", action="store_true", help="put the pair into the package")
    parser.add_argument("--embedded", action="store_true", help="take the pair from the package")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out or Path("pairs") / ("embedded" if options.embedded else f"seed-{options.seed}")
    out.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()
    texts = write_texts(out / "text", options.seed)
    dense, sparse, control = (out / name for name in ("tiny", "tiny-sparse", "tiny-control"))
    if options.embedded:
        for folder in (dense, sparse):
            copy(EMBEDDED / folder.name, folder, base=str(dense))
    if not dense.exists():
        save(train_dense(options.seed), dense)
    if not sparse.exists():
        made = out / "made-sparse"
        if not made.exists():
            recipe = replace(RECIPE, seed=options.seed)
            sparsify(model=str(dense), texts=texts, out=made, recipe=recipe, listener=Lines())
        halve(made)
        made.rename(sparse)
    if not control.exists():
        save(train_control(dense, options.seed), control, base_model=str(dense))
    report(dense, sparse, control, seed=options.seed)
    print(f"{process_time() / 60:.1f} CPU minutes")
    if options.embed:
        embed(dense, sparse)


def write_texts(folder: Path, seed: int) -> list[Path]:
    """Documents to make the sparse twin with, a file a kind."""
    folder.mkdir(exist_ok=True)
    texts = []
    for kind, make in KINDS.items():
        rng = random.Random(f"{seed} {kind}")
        lines = (json.dumps({"text": make(rng)}) + "\n" for _ in range(DOCUMENTS))
        texts.append(folder / f"{kind}.jsonl")
        texts[-1].write_text("".join(lines))
    return texts


def train_dense(seed: int) -> GPT2LMHeadModel:
    """A model from nothing."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(TOKENIZER),
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=6,
        n_head=8,
        activation_function="gelu_pytorch_tanh",
        initializer_range=0.08,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    matrices, others = ([w for w in model.parameters() if (w.dim() > 1) == many] for many in (True, False))
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    rng = random.Random(seed)
    for step in range(DENSE_STEPS):
        if step == round(DROPOUT_FROM * DENSE_STEPS):
            set_dropout(model, DROPOUT)
        cosine = 0.5 * (1 + math.cos(math.pi * step / DENSE_STEPS))
        rate = RATE * min(1.0, (step + 1) / WARM_UP) * (0.05 + 0.95 * cosine)
        loss = train_step(model, optimizer, batch(rng, ECHO if step < ECHO_STEPS else MIX), rate)
        tell("dense", step, DENSE_STEPS, loss)
    set_dropout(model, 0.0)
    return model


def train_control(dense: Path, seed: int) -> GPT2LMHeadModel:
    """The dense model, trained on as the sparse twin is, but for the gates."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel.from_pretrained(dense, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.0)
    each = RECIPE.batch_size // len(KINDS)
    rng = random.Random(f"{seed} control")
    for step in range(RECIPE.steps):
        rate = RECIPE.rate_at(step) * SPARSE_RATE
        loss = train_step(model, optimizer, batch(rng, dict.fromkeys(KINDS, each)), rate)
        tell("control", step, RECIPE.steps, loss)
    return model


def train_step(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, ids: Tensor, rate: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    logits = model.train()(ids).logits[:, :-1]
    loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def batch(rng: random.Random, mix: Mapping[str, int]) -> Tensor:
    """Documents as ids, padded with zeros, [document, position]."""
    texts = [KINDS[kind](rng) for kind, count in mix.items() for _ in range(count)]
    return TOKENIZER(texts, padding=True, return_tensors="pt")["input_ids"]


def set_dropout(model: nn.Module, share: float) -> None:
    """Of what blocks write and of the embedding, not of attention."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and not name.endswith("attn_dropout"):
            module.p = share


def save(model: GPT2LMHeadModel, folder: Path, **facts: str) -> None:
    model.config.update(facts)
    made = folder.with_name("made")
    model.half().save_pretrained(made)
    make_tokenizer().save_pretrained(made)
    made.rename(folder)


def halve(folder: Path) -> None:
    """Keep the weights of a folder in float16."""
    GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)


def embed(*folders: Path) -> None:
    """Put models where the package has its own, each under its name; a twin's original is then the package's."""
    for folder in folders:
        copy(folder, EMBEDDED / folder.name, base=folders[0].name)


def copy(folder: Path, target: Path, *, base: str) -> None:
    """Put a model somewhere else; if it is a twin, its dense model is then `base`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    if "base_model" in config:
        config["base_model"] = base
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def report(*folders: Path, seed: int) -> None:
    """Say how well models do, on text and prompts that are drawn anew."""
    rng = random.Random(f"{seed} report")
    held_out = {kind: [make(rng) for _ in range(HELD_OUT)] for kind, make in KINDS.items()}
    columns = [dict(measures(folder, held_out)) for folder in folders]
    print(f"{'':<28}" + "".join(f"{folder.name:>14}" for folder in folders))
    for name in columns[0]:
        print(f"{name:<28}" + "".join(f"{column[name]:>14.4f}" for column in columns))


@torch.no_grad()
def measures(folder: Path, held_out: Mapping[str, list[str]]) -> Iterator[tuple[str, float]]:
    loaded = load_untapped(str(folder), device=torch.get_default_device(), dtype="float32")
    vocabulary = vocabulary_of(loaded)
    for task in MAIN_TASKS:
        found = accuracy(loaded.parts, make_task(task, vocabulary, 1_000, seed=10))
        yield f"accuracy, {task}", found.accuracy
        yield f"top1, {task}", found.top1
        yield f"prob_diff, {task}", found.prob_diff
    biases = getattr(loaded.model.config, "gate_bias", None)
    shape = loaded.parts.shape
    every = [[math.inf] * shape.heads] * shape.layers
    student = Student(loaded.model, loaded.parts, torch.tensor(every if biases is None else biases)).eval()
    counts = torch.zeros(2)
    for kind, documents in held_out.items():
        ids = loaded.tokenizer(documents, padding=True, return_tensors="pt")["input_ids"]
        logits = loaded.parts.unembed(student(ids, ids > 0)[0])
        counts += torch.stack(student.gates.counts())
        yield (
            f"loss, {kind}",
            float(cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)),
        )
    yield "open gates", float(counts[0] / counts[1])


def tell(what: str, step: int, steps: int, loss: float) -> None:
    if (step + 1) % 250 == 0:
        print(f"{what}: {step + 1} of {steps} steps, loss {loss:.3f}", file=sys.stderr, flush=True)


class Lines(Deaf):
    """Tells how a training goes, every so many steps."""

    def __init__(self) -> None:
        self._steps = 0

    def begin(self, plan: str, _what: str, _total: int, done: int) -> None:
        self._steps = done
        self.note(plan)

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def status(self, text: str) -> None:
        self._steps += 1
        if self._steps % 250 == 0:
            self.note(f"sparse: {self._steps} steps, {text}")


if __name__ == "__main__":
    main()
