"""How many times fewer units sparse twins and controls need than their dense models for 0.9 of the effect, by seed.

    python pair/compare.py pairs/seed-0 pairs/seed-1 pairs/seed-2

Each pair gets a store of its own, in which nothing is made twice: all tasks, all levels, both protocols. What ranks for
a whole task is cross-fitted. Name pairs as they were named when they were trained: a twin knows its dense model so.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from wirescope.data import LEVELS, MAIN_TASKS, PROTOCOLS
from wirescope.extract import extract_each, settings_under
from wirescope.queries import answer, interval_words, open_store

DENSE, *OTHERS = ("tiny", "tiny-sparse", "tiny-control")
PROMPTS, HALVINGS = 30, 3
KEY = ("protocol", "level", "ranking", "sparse_stem", "dense_stem")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=Path, nargs="+", help="folders that train.py made")
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    found = [ratios(pair) for pair in pairs]
    for protocol in PROTOCOLS.values():
        for model in OTHERS:
            print(f"\n| {protocol.name}, {model} | " + " | ".join(pair.name for pair in pairs) + " |")
            print("|---" * (len(pairs) + 1) + "|")
            for task in MAIN_TASKS:
                for level in LEVELS:
                    key = (
                        protocol.name,
                        level,
                        protocol.ranking(level),
                        f"{model}-{task}",
                        f"{DENSE}-{task}",
                    )
                    cells = [said(of.get(key)) for of in found]
                    print(f"| {task}, {level} | " + " | ".join(cells) + " |")


def ratios(pair: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """By protocol, level, ranking, model and dense model, each on a task: what the store says of the two."""
    store = pair / "store"
    for task in MAIN_TASKS:
        for model in (DENSE, *OTHERS):
            for protocol in PROTOCOLS:
                extract_each(
                    model=str(pair / model),
                    task=task,
                    store=store,
                    run=f"{model}-{task}",
                    limit=PROMPTS,
                    settings=settings_under(
                        protocol, levels=LEVELS, cross_fit=HALVINGS, batch_size=2 * PROMPTS
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
