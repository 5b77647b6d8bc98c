"""The demo: the embedded pair on four tasks, from the models to a store, a table, figures and a page with it all."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..data import LEVELS, MAIN_TASKS, PAIR, Performance, doubted, read_catalog, task_title
from ..graphs import InputError
from ..queries import Choice, View, ask, open_store, performances, whole_units
from ..viz import (
    Look,
    Shown,
    curve_figure,
    diagram,
    explorer,
    index_page,
    save_curves,
    save_diagram,
    unit_name,
)
from .extracting import stopping
from .output import encoded, needing_torch, put, say
from .progress import Bar

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from ..data import Catalog

RANKING = {"edge": "task", "attention": "prompt", "head": "task"}
"""By which ranking of its units a level is compared; attention edges have one a prompt only."""
_LABELS = {"tiny": "Tiny", "tiny-sparse": "Sparse Tiny"}
_PROMPTS, _SPLIT, _EFFECT = 60, 0.5, 0.9
_PICTURED = "ioi"
"""The task whose first prompt is drawn token by token."""
_NEXT = (
    "sql {store} \"select requested, kept, explained from curves where run = 'tiny-sparse-ioi'\"",
    "stats {store} --runs tiny-sparse-ioi tiny-ioi --effect 0.9",
    "diagram {store} --runs tiny-sparse-ioi tiny-ioi --k 60 --slots --head-numbers --out ioi.pdf",
)


def run_demo(out: Path) -> None:
    """Write the demo into a folder; what is in its store is not made again."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("The demo is for one process: run it without torchrun.")
    store = out / "store"
    _extract(store)
    catalog = read_catalog(store)
    connection = open_store(catalog)
    found = ask(connection, "multiplier_intervals", threshold=_EFFECT)
    put(encoded(found, "csv"), out / "multipliers.csv")
    performed = performances(connection)
    table = _readable(found, performed)
    held_out = round(_PROMPTS * (1 - _SPLIT))
    about = (
        f"Units that explain {_EFFECT} of the effect, in the dense model and in its sparse twin, and how many times "
        f"fewer that is as interpolated, with its 95 % interval over {held_out} prompts (the rankings of a task are by "
        "others). A pair is ragged if a curve falls below that again after it first gets there. After that, the share "
        "of the prompts that each gets right."
    )
    figures = list(_draw(connection, catalog, out))
    pairs = [f"{model}-{task}" for task in MAIN_TASKS for model in reversed(list(PAIR))]
    put(explorer(connection, catalog, pairs, labels=_LABELS).encode(), out / "explorer.html")
    page = index_page(
        title="A small model and its sparse twin",
        intro="Two models of 6 layers x 8 heads on four tasks: how much of the behaviour the strongest units explain, "
        "and how they are wired. The sparse one has most of its attention gates closed.",
        table=table,
        note=about,
        figures=figures,
        explorer="explorer.html",
    )
    put(page.encode(), out / "index.html")
    for run in pairs:
        if doubts := performed[run].doubts():
            say(f"wirescope: {run}: the model {doubted(doubts)}.")
    say(f"\n{about}\n")
    put(encoded(table, "table"), None)
    written = ["store", "multipliers.csv", *(figure.file for figure in figures), "explorer.html"]
    say(f"\nWritten to {out}/: {', '.join(written)}\n\nNext:")
    program = "wirescope" if shutil.which("wirescope") else sys.argv[0]
    for command in _NEXT:
        say(f"  {program} {command.format(store=f'--store {shlex.quote(str(store))}')}")
    say(f"\nAll of it on one page: {out / 'index.html'}")


def _extract(store: Path) -> None:
    with needing_torch("The demo"):
        from ..extract import Settings, extract
    settings = Settings(levels=LEVELS, split=_SPLIT)
    for task in MAIN_TASKS:
        for model in PAIR:
            bar = Bar(brief=True)
            with stopping(store), bar:
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


def _draw(connection: "DuckDBPyConnection", catalog: "Catalog", out: Path) -> Iterator[Shown]:
    """Draw everything into the folder, each with its caption beside it; say what cannot be drawn."""
    dense, sparse = PAIR
    pairs = {task: [f"{sparse}-{task}", f"{dense}-{task}"] for task in MAIN_TASKS}
    for level, ranking in RANKING.items():
        name = f"curves-{level}"
        try:
            drawn = curve_figure(
                connection,
                catalog,
                [run for pair in pairs.values() for run in pair],
                view=View(level=level, ranking=ranking, threshold=_EFFECT),
                labels=_LABELS,
            )
            for ending in ("pdf", "svg"):
                save_curves(drawn.figure, out / f"{name}.{ending}")
            yield _shown(out, name, f"Explained effect by {unit_name(level)}", drawn.caption)
        except InputError as error:
            say(f"No {name}: {error}")
    circuits = [(task, "edge", Choice(effect=_EFFECT), Look()) for task in MAIN_TASKS]
    circuits += [(_PICTURED, "attention", Choice(k=12, prompt=0), Look(numbers=True))]
    for task, level, choice, look in circuits:
        name = f"wiring-{task}" if level == "edge" else f"attention-{task}"
        try:
            scene = diagram(
                connection, catalog, pairs[task], choice=choice, level=level, look=look, labels=_LABELS
            )
            for ending in ("pdf", "svg"):
                save_diagram(scene, out / f"{name}.{ending}")
            what = (
                f"the circuits that explain {_EFFECT}" if level == "edge" else "attention edges of a prompt"
            )
            yield _shown(out, name, f"{task_title(task)}: {what}", scene.caption)
        except InputError as error:
            say(f"No {name}: {error}")


def _shown(out: Path, name: str, title: str, caption: str) -> Shown:
    put(caption.encode(), out / f"{name}.caption.txt")
    return Shown(f"{name}.svg", title, caption)


def _readable(found: pa.Table, performed: Mapping[str, Performance]) -> pa.Table:
    """The multipliers of the pair, one ranking a level, in the order of the tasks; none where a model cannot do one."""
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
            both = {which: performed[row[f"{which}_run"]] for which in ("dense", "sparse")}
            if any(performance.doubts() for performance in both.values()):
                row |= dict.fromkeys(("dense_k", "sparse_k", "multiplier", "low", "high"))
            rows.append(
                {"task": task, "level": level, "ranked by": ranking}
                | {
                    which: None if row[f"{which}_k"] is None else whole_units(row[f"{which}_k"])
                    for which in both
                }
                | {"times fewer": _short(row["multiplier"])}
                | {
                    end: _end(row[which], row["multiplier"])
                    for end, which in (("from", "low"), ("to", "high"))
                }
                | {"ragged": "ragged" if row["ragged"] and row["multiplier"] is not None else None}
                | {f"{which} right": _short(performance.accuracy) for which, performance in both.items()}
            )
    return pa.Table.from_pylist(rows)


def _end(value: float | None, multiplier: float | None) -> str | None:
    """An end of the interval of a multiplier, if there is one.

    >>> _end(1.2345, 2.0), _end(None, 2.0), _end(None, None)
    ('1.23', 'open', None)
    """
    if value is None:
        return None if multiplier is None else "open"
    return f"{value:.3g}"


def _short(value: float | None) -> float | None:
    """Three figures."""
    return None if value is None else float(f"{value:.3g}")
