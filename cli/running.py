"""The commands that run a model: extract, sparsify, convert."""

from pathlib import Path
from typing import Annotated

import typer

from .options import SEEDS, Store
from .output import needing_torch, say

_TASK, _SCORES, _CIRCUITS = "On what", "Scores", "Circuits to measure"
_MACHINE, _PLAN = "Machine", "Plan, without doing it"
"""Panels of the options of extract."""


def extract(
    model: Annotated[
        str, typer.Option("--model", "-m", help="A hub name, a folder, or tiny or tiny-sparse.")
    ],
    store: Store,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            "-p",
            help="Prompt pairs: .jsonl, .json, .csv, or - for standard input.",
            rich_help_panel=_TASK,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            "-t",
            help="A task, instead of a file; 'wirescope tasks' lists them.",
            rich_help_panel=_TASK,
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", "-r", help="Its name in the store; by default model and task.")
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            help="edge (the default), head or attention; more than once for several.", rich_help_panel=_SCORES
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="eap-ig, eap or exact.", rich_help_panel=_SCORES)] = "eap-ig",
    steps: Annotated[int, typer.Option(help="Of eap-ig.", rich_help_panel=_SCORES)] = 5,
    metric: Annotated[
        str, typer.Option(help="logit_diff, prob_diff or kl.", rich_help_panel=_SCORES)
    ] = "logit_diff",
    first_token: Annotated[
        bool,
        typer.Option(
            "--first-token",
            help="Of answers of several tokens, take the first.",
            rich_help_panel=_SCORES,
        ),
    ] = False,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="published (zero and mean, a run each) or contrast (corrupt): a named set of ablations and rankings; "
            "--ablation and --ranking override it.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    ablation: Annotated[
        str | None, typer.Option(help="corrupt (the default), zero or mean.", rich_help_panel=_SCORES)
    ] = None,
    split_qkv: Annotated[
        bool,
        typer.Option("--split-qkv/--merge-qkv", help="Three inputs a head, or one.", rich_help_panel=_SCORES),
    ] = True,
    ranking: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the circuits to measure: prompt and task (the default), or signed.",
            rich_help_panel=_CIRCUITS,
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Of the circuits: 1,10,100, or mib, that benchmark's; by default from 1 to everything.",
            rich_help_panel=_CIRCUITS,
        ),
    ] = None,
    split: Annotated[
        float | None,
        typer.Option(
            help="Rank the task by this share of the prompts, measure on the others.",
            rich_help_panel=_CIRCUITS,
        ),
    ] = None,
    cross_fit: Annotated[
        int | None,
        typer.Option(
            "--cross-fit",
            help="Random halvings of the prompts: the task ranking of each half is measured on the other.",
            rich_help_panel=_CIRCUITS,
        ),
    ] = None,
    curves: Annotated[
        bool,
        typer.Option(
            "--curves/--no-curves", help="Measure circuits after scoring, or not.", rich_help_panel=_CIRCUITS
        ),
    ] = True,
    limit: Annotated[
        int | None, typer.Option(help="So many prompts; 100 of a task by default.", rich_help_panel=_TASK)
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=SEEDS, help="Of the task's prompts.", rich_help_panel=_TASK)
    ] = 0,
    only_correct: Annotated[
        bool,
        typer.Option(
            "--only-correct", help="Those prompts alone that the model gets right.", rich_help_panel=_TASK
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Prompts or circuits at a time (16); for exact, units (64).", rich_help_panel=_MACHINE
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto is the accelerator that is there.", rich_help_panel=_MACHINE)
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16 or float16; auto is the model's own on an accelerator.",
            rich_help_panel=_MACHINE,
        ),
    ] = "auto",
    device_map: Annotated[
        str | None,
        typer.Option(
            help="auto spreads the model over all accelerators here; or a JSON file of blocks.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Say what it would do and which memory it needs, and do nothing.",
            rich_help_panel=_PLAN,
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="With --plan: what a device has, such as 24GB; by default what is free.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --plan and --device-map: over so many devices.", rich_help_panel=_PLAN
        ),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="With --plan: a device's speed, to say how long it takes.", rich_help_panel=_PLAN
        ),
    ] = None,
) -> None:
    """Score every unit of a model on every prompt, measure its circuits.

    All scores go into a store. Then, for each ranking of the units and for
    a random one, the strongest are kept and the others ablated: how much of
    the behaviour is left, by size, is a curve.

    Prompts are pairs, clean and corrupted, with right and wrong answers:
    {"clean": "...", "corrupted": "...", "correct": [" Mary"], "wrong":
    [" John"]}, or token ids under clean_ids, corrupted_ids, ... The metric
    takes answers of several tokens whole; kl needs none.

    Given again, an interrupted command goes on; given with other --sizes,
    --ranking or --ablation, it adds curves and scores nothing again. On
    several GPUs: torchrun --nproc-per-node 8 -m wirescope.cli -- extract
    --model ...

    Example: wirescope extract --model gpt2 --task ioi --store circuits

    Example: wirescope extract --model gpt2 --task ioi --store circuits
    --protocol published

    Example: wirescope extract --model allenai/OLMo-7B-hf --task ioi
    --store circuits --dtype bfloat16 --plan --memory 80GB
    """
    from ..errors import InputError
    from .extracting import run_extract, run_plan

    numbers: tuple[int, ...] | str | None = sizes
    if sizes not in (None, "mib"):
        try:
            numbers = tuple(sorted({int(size) for size in sizes.split(",")}))
        except ValueError as error:
            raise InputError(f"--sizes {sizes} is not a list of numbers: write 1,10,100, or mib.") from error
    settings = {
        "levels": tuple(dict.fromkeys(level or ["edge"])),
        "method": method,
        "steps": steps,
        "metric": metric,
        "first_token": first_token,
        "ablation": ablation,
        "merged": not split_qkv,
        "only_correct": only_correct,
        "curves": curves,
        "rankings": tuple(dict.fromkeys(ranking)) if ranking else None,
        "sizes": numbers,
        "split": split,
        "cross_fit": cross_fit,
        "batch_size": batch_size,
    }
    options = {
        "model": model,
        "prompts": prompts,
        "task": task,
        "limit": limit,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "device_map": device_map,
    }
    if plan:
        run_plan(protocol, settings, memory=memory, devices=devices, tflops=tflops, **options)
    elif (memory, devices, tflops) != (None, None, None):
        raise InputError("--memory, --devices and --tflops are for --plan: they say what to plan for.")
    else:
        run_extract(protocol, settings, store=store, run=run, **options)


