"""The demo: the embedded pair on four tasks, from the models to a store, a table of multipliers and wiring diagrams."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..data import LEVELS, MAIN_TASKS, PAIR, read_catalog
from ..graphs import InputError
from ..queries import Choice, ask, choose, open_store
from ..viz import render, wiring_dot
from .extracting import stopping
from .output import encoded, needing_torch, put, say
from .progress import Bar

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from ..data import Catalog

RANKING = {"edge": "task", "attention": "prompt", "head": "task"}
"""By which ranking of its units a level is compared; attention edges have one a prompt only."""
_PROMPTS, _SPLIT, _EFFECT = 60, 0.5, 0.9
_NEXT = (
    "sql {store} \"select requested, kept, explained from curves where run = 'tiny-sparse-ioi'\"",
    "stats {store} --runs tiny-sparse-ioi tiny-ioi --effect 0.9",
    "top {store} --run tiny-sparse-ioi --level attention --prompt 0 --k 10",
)


def run_demo(out: Path) -> None:
    """Write the demo into a folder; what is in its store is not made again."""
    store = out / "store"
    _extract(store)
    catalog = read_catalog(store)
    connection = open_store(catalog)
    found = ask(connection, "multiplier_intervals", threshold=_EFFECT)
    put(encoded(found, "csv"), out / "multipliers.csv")
    drawn = list(_draw(connection, catalog, out))
    held_out = round(_PROMPTS * (1 - _SPLIT))
    say(
        f"\nUnits that explain {_EFFECT} of the effect, in the dense model and in its sparse twin, and how many times "
        f"fewer that\nis, with its 95 % interval over {held_out} prompts (the rankings of a task are by others):\n"
    )
    put(encoded(_readable(found), "table"), None)
    say(f"\nWritten to {out}/: {', '.join(['store', 'multipliers.csv', *drawn])}\n\nNext:")
    for command in _NEXT:
        say(f"  wirescope {command.format(store=f'--store {shlex.quote(str(store))}')}")


def _extract(store: Path) -> None:
    with needing_torch("The demo"):
        from ..extract import Settings, extract
    settings = Settings(levels=LEVELS, split=_SPLIT)
    for task in MAIN_TASKS:
        for model in PAIR:
            bar = Bar(brief=True)
            with stopping(store, bar), bar:
                done = extract(
                    model=model,
                    task=task,
                    store=store,
                    run=f"{model}-{task}",
                    limit=_PROMPTS,
                    settings=settings,
                    dtype="float32",
                    listener=bar,
                )
            fresh = f"{done.circuits:,} circuits measured" if done.circuits else "there already"
            say(f"{task}, {model}: {done.prompts} prompts, {fresh}.")


def _draw(connection: "DuckDBPyConnection", catalog: "Catalog", out: Path) -> Iterator[str]:
    """Draw the wiring of each run, and name the files; say what cannot be drawn."""
    for task in MAIN_TASKS:
        for model in PAIR:
            name = f"wiring-{task}-{model}.svg"
            try:
                circuit = choose(connection, catalog.run(f"{model}-{task}"), Choice(effect=_EFFECT)).circuit
                title = f"{model}, {task}: {circuit.kept} edges explain {_EFFECT}"
                render(wiring_dot(circuit, title=title), out / name)
                yield name
            except InputError as error:
                say(f"No {name}: {error}")


def _readable(found: pa.Table) -> pa.Table:
    """The multipliers of the pair, one ranking a level, in the order of the tasks."""
    dense, sparse = PAIR
    rows = []
    for task in MAIN_TASKS:
        for level, ranking in RANKING.items():
            (row,) = found.filter(
                (pc.field("sparse_run") == f"{sparse}-{task}")
                & (pc.field("dense_run") == f"{dense}-{task}")
                & (pc.field("ablation") == "corrupt")
                & (pc.field("level") == level)
                & (pc.field("ranking") == ranking)
            ).to_pylist()
            rows.append(
                {"task": task, "level": level, "ranked by": ranking}
                | {"dense": _short(row["dense_k"]), "sparse": _short(row["sparse_k"])}
                | {"times fewer": _short(row["multiplier"])}
                | {"from": _short(row["low"]), "to": _short(row["high"])}
            )
    return pa.Table.from_pylist(rows)


def _short(value: float | None) -> float | None:
    """Three figures."""
    return None if value is None else float(f"{value:.3g}")
