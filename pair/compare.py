"""How many times fewer units the sparse twin needs than the dense model, and how many the control, for several seeds.

    python pair/compare.py pairs/seed-0 pairs/seed-1 pairs/seed-2

Units are ranked by one half of the prompts and measured on the other; no prompt was trained on. The control's column
is what more training alone does.
"""

import argparse
from pathlib import Path

from wirescope.data import MAIN_TASKS
from wirescope.extract import Settings, extract
from wirescope.queries import ask, open_store

MODELS = ("tiny", "tiny-sparse", "tiny-control")
LEVELS = ("edge", "attention", "head")
SETTINGS = Settings(levels=LEVELS, split=0.5)
PROMPTS, SEED, DRAWS = 100, 10, 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=Path, nargs="+", help="Folders that pair/train.py wrote.")
    folders = parser.parse_args().pairs
    print("| seed | task | level | dense | sparse | multiplier | 95 % interval | control | multiplier |")
    print("|---|---|---|---|---|---|---|---|---|")
    for folder in folders:
        compare(folder)


def compare(folder: Path) -> None:
    for task in MAIN_TASKS:
        for model in MODELS:
            extract(
                model=str(folder / model),
                task=task,
                store=folder / "store",
                limit=PROMPTS,
                seed=SEED,
                settings=SETTINGS,
            )
    rows = ask(open_store(folder / "store"), "multiplier_intervals", draws=DRAWS).to_pylist()
    found = {(row["task"], row["level"], row["ranking"], row["sparse_run"]): row for row in rows}
    for task in MAIN_TASKS:
        for level in LEVELS:
            key = task, level, "prompt" if level == "attention" else "task"
            sparse, control = (found[*key, f"{model}-{task}"] for model in MODELS[1:])
            interval = f"{number(sparse['low'])} to {number(sparse['high'])}"
            cells = (
                folder.name.removeprefix("seed-"),
                task,
                level,
                number(sparse["dense_k"]),
                number(sparse["sparse_k"]),
                number(sparse["multiplier"], "x"),
                interval,
                number(control["sparse_k"]),
                number(control["multiplier"], "x"),
            )
            print(f"| {' | '.join(cells)} |", flush=True)


def number(value: float | None, unit: str = "") -> str:
    return "not reached" if value is None else f"{value:.3g}{unit}"


if __name__ == "__main__":
    main()