def sparsify(
    model: Annotated[
        str, typer.Option("--model", "-m", help="The dense model: a hub name, a folder, or tiny.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write, which must not be there.")],
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text to train on, .txt or .jsonl; each file is a kind of its own."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="A task whose prompts to train on, likewise.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3_000,
    epsilon: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NATS|KIND=NATS",
            help="Largest excess over the dense model on held-out text, in nats a token; of all kinds, or of one. "
            "[default: 0.01]",
        ),
    ] = None,
    divergence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="A kind of text whose excess is the divergence from the dense model's predictions, not the growth of "
            "the loss; tasks are so by default.",
        ),
    ] = None,
    slack: Annotated[
        float,
        typer.Option(help="Excess beyond epsilon at first; as learning rates go down, so does it."),
    ] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Documents a step and process.")] = 32,
    accumulate: Annotated[
        int, typer.Option(help="Parts that a batch is run in, by length of the documents: less memory.")
    ] = 1,
    positions: Annotated[
        int | None,
        typer.Option(help="Predictions a step that the loss is of, drawn at random. [default: 2^25 logits]"),
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens a document at most.")] = 256,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of the weights. [default: by a range test]")
    ] = None,
    gate_rate: Annotated[float, typer.Option(help="Learning rate of the gates' biases.")] = 0.02,
    distill: Annotated[
        float, typer.Option(help="Weight of the divergence from the dense model's predictions in the loss.")
    ] = 1.0,
    lora: Annotated[
        int | None, typer.Option(help="Rank of adapters to train instead of all weights (needs peft).")
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Train for as long without gates, at the --learning-rate that the twin's training said: what this "
            "model does otherwise than the dense one is due to more training, not to sparsity.",
        ),
    ] = False,
    evaluate_every: Annotated[int, typer.Option(help="Steps between looks at held-out text.")] = 100,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Random seed.")] = 0,
    device: Annotated[str, typer.Option(help="auto is the accelerator that is there.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, or bfloat16 for the passes (weights stay float32); auto: the model's own on an accelerator."
        ),
    ] = "auto",
) -> None:
    """Make a sparse twin of a dense model, by post-training with gates.

    Every pair of tokens gets a gate in every head. Training closes as many
    as it can while the model stays within epsilon of the dense one on each
    kind of text; the sparsest model that does so on held-out text is
    written, for extract --model, with a report and a picture of the
    training.

    .jsonl has a document a line, {"text": "..."}; any other file is one
    text. Run the same command again to resume. On several GPUs:
    accelerate launch -m wirescope.cli sparsify --model ...

    Example: wirescope sparsify --model gpt2 --text books.txt --out sparse-gpt2
    """
    from .sparsifying import epsilons, run_sparsify

    recipe = {
        "steps": steps,
        **epsilons(epsilon or []),
        "divergent": tuple(divergence or ()),
        "slack": slack,
        "batch_size": batch_size,
        "accumulate": accumulate,
        "positions": positions,
        "context": context,
        "learning_rate": learning_rate,
        "gate_rate": gate_rate,
        "distill": distill,
        "lora": lora,
        "control": control,
        "evaluate_every": evaluate_every,
        "seed": seed,
    }
    run_sparsify(recipe, model=model, out=out, texts=text or (), tasks=task or (), device=device, dtype=dtype)


