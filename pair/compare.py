"""How many times fewer units sparse twins and controls need than their dense models for 0.9 of the effect, by seed.

    python pair/compare.py pairs/seed-0 pairs/seed-1 pairs/seed-2

Each pair gets a store of its own, in which nothing is made twice: all tasks, all levels, curves on prompts that the
ranking of the task is not from. Name pairs as they were named when they were trained: a twin knows its dense model so.
"""

import argparse
from pathlib import Path

import torch
from wirescope.cli.demo import RANKING
from wirescope.data import LEVELS, MAIN_TASKS
from wirescope.extract import Settings, extract
from wirescope.queries import answer, open_store

MODELS = ("tiny", "tiny-sparse", "tiny-control")
PROMPTS, SPLIT = 100, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=Path, nargs="+", help="folders that train.py made")
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    found = [multipliers(pair) for pair in pairs]
    for model in MODELS[1:]:
        print(f"{model:<28}" + "".join(f"{pair.name:>20}" for pair in pairs))
        for task in MAIN_TASKS:
            for level in RANKING:
                cells = [of.get((task, level, model), "-") for of in found]
                print(f"{task + ', ' + level:<28}" + "".join(f"{cell:>20}" for cell in cells))


def multipliers(pair: Path) -> dict[tuple[str, str, str], str]:
    """By task, level and model: how many units the dense model needs, how many this one, and the ratio."""
    store = pair / "store"
    for task in MAIN_TASKS:
        for model in MODELS:
            settings = Settings(levels=LEVELS, split=SPLIT)
            extract(
                model=str(pair / model),
                task=task,
                store=store,
                limit=PROMPTS,
                settings=settings,
                dtype="float32",
            )
    rows = answer(open_store(store), "multipliers").to_pylist()
    return {
        (row["task"], row["level"], row["sparse_run"].removesuffix(f"-{row['task']}")): said(row)
        for row in rows
        if row["ranking"] == RANKING[row["level"]]
    }


def said(row: dict[str, float | None]) -> str:
    sizes = "/".join("-" if row[k] is None else f"{row[k]:.0f}" for k in ("dense_k", "sparse_k"))
    return f"{sizes} = " + ("-" if row["multiplier"] is None else f"{row['multiplier']:.2f}x")


if __name__ == "__main__":
    main()
