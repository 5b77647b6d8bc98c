"""What the plan says and what is measured: tensor memory above the weights, at the peak of an extraction.

Each row is an extraction into a store, of random weights, in a process of its own. `tracked` is the most that tensors
took at a time, counted storage by storage as an allocator is asked for it; `resident` is how much the process grew,
with whatever allocators, libraries and Arrow keep. Then what the plan says for OLMo-7B, on one device and on two.

    python bench/memory.py [--rows small llama ...]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import heading, memory_during
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, OlmoConfig, PretrainedConfig
from wirescope.data import Prompt
from wirescope.extract import FAMILIES, Model, Settings, extraction, find_device
from wirescope.extract.attention import NAME
from wirescope.extract.ledger import Ledger
from wirescope.extract.models import prepared, sketch, tap_model
from wirescope.extract.placement import find_map
from wirescope.extract.plan import ALLOWANCE, make_plan

from extract import make_prompts

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SHAPES: dict[str, PretrainedConfig] = {
    "small": GPT2Config(vocab_size=1000, **TOKENS),
    "medium": GPT2Config(vocab_size=1000, n_layer=24, n_head=16, n_embd=1024, **TOKENS),
    "llama": LlamaConfig(
        vocab_size=1000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
    ),
    "olmo": OlmoConfig(vocab_size=1000, num_hidden_layers=2, **TOKENS),
}
SEVEN = OlmoConfig(vocab_size=50_304)
ALL = ("edge", "head", "attention")


@dataclass(frozen=True)
class Case:
    """An extraction to measure."""

    shape: str
    prompts: int
    tokens: int
    method: str = "eap"
    levels: tuple[str, ...] = ("edge",)
    curves: bool = False
    dtype: str = "float32"
    ablation: str = "corrupt"

    @property
    def settings(self) -> Settings:
        sizes = (10, 1000) if self.levels == ("edge",) else (10, 60)
        return Settings(
            levels=self.levels,
            method=self.method,
            curves=self.curves,
            sizes=sizes if self.curves else None,
            rankings=("task",) if "attention" not in self.levels else ("prompt", "task"),
            batch_size=self.prompts,
            ablation=self.ablation,
        )

    def __str__(self) -> str:
        curves = ", curves" if self.curves else ""
        mean = f", {self.ablation}" if self.ablation != "corrupt" else ""
        return (
            f"{self.shape}, {self.prompts} x {self.tokens}, {self.method}, {'+'.join(self.levels)}{curves}{mean}, "
            f"{self.dtype}"
        )


CASES = (
    Case("small", 8, 16),
    Case("small", 16, 16, "eap-ig"),
    Case("small", 8, 16, levels=ALL, curves=True),
    Case("small", 4, 128, levels=ALL),
    Case("small", 1, 512),
    Case("small", 8, 16, levels=("edge", "head"), curves=True, ablation="mean"),
    Case("medium", 4, 16, "eap-ig"),
    Case("medium", 4, 16, curves=True),
    Case("llama", 8, 32, "eap-ig", curves=True),
    Case("llama", 8, 16, "eap-ig", levels=("edge", "head"), dtype="bfloat16"),
    Case("llama", 8, 16, levels=("attention",), curves=True, dtype="bfloat16"),
    Case("olmo", 4, 16),
    Case("olmo", 2, 16, "eap-ig", curves=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--resident", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(measured(CASES[options.case], resident=options.resident))
        return
    heading("tensor memory above the weights, MB")
    print(f"  {'':<62}{'plan':>8}{'tracked':>9}{'resident':>10}{'plan / tracked':>16}")
    for i, case in enumerate(CASES):
        if case.shape in options.rows:
            tracked, resident = (child(i, *extra) for extra in ((), ("--resident",)))
            said = planned(case) / 1e6
            print(
                f"  {case!s:<62}{said:>8.0f}{tracked:>9.0f}{resident:>10.0f}{said / tracked:>16.2f}",
                flush=True,
            )
    seven()


def child(case: int, *options: str) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "--case", str(case), *options], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def measured(case: Case, *, resident: bool) -> float:
    """The peak of an extraction in MB, above the model."""
    model = make(case)
    extraction.load_model = lambda *_, **__: model
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "prompts.jsonl")
        file.write_text("\n".join(map(as_json, prompts_of(case))))

        def job() -> None:
            extraction.extract(
                model="random", prompts=file, store=Path(folder, "store"), settings=case.settings
            )

        if resident:
            return memory_during(job)
        with Ledger([find_device()]) as ledger:
            job()
        return ledger.peak / 1e6


def planned(case: Case) -> int:
    config = SHAPES[case.shape]
    model = sketch(config, case.shape, getattr(torch, case.dtype), FAMILIES[config.model_type])
    plan = make_plan(model, prompts_of(case), case.settings)
    return max(plan.peaks) - sum(plan.weights)


def make(case: Case) -> Model:
    torch.manual_seed(0)
    config = SHAPES[case.shape]
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, case.dtype), attn_implementation=NAME
    )
    return tap_model(prepared(model, case.shape, FAMILIES[config.model_type], find_device()))


def prompts_of(case: Case) -> list[Prompt]:
    return (make_prompts(case.tokens, same=1) * 2)[: case.prompts]


def as_json(prompt: Prompt) -> str:
    names = ("clean_ids", "corrupted_ids", "correct_ids", "wrong_ids")
    return json.dumps({name: getattr(prompt, name) for name in names})


def seven() -> None:
    """What the plan says for OLMo-7B."""
    model = sketch(SEVEN, "OLMo-7B", torch.bfloat16, FAMILIES["olmo"])
    both = find_map("auto", model.parts, 2)
    prompts = make_prompts(20, same=1) * 2
    heading("OLMo-7B in bfloat16, prompts of 20 tokens, eap-ig in 5 steps, curves: the plan, GB")
    print(
        f"  {'level':<22}{'batch':>6}{'weights':>9}{'one device':>12}{'two devices':>16}   "
        f"with {ALLOWANCE:g} x it fits"
    )
    for levels in (("edge",), ("head",), ("attention",), ALL):
        for size in (1, 4, 16):
            settings = Settings(levels=levels, batch_size=size)
            one = make_plan(model, prompts, settings, accelerator=True)
            two = make_plan(model, prompts, settings, accelerator=True, devices=both)
            fits = [
                name
                for name, plan, memory in (("80 GB", one, 80), ("2 x 24 GB", two, 24), ("24 GB", one, 24))
                if plan.fits([memory * 10**9] * len(plan.blocks))
            ]
            weights, peak = sum(one.weights) / 1e9, max(one.peaks) / 1e9
            each = " + ".join(f"{peak / 1e9:.1f}" for peak in two.peaks)
            said = f"{'+'.join(levels):<22}{size:>6}{weights:>9.1f}{peak:>12.1f}{each:>16}"
            print(f"  {said}   {', '.join(fits) or 'neither'}", flush=True)


if __name__ == "__main__":
    main()
