"""How many times fewer units sparse twins and controls need than their dense models for 0.9 of the effect, by seed.

    python pair/compare.py pairs/seed-0 pairs/seed-1 pairs/seed-2
    python pair/compare.py twins --dense stories --tasks ioi ioi-long --prompts 40

A folder has MODEL-sparse and MODEL-control, and MODEL itself unless that is named by --dense. It gets a store, in which
nothing is made twice: all tasks, all levels, both protocols. What ranks for a whole task is cross-fitted. Prompts are
others than those that a task makes by default, which a twin may have been trained on. Name folders as they were named
when they were trained: a twin knows its dense model so.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from wirescope.data import LEVELS, MAIN_TASKS, PROTOCOLS
from wirescope.extract import extract_each, settings_under
from wirescope.queries import answer, interval_words, open_store

PROMPTS, HALVINGS, SEED = 20, 3, 1
KEY = ("protocol", "level", "ranking", "sparse_stem", "dense_stem")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=Path, nargs="+", help="folders that train.py or stories.py made")
    parser.add_argument("--dense", help="the dense model, if it is not PAIR/tiny")
    parser.add_argument("--tasks", nargs="+", default=MAIN_TASKS)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="of each task")
    options = parser.parse_args()
    pairs, name = options.pairs, Path(options.dense or "tiny").name
    torch.set_num_threads(1)
    others = [f"{name}-sparse", f"{name}-control"]
    found = [
        ratios(
            [options.dense or str(pair / name), *(str(pair / other) for other in others)],
            options.tasks,
            pair,
            options.prompts,
        )
        for pair in pairs
    ]
    for protocol in PROTOCOLS.values():
        for model in others:
            print(f"\n| {protocol.name}, {model} | " + " | ".join(pair.name for pair in pairs) + " |")
            print("|---" * (len(pairs) + 1) + "|")
            for task in options.tasks:
                for level in LEVELS:
                    key = (
                        protocol.name,
                        level,
                        protocol.ranking(level),
                        f"{model}-{task}",
                        f"{name}-{task}",
                    )
                    cells = [said(of.get(key)) for of in found]
                    print(f"| {task}, {level} | " + " | ".join(cells) + " |")


def ratios(
    models: Sequence[str], tasks: Sequence[str], pair: Path, prompts: int
) -> dict[tuple[str, ...], dict[str, Any]]:
    """By protocol, level, ranking, model and dense model, each on a task: what the store says of the two."""
    store = pair / "store"
    for task in tasks:
        for model in models:
            for protocol in PROTOCOLS:
                extract_each(
                    model=model,
                    task=task,
                    store=store,
                    run=f"{Path(model).name}-{task}",
                    limit=prompts,
                    seed=SEED,
                    settings=settings_under(
                        protocol, levels=LEVELS, cross_fit=HALVINGS, batch_size=2 * prompts
                    ),
                    dtype="float32",
                )
    rows = answer(open_store(store), "protocol_ratios").to_pylist()
    return {tuple(row[name] for name in KEY): row for row in rows}


def said(row: dict[str, Any] | None) -> str:
    """Sizes, ratio and its interval."""
    if row is None or row["multiplier"] is None:
        return "-"
    sizes = f"{row['dense_k']:.0f}/{row['sparse_k']:.0f}"
    return f"{sizes} = {row['multiplier']:.2f}x ({interval_words(row['low'], row['high'])})"


if __name__ == "__main__":
    main()
