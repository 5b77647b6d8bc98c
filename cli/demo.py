"""The demo: the embedded pair on four tasks by both protocols, from the models to a store, figures and a page."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import connection as pipes
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..data import (
    LEVELS,
    MAIN_TASKS,
    PAIR,
    PROTOCOLS,
    Performance,
    doubted,
    find_run,
    read_catalog,
    task_title,
)
from ..errors import InputError
from ..queries import Choice, View, answer, open_store, performances, whole_units
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


_LABELS = {"tiny": "Tiny", "tiny-sparse": "Sparse Tiny"}
_PROMPTS, _HALVINGS, _EFFECT = 20, 2, 0.9
_SIZES = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 26, 30, 36, 42, 48),  # all heads are 48
    *(
        60,
        80,
        105,
        140,
        185,
        250,
        330,
        440,
        580,
        770,
        1000,
        1350,
        1800,
        2400,
        3100,
        3628,
    ),  # all edges are 3,628
)
_BOTH = ("dense", "sparse")
_PICTURED = "ioi"
"""The task whose first prompt is drawn token by token."""
_NEXT = (
    "sql {store} \"select requested, kept, explained from curves where run = 'tiny-sparse-ioi'\"",
    "curve {store} --protocol published --level head --ranking task --out heads.pdf",
    "stats {store} --runs tiny-sparse-ioi tiny-ioi --effect 0.9",
    "diagram {store} --runs tiny-sparse-ioi tiny-ioi --k 60 --slots --head-numbers --out ioi.pdf",
)


@dataclass(frozen=True)
class _Job:
    """What one process does at a time: a model on a task, under a protocol."""

    store: Path
    task: str
    model: str
    protocol: str
    prompts: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class _Picture:
    """A figure of the page: curves of all tasks, or the circuits of one."""

    out: Path
    name: str
    protocol: str
    level: str
    task: str | None = None


def run_demo(out: Path) -> None:
    """Write the demo into a folder; what is in its store is not made again."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("The demo is for one process: run it without torchrun.")
    store = out / "store"
    with needing_torch("The demo"):
        import torch  # noqa: F401 - what is missing is said before processes are started
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _begin) as pool:
        _extract(pool, store)
        _conclude(pool, out)


def _conclude(pool: ProcessPoolExecutor, out: Path) -> None:
    """Draw everything, print the table, write the page."""
    store = out / "store"
    catalog = read_catalog(store)
    connection = open_store(catalog)
    found = _compared(connection)
    put(encoded(pa.Table.from_pylist(found), "csv"), out / "multipliers.csv")
    performed = performances(connection)
    table = _readable(found, performed)
    about = (
        f"Units that explain {_EFFECT} of the effect, in the dense model and in its sparse twin, and how many times "
        f"fewer that is as interpolated, with its 95 % interval over {_PROMPTS} prompts and, where one ranking is for "
        "all of them, over rankings; a pair is ragged if a curve falls below that again after it first gets there. "
        "Where the ablation is 'smaller', each model has the one of zero and mean with its smaller circuit. "
        + " ".join(f"{one.name.capitalize()} asks {one.asks}." for one in PROTOCOLS.values())
        + " After that, the share of the prompts that each gets right."
    )
    figures = list(_drawn(pool, out))
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


def _extract(pool: ProcessPoolExecutor, store: Path) -> None:
    """Score and measure everything."""
    jobs = [
        _Job(store, task, model, protocol, _PROMPTS, _SIZES)
        for task in MAIN_TASKS
        for model in PAIR
        for protocol in PROTOCOLS
    ]
    missing = [job for job in jobs if not _is_done(job)]
    bar = Bar(brief=True)
    with stopping(store), bar:
        bar.begin("", "runs", len(jobs), len(jobs) - len(missing))
        for job, circuits in zip(missing, pool.map(_do, missing), strict=True):
            bar.advance(1)
            bar.note(f"{_title(job)}: {job.prompts} prompts, {circuits:,} circuits measured.")
    if len(missing) < len(jobs):
        say(f"{len(jobs) - len(missing)} of {len(jobs)} were there already.")


