"""Train the sparse twin of stories15M, a real model of children's stories, and a control; and say how well they do.

    python pair/stories.py [--model stories] [--out twins] [--ship]

It takes two kinds of stories. A thousand real ones are in ``tinystories.jsonl``. They are too few: a twin learns them
by heart, and becomes worse on others. So the model writes two thousand more itself, and there the twin is held to what
its dense model predicts. Two tasks are kinds of text as well, each with a bound of its own. The control is the same
training without gates: what it does better than the dense model is due to more training on such stories, so a twin has
to be compared with both.

What is there already is not made again, and a training that was stopped goes on. The twin is kept as what its weights
are more than its dense model's, in a few bits each, and it is judged as it comes out of that. ``--ship`` puts that file
beside this one, for ``make stories-sparse``.
"""

import argparse
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from train import Lines
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, StaticCache
from transformers.utils.logging import disable_progress_bar
from wirescope.data import make_task, read_documents, replacing
from wirescope.extract import convert, write_difference
from wirescope.extract.accuracy import accuracy
from wirescope.extract.models import Loaded, load_untapped, vocabulary_of
from wirescope.extract.recipe import Recipe
from wirescope.extract.sparsify import parted, sparsify
from wirescope.extract.student import Student

HERE = Path(__file__).parent
REAL, SHIPPED = HERE / "tinystories.jsonl", HERE / "stories-sparse.npz"
TASKS = ("ioi", "ioi-long")
STORIES, AT_A_TIME = 2_048, 512
RECIPE = Recipe(
    steps=2_800,
    epsilon=0.02,
    epsilons={"tinystories": 0.021, "own": 0.08, "ioi": 0.1, "ioi-long": 0.1},
    divergent=("own",),
    batch_size=8,
    accumulate=2,
    positions=640,
    learning_rate=5e-5,
    gate_rate=0.01,
    distill=20.0,
    evaluate_every=700,
)
PROMPTS, SEED = 1_000, 1
"""For the table; drawn by another seed than those that are trained on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="stories")
    parser.add_argument("--out", type=Path, default=Path("twins"))
    parser.add_argument("--ship", action="store_true", help="put the twin's difference beside this script")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    own, twin, control = out / "own.jsonl", out / "stories-trained", out / "stories-control"
    difference, sparse = out / SHIPPED.name, out / "stories-sparse"
    if not own.exists():
        write_stories(options.model, own)
    train = {"model": options.model, "texts": [REAL, own], "tasks": TASKS, "dtype": "bfloat16"}
    if not twin.exists():
        sparsify(**train, out=twin, recipe=RECIPE, listener=Lines())
    if not control.exists():
        sparsify(**train, out=control, recipe=replace(RECIPE, control=True), listener=Lines())
    if not sparse.exists():
        size = write_difference(twin, options.model, difference)
        print(f"{difference}: {size / 1e6:.2f} MB")
        convert(difference, sparse, base=options.model)
    report(options.model, twin, sparse, control)
    print(f"{process_time() / 60:.0f} CPU minutes")
    if options.ship:
        shutil.copyfile(difference, SHIPPED)


def write_stories(name: str, out: Path, count: int = STORIES) -> None:
    """Stories that a model writes, a document a line, each drawn from all that it says may come next."""
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(name)
    generator = torch.Generator().manual_seed(RECIPE.seed)
    with replacing(out) as file:
        for first in range(0, count, AT_A_TIME):
            for ids in written(model, min(AT_A_TIME, count - first), generator):
                text = tokenizer.decode(until_the_next(ids.tolist(), tokenizer.bos_token_id))
                file.write((json.dumps({"text": text}) + "\n").encode())
            print(f"{min(first + AT_A_TIME, count):,} stories", file=sys.stderr, flush=True)


@torch.no_grad()
def written(model: PreTrainedModel, count: int, generator: torch.Generator) -> Tensor:
    """Stories as long as the context, without what each begins with, [story, position]."""
    context = model.config.max_position_embeddings
    cache = StaticCache(model.config, max_cache_len=context)
    ids = torch.full((count, 1), model.config.bos_token_id)
    tokens = []
    for _ in range(context - 1):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1]
        ids = drawn(logits.float(), generator)
        tokens.append(ids)
    return torch.cat(tokens, 1)


def drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A token for each row, as likely as the logits say, [row, 1]."""
    upto = logits.softmax(-1).cumsum(-1)  # [row, token]
    at = torch.rand(len(logits), 1, generator=generator) * upto[:, -1:]
    return torch.searchsorted(upto, at, right=True).clamp(max=logits.shape[1] - 1)


def until_the_next(ids: list[int], begins: int) -> list[int]:
    """One story of several.

    >>> until_the_next([5, 6, 1, 7], begins=1)
    [5, 6]
    """
    return ids[: ids.index(begins)] if begins in ids else ids


def report(base: str, *others: Path) -> None:
    """Say how well models do, on stories that were held out and on prompts that are drawn anew."""
    folders = [base, *map(str, others)]
    columns = [measures(folder, base) for folder in folders]
    print(f"{'':<28}" + "".join(f"{Path(folder).name:>18}" for folder in folders))
    for name in columns[0]:
        print(f"{name:<28}" + "".join(f"{column[name]:>18.4f}" for column in columns))


@torch.no_grad()
def measures(folder: str, base: str) -> dict[str, float]:
    """Loss of a model on held-out real stories, divergence from another model there, and how it does the tasks."""
    model, dense = (
        load_untapped(name, device=torch.get_default_device(), dtype="float32") for name in (folder, base)
    )
    vocabulary = vocabulary_of(dense)
    assert vocabulary.encode is not None
    sums, counts = torch.zeros(2), torch.zeros(2)
    gated = gates_of(model)
    held_out = parted(read_documents(REAL, vocabulary.encode, RECIPE.context)).held_out
    for document in held_out:
        ids = torch.tensor([document])
        logs, others = (
            of.model(ids, use_cache=False).logits[0, :-1].log_softmax(-1) for of in (model, dense)
        )
        entropy = cross_entropy(logs, ids[0, 1:], reduction="sum")
        sums += torch.stack([entropy, (others.exp() * (others - logs)).sum()])
        gated(ids, torch.ones_like(ids, dtype=torch.bool))
        counts += torch.stack(gated.gates.counts())
    tokens = sum(len(document) - 1 for document in held_out)
    loss, divergence = (sums / tokens).tolist()
    found = {"loss, real stories": loss, "divergence, real stories": divergence}
    for task in TASKS:
        judged = accuracy(model.parts, make_task(task, vocabulary, PROMPTS, seed=SEED))
        found |= {f"accuracy, {task}": judged.accuracy, f"top1, {task}": judged.top1}
    return found | {"open gates": float(counts[0] / counts[1])}


def gates_of(model: Loaded) -> Student:
    """What counts the open gates of a model; one that has none has all of them open."""
    shape = model.parts.shape
    every = [[math.inf] * shape.heads] * shape.layers
    biases = torch.tensor(getattr(model.model.config, "gate_bias", None) or every)
    return Student(model.model, model.parts, biases).eval()


if __name__ == "__main__":
    main()