def convert(
    file: Annotated[
        Path,
        typer.Argument(
            help="A model as .gguf, of llama2.c (.bin, .data) or of TransformerLens (.pt, .safetensors); or a twin as "
            ".npz."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to write.")],
    vocabulary: Annotated[
        int | None, typer.Option(help="Keep so many tokens; the others are padding.")
    ] = None,
    gated: Annotated[
        bool, typer.Option("--gated", help="Its attention is gated: a pair counts if its logit is above 0.")
    ] = False,
    base: Annotated[str | None, typer.Option(help="The dense model that a gated one came from.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer of a llama2.c model, if it is a file of its own.")
    ] = None,
) -> None:
    """Turn a model file into a folder for extract --model.

    A .gguf file holds weights, mostly quantised, and a tokenizer; both go
    into the folder, the weights as float32. A llama2.c file (.bin, .data)
    holds weights, and may hold a tokenizer; else --tokenizer names it. A
    TransformerLens state dict of a GPT-2 has no tokenizer: copy one into
    the folder, or give prompts as token ids. A .npz file holds what a
    sparse twin is more than its dense model, which --base names.

    Example: wirescope convert SmolLM2-135M.gguf --out smollm2

    Example: wirescope convert sparse.pt --out sparse-gpt2 --gated
    --vocabulary 50257 --base gpt2
    """
    with needing_torch("Converting a model"):
        from ..extract import convert as converted
    config = converted(file, out, vocabulary=vocabulary, gated=gated, base=base, tokenizer=tokenizer)
    gated = getattr(config, "gate_bias", None) is not None
    say(
        f"'{out}': a {'gated ' if gated else ''}model of the family {config.model_type}, "
        f"{config.num_hidden_layers} layers x {config.num_attention_heads} heads, {config.vocab_size:,} tokens."
    )
