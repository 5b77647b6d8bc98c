"""What extraction costs: passes of the bare model are the unit, memory is above the model's own.

Prints a table and asserts nothing: machines differ. A ratio compares what was measured in one round, and is the
median over the rounds. The bare passes are those of the same Hugging Face model with frozen weights, logits at the last
position only: one forward and one forward with backward for `eap`, one forward and five with backward for `eap-ig`.

The OLMo slice is in bfloat16, whose products take a CPU without instructions for it half an hour. Its linear layers are
made to multiply in float32 here, with temporary copies of their weights: the memory printed is more than it needs.

    python bench/extract.py [--rounds 5] [--shapes small large olmo] [--layers N]
"""

import argparse
import subprocess
import sys
from functools import partial
from statistics import median
from typing import Any

import torch
from timing import by_round, heading, memory_during, row
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, OlmoConfig, OlmoForCausalLM, PreTrainedModel
from wirescope.data import Prompt
from wirescope.extract import FAMILIES, Model, find_device
from wirescope.extract.attribution import Attributor, Batch
from wirescope.extract.models import prepared, tap_model
from wirescope.graphs import Wiring

SHAPES = {
    "small": GPT2Config(),
    "large": GPT2Config(n_layer=36, n_head=20, n_embd=1280),
    "olmo": OlmoConfig(num_hidden_layers=4, vocab_size=1000, eos_token_id=0, bos_token_id=0, pad_token_id=0),
}
NOTES = dict.fromkeys(SHAPES, "above the model, at the peak") | {
    "olmo": "above the model, float32 copies of weights included"
}
TITLES = {"small": "GPT-2 small", "large": "GPT-2 large", "olmo": "OLMo-7B's width, 4 layers, bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--layers", type=int, help="fewer layers, to try it out")
    parser.add_argument("--memory-of", choices=list(SHAPES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        measure_memory(options.memory_of, options.layers)
        return
    for shape in options.shapes:
        arguments = ["--memory-of", shape, *(["--layers", str(options.layers)] if options.layers else [])]
        memory = subprocess.run(
            [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
        )
        edges, memory_used = memory.stdout.split()
        tokens = "8 pairs x 64 tokens" if shape == "olmo" else "8 pairs x 16 tokens"
        heading(f"{TITLES[shape]}, {int(edges):,} edges, {tokens}, scores of every prompt")
        row("eap, memory", f"{float(memory_used):.0f} MB", NOTES[shape])
        if shape != "olmo":
            for threads in dict.fromkeys((1, torch.get_num_threads())):
                measure_time(
                    shape, options.layers, threads, min(options.rounds, 5 if shape == "small" else 3)
                )


def measure_time(shape: str, layers: int | None, threads: int, rounds: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    model, bare = make(shape, layers), bare_model(shape, layers)
    prompts = make_prompts(16, same=1)
    half = make_prompts(16, same=8)
    corrupted = torch.tensor([prompt.corrupted_ids for prompt in prompts])
    answers = bare.lm_head.weight[[5, 6]]

    def forward() -> None:
        with torch.no_grad():
            bare.transformer(corrupted, use_cache=False).last_hidden_state[:, -1] @ answers.T

    def forward_backward() -> None:
        embedded = bare.transformer.wte(corrupted).requires_grad_()
        state = bare.transformer(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, -1]
        right, wrong = (state @ answers.T).T
        torch.autograd.grad((right - wrong).sum(), embedded)

    eap = Attributor(model.taps, Wiring(model.shape), levels=("edge",))
    integrated = Attributor(model.taps, Wiring(model.shape), levels=("edge",), steps=5)
    jobs = [forward, forward_backward, lambda: eap(batch(prompts, model)), lambda: eap(batch(half, model))]
    if shape == "small":
        jobs.append(lambda: integrated(batch(prompts, model)))
    for job in jobs:
        job()  # the first time is slower
    one, both, *ours = by_round(jobs, rounds)
    said = f"{threads} thread{'s' if threads > 1 else ''}"
    row(
        f"bare passes, {said}",
        f"{median(one) + median(both):.2f} s",
        f"{median(one):.2f} + {median(both):.2f}",
    )
    names = (f"eap, {said}", "  half a common prefix", f"eap-ig, 5 steps, {said}")
    for name, times, backward in zip(names, ours, (1, 1, 5), strict=False):
        of_passes = [ours / (f + backward * fb) for ours, f, fb in zip(times, one, both, strict=True)]
        row(name, f"{median(times):.2f} s", f"{median(of_passes):.2f} x its passes")
    torch.set_num_threads(before)


def measure_memory(shape: str, layers: int | None) -> None:
    """Print the number of edges and the peak above the model in MB; on its own in a process."""
    model = make(shape, layers)
    wiring = Wiring(model.shape)
    prompts = make_prompts(64 if shape == "olmo" else 16, same=1)
    eap = Attributor(model.taps, wiring, levels=("edge",))
    print(wiring.n_edges, memory_during(lambda: eap(batch(prompts, model))))


class ThroughFloat32(torch.autograd.Function):
    """A frozen linear layer without bias that multiplies in float32, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return (x.float() @ weight.float().T).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return (slope.float() @ weight.float()).to(slope.dtype), None


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    return ThroughFloat32.apply(x, weight)


def make(shape: str, layers: int | None) -> Model:
    model = bare_model(shape, layers)
    return tap_model(prepared(model, shape, FAMILIES[model.config.model_type], find_device()))


def bare_model(shape: str, layers: int | None) -> PreTrainedModel:
    config = SHAPES[shape].__class__.from_dict(SHAPES[shape].to_dict())
    if layers:
        config.num_hidden_layers = layers
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if shape == "olmo" else torch.float32)
    model = (OlmoForCausalLM if shape == "olmo" else GPT2LMHeadModel)(config)
    torch.set_default_dtype(torch.float32)
    for module in model.modules():
        if shape == "olmo" and isinstance(module, nn.Linear):
            module.forward = partial(multiply, weight=module.weight)
    return model.eval().requires_grad_(False)


def make_prompts(length: int, same: int) -> list[Prompt]:
    """Eight random pairs that begin with so many tokens in common."""
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(0, 1000, (2, 8, length), generator=generator)
    corrupted[:, :same] = clean[:, :same]
    return [
        Prompt(clean_ids=tuple(a), corrupted_ids=tuple(b), correct_answers=((5,),), wrong_answers=((6,),))
        for a, b in zip(clean.tolist(), corrupted.tolist(), strict=True)
    ]


def batch(prompts: list[Prompt], model: Model) -> Batch:
    return Batch(prompts, model.parts, "logit_diff")


if __name__ == "__main__":
    main()