def _begin() -> None:
    """Begin a process of the pool, which ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            pipes.wait([parent.sentinel])
            os._exit(1)

    Thread(target=follow, daemon=True).start()


def _do(job: _Job) -> int:
    """Do a job, in one thread; how many circuits were measured."""
    import torch

    from ..extract import extract_each, settings_under

    torch.set_num_threads(1)

    settings = settings_under(
        job.protocol, levels=LEVELS, sizes=job.sizes, cross_fit=_HALVINGS, batch_size=4 * job.prompts
    )
    outcomes = extract_each(
        model=job.model,
        task=job.task,
        store=job.store,
        run=f"{job.model}-{job.task}",
        settings=settings,
        limit=job.prompts,
        dtype="float32",
    )
    return sum(outcome.circuits for outcome in outcomes)


def _is_done(job: _Job) -> bool:
    """Whether all runs of a job are in the store, with their curves."""
    found = [find_run(job.store, run) for run in _runs(job)]
    return all(run is not None and run.finished and run.curves for run in found)


def _runs(job: _Job) -> list[str]:
    ablations = PROTOCOLS[job.protocol].ablations
    stem = f"{job.model}-{job.task}"
    return [stem] if len(ablations) == 1 else [f"{stem}-{ablation}" for ablation in ablations]


def _title(job: _Job) -> str:
    return f"{job.task}, {job.model}, {job.protocol}"


def _drawn(pool: ProcessPoolExecutor, out: Path) -> Iterator[Shown]:
    """Draw everything into the folder, each with its caption beside it; say what cannot be drawn."""
    for picture, made in zip(pictures := list(_pictures(out)), pool.map(_draw, pictures), strict=True):
        if isinstance(made, str):
            say(f"No {picture.name}: {made}")
        else:
            yield made


def _pictures(out: Path) -> Iterator["_Picture"]:
    """All figures, in the order of the page."""
    for protocol in PROTOCOLS:
        for level in LEVELS:
            yield _Picture(out, f"curves-{protocol}-{level}", protocol, level)
        for task in MAIN_TASKS:
            yield _Picture(out, f"wiring-{protocol}-{task}", protocol, "edge", task)
    yield _Picture(out, f"attention-{_PICTURED}", "contrast", "attention", _PICTURED)


def _draw(picture: _Picture) -> Shown | str:
    """Draw a figure, or say why that cannot be."""
    catalog = read_catalog(picture.out / "store")
    connection = open_store(catalog)
    protocol = PROTOCOLS[picture.protocol]
    dense, sparse = PAIR
    try:
        if picture.task is None:
            drawn = curve_figure(
                connection,
                catalog,
                [f"{model}-{task}" for task in MAIN_TASKS for model in (sparse, dense)],
                view=View(
                    level=picture.level,
                    protocol=protocol.name,
                    ablation=protocol.ablations[0],
                    threshold=_EFFECT,
                ),
                labels=_LABELS,
            )
            for form in ("pdf", "svg"):
                save_curves(drawn.figure, picture.out / f"{picture.name}.{form}")
            title = (
                f"Explained effect by {unit_name(picture.level)}: {protocol.name}, {protocol.ablations[0]}"
            )
            return _shown(picture, title, drawn.caption)
        edges = picture.level == "edge"
        ending = "" if len(protocol.ablations) == 1 else f"-{protocol.ablations[0]}"
        scene = diagram(
            connection,
            catalog,
            [f"{model}-{picture.task}{ending}" for model in (sparse, dense)],
            choice=Choice(effect=_EFFECT) if edges else Choice(k=12, prompt=0),
            level=picture.level,
            look=Look(numbers=not edges),
            labels=_LABELS,
        )
    except InputError as error:
        return str(error)
    for form in ("pdf", "svg"):
        save_diagram(scene, picture.out / f"{picture.name}.{form}")
    what = f"the circuits that explain {_EFFECT}, {protocol.name}" if edges else "attention edges of a prompt"
    return _shown(picture, f"{task_title(picture.task)}: {what}", scene.caption)


def _shown(picture: _Picture, title: str, caption: str) -> Shown:
    put(caption.encode(), picture.out / f"{picture.name}.caption.txt")
    return Shown(f"{picture.name}.svg", title, caption)


def _compared(connection: "DuckDBPyConnection") -> list[dict[str, Any]]:
    """The multipliers of the pair, one ranking a level: by zero, by the smaller of zero and mean, by corrupt."""
    dense, sparse = PAIR
    by_runs = {
        (row["sparse_run"], row["dense_run"], row["level"], row["ranking"], row["ablation"]): row
        for row in answer(connection, "multipliers").to_pylist()
    }
    by_stems = {
        (row["sparse_stem"], row["dense_stem"], row["level"], row["ranking"], row["protocol"]): row
        for row in answer(connection, "protocol_ratios").to_pylist()
    }
    rows = []
    for protocol in PROTOCOLS.values():
        several = len(protocol.ablations) > 1
        first = protocol.ablations[0]
        for ablation in (first, "smaller")[: 1 + several]:
            ending = f"-{ablation}" if several and ablation == first else ""
            for level, task in product(LEVELS, MAIN_TASKS):
                if (ablation, level) == ("smaller", "attention"):  # for which there is one ablation only
                    continue
                runs = (f"{sparse}-{task}{ending}", f"{dense}-{task}{ending}")
                key = (*runs, level, protocol.ranking(level))
                row = by_runs[*key, ablation] if ablation == first else by_stems[*key, protocol.name]
                rows.append(
                    {"protocol": protocol.name, "ablation": ablation, "level": level, "task": task}
                    | {name: row[name] for name in ("sparse_run", "dense_run", "ranking", "threshold")}
                    | {name: row.get(name, ablation) for name in ("sparse_ablation", "dense_ablation")}
                    | {
                        name: row[name]
                        for name in ("sparse_k", "dense_k", "multiplier", "low", "high", "ragged")
                    }
                )
    return rows


def _readable(found: list[dict[str, Any]], performed: Mapping[str, Performance]) -> pa.Table:
    """The multipliers as they are read; none where a model cannot do a task."""
    rows = []
    for row in found:
        both = {which: performed[row[f"{which}_run"]] for which in _BOTH}
        if any(performance.doubts() for performance in both.values()):
            row = row | dict.fromkeys(("dense_k", "sparse_k", "multiplier", "low", "high", "ragged"))
        rows.append(
            {name: row[name] for name in ("protocol", "ablation", "level", "task")}
            | {which: None if row[f"{which}_k"] is None else whole_units(row[f"{which}_k"]) for which in both}
            | {"times fewer": _short(row["multiplier"])}
            | {end: _end(row[which], row["multiplier"]) for end, which in (("from", "low"), ("to", "high"))}
            | {"ragged": "ragged" if row["ragged"] else None}
            | {f"{which} right": _short(performance.accuracy) for which, performance in both.items()}
        )
    return pa.Table.from_pylist(rows)


def _short(value: float | None) -> float | None:
    """Three figures."""
    return None if value is None else float(f"{value:.3g}")


def _end(value: float | None, multiplier: float | None) -> str | None:
    """An end of the interval of a multiplier, if there is one.

    >>> _end(1.2345, 2.0), _end(None, 2.0), _end(None, None)
    ('1.23', 'open', None)
    """
    if value is None:
        return None if multiplier is None else "open"
    return f"{value:.3g}"
