"""What questions cost on a store the size of OLMo-7B's: seconds, memory and what goes to disk, under a memory limit.

Writes seeded noise with a heavy tail for every edge and prompt, a shard at a time, and asks each question in a
process of its own, so that its peak is its own. Prints a table and asserts nothing: machines differ. What a question
computes is also given in bare scans of the scores: both in CPU time, the scan made just before in the same process.

    python bench/scale.py [--prompts 200] [--memory 2GB --memory 8GB] [--folder KEPT] [--spark]

--spark asks Spark on this machine the same, in turns with DuckDB, instead of limiting DuckDB's memory.
"""

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from timing import heading, in_turns, peak, row
from wirescope.data import TABLES, Run, read_catalog, write_run
from wirescope.graphs import Shape, Wiring
from wirescope.queries import Choice, ask, choose, open_spark, open_store, select
from wirescope.queries.settings import set_chosen

PROMPTS_A_SHARD = 8
RUN = "random"

QUESTIONS: dict[str, Callable[[Any, Run], object]] = {
    "top 10,000 edges by |mean|": lambda store, run: ask(store, "top_edges", run=run.run, k=10_000),
    "mean |score| an edge": lambda store, _: select(store, "select name, mean_abs from edge_means"),
    "attributed curve": lambda store, run: ask(store, "attributed_curve", run=run.run),
    "one prompt's top 1,000": lambda store, run: ask(
        store, "top_edges", run=run.run, k=1000, prompt=run.prompts // 2
    ),
    "stability of the top 1,000": lambda store, run: ask(store, "stability", run=run.run, k=1000),
    "share of each prompt's top k": lambda store, run: attributed(store, run),
    "layer mass": lambda store, run: ask(store, "layer_mass", run=run.run),
    "head strength": lambda store, run: ask(store, "head_strength", run=run.run),
    "circuit of 0.9 of the mass": lambda store, run: choose(store, run, Choice(mass=0.9)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--memory", action="append", help="of DuckDB; more than once for several limits")
    parser.add_argument("--folder", type=Path, help="for the store, which is kept, and not written again")
    parser.add_argument("--spark", action="store_true", help="compare Spark, on this machine, with DuckDB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = options.folder or Path(temporary) / "store"
        in_a_process(bench_write, store, Shape(options.layers, options.heads), options.prompts)
        if options.spark:
            in_a_process(bench_spark, store)
            return
        for memory in options.memory or ["2GB", "8GB"]:
            heading(f"DuckDB within {memory}")
            for name in QUESTIONS:
                in_a_process(bench_question, store, name, memory)


def in_a_process(job: Callable[..., None], *arguments: object) -> None:
    """Do something in a new process, whose memory starts from nothing."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        pool.submit(job, *arguments).result()


def bench_write(store: Path, shape: Shape, prompts: int) -> None:
    heading(f"{shape.n_edges:,} edges x {prompts:,} prompts = {shape.n_edges * prompts / 1e6:.1f} M scores")
    (seconds,) = in_turns([lambda: write_store(store, Wiring(shape), prompts)], 1)
    row("write", f"{seconds:.1f} s", f"{peak():,.0f} MB at the peak")
    size = sum(part.bytes for part in read_catalog(store).run(RUN).parts["edge_scores"])
    row("size", f"{size / 1e6:,.0f} MB", f"{size / (shape.n_edges * prompts):.3f} bytes a score")


def attributed(store: Any, run: Run) -> object:
    """The one question that has to sort all scores."""
    set_chosen(store, range(run.prompts))
    return ask(store, "run_attributed", run=run.run, level="edge", ranking="prompt")


def write_store(store: Path, wiring: Wiring, prompts: int) -> None:
    """Noise around a mean for each edge, both normal to the third power: a few edges stand out, on most prompts."""
    record = Run(run=RUN, model="none", shape=wiring.shape, prompts=prompts, levels=("edge",))
    means = np.random.default_rng(0).standard_normal(wiring.n_edges, dtype=np.float32) ** 3
    edges = np.arange(wiring.n_edges, dtype=np.int32)
    with write_run(store, record) as writer:
        if writer.finished:
            return
        writer.write_wiring(wiring)
        numbered = [{"prompt_id": prompt} for prompt in range(prompts)]
        writer.write("prompts", pa.Table.from_pylist(numbered, schema=TABLES["prompts"]))
        sizes = np.unique(np.geomspace(1, len(edges), 20).astype(int))
        points = [{"prompt_id": 0, "level": "edge", "ranking": "prompt", "requested": int(k)} for k in sizes]
        writer.write("effects", pa.Table.from_pylist(points, schema=TABLES["effects"]))
        for shard, first in enumerate(range(0, prompts, PROMPTS_A_SHARD)):
            ids = np.arange(first, min(first + PROMPTS_A_SHARD, prompts), dtype=np.int32)
            noise = np.random.default_rng([0, shard]).standard_normal(
                (len(ids), len(edges)), dtype=np.float32
            )
            rows = {
                "prompt_id": np.repeat(ids, len(edges)),
                "edge_id": np.tile(edges, len(ids)),
                "score": (means + noise**3).ravel(),
            }
            writer.write("edge_scores", pa.table(rows), shard)


def bench_question(store: Path, name: str, memory: str) -> None:
    catalog = read_catalog(store)
    connection = open_store(catalog, memory=memory)
    _, scan = timed(lambda: select(connection, "select sum(score) as total from edge_scores"))
    with watched(connection) as spilled:
        seconds, work = timed(lambda: QUESTIONS[name](connection, catalog.run(RUN)))
    note = f"{work / scan:5.1f} x scan {peak():7,.0f} MB at the peak {max(spilled):7,.0f} MB on disk"
    row(name, f"{seconds:.2f} s", note)


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """How long a job takes, and the CPU time of this process meanwhile, which other processes disturb less."""
    start, before = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - start, time.process_time() - before


def bench_spark(store: Path) -> None:
    catalog = read_catalog(store)
    duck, spark = open_store(catalog), open_spark(catalog)
    heading(f"Spark {spark.session.version}, {spark.session.sparkContext.master}")
    select(spark, "select sum(score) as total from edge_scores")  # so that no question pays for its start
    for name, question in QUESTIONS.items():
        run = catalog.run(RUN)
        times = in_turns([partial(question, duck, run), partial(question, spark, run)], 1)
        row(name, f"{times[1]:.2f} s", f"{times[1] / times[0]:5.1f} x DuckDB, {times[0]:.2f} s")


@contextmanager
def watched(connection: Any) -> Iterator[list[float]]:
    """How much DuckDB has on disk, in MB, at each moment that a thread looks."""
    spilled, done = [0.0], threading.Event()

    def watch() -> None:
        cursor = connection.cursor()
        while not done.wait(0.05):
            (size,) = cursor.execute("select coalesce(sum(size), 0) from duckdb_temporary_files()").fetchone()
            spilled.append(size / 1e6)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield spilled
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
