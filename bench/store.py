"""What the store and the wiring cost: bytes a score, and times as ratios to the bare work.

Prints a table and asserts nothing: machines differ. Every ratio compares two things that were measured in
turns in this very run, the best of several rounds each.

    python bench/store.py [--prompts 1000] [--rounds 3]
"""

import argparse
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from timing import heading, in_turns, peak, row
from wirescope.data import TABLES, Run, read_catalog, write_run
from wirescope.data.parts import troubles
from wirescope.graphs import Circuit, Shape, Wiring, to_igraph, top_k
from wirescope.queries import ask, open_store, select

GPT2 = Shape(layers=12, heads=12)
OLMO_7B = Shape(layers=32, heads=32)
PROMPTS_A_SHARD = 100
RUN = "random"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        bench_store(Path(folder), options.prompts, options.rounds)
    bench_wiring(options.rounds)


def bench_store(folder: Path, prompts: int, rounds: int) -> None:
    wiring = Wiring(GPT2)
    scores = np.random.default_rng(0).standard_normal((prompts, wiring.n_edges), dtype=np.float32)
    heading(
        f"{wiring.n_edges:,} edges x {prompts:,} prompts = {scores.size / 1e6:.1f} M scores, normal noise"
    )

    written = []

    def write() -> None:
        written.append(folder / f"store{len(written)}")
        write_store(written[-1], wiring, scores)

    store_time, plain_time = in_turns([write, lambda: np.save(folder / "plain.npy", scores)], rounds)
    store = written[-1]
    size = sum(part.bytes for part in read_catalog(store).run(RUN).parts["edge_scores"])
    row("bytes a score", f"{size / scores.size:.3f}", "4.2 at most")
    row("write", f"{store_time:.2f} s", f"{store_time / plain_time:.1f} x numpy.save")

    connection = open_store(store)

    def scan() -> None:
        select(connection, "select sum(score) from edge_scores")

    def top() -> None:
        ask(connection, "top_edges", run=RUN, k=1000, prompt=None)

    def largest() -> None:
        select(
            connection,
            "select prompt_id, edge_id, score from edge_scores order by abs(score) desc limit 1000",
        )

    def means() -> None:
        select(connection, "select edge_id, avg(abs(score)) from edge_scores group by edge_id")

    def one_prompt() -> None:
        ask(connection, "top_edges", run=RUN, k=1000, prompt=prompts // 2)

    names = [
        "bare scan, sum(score)",
        "top 1000 edges by |mean|",
        "top 1000 scores",
        "mean |score| an edge",
        "one prompt's top 1000",
    ]
    times = in_turns([scan, top, largest, means, one_prompt], rounds)
    for name, seconds in zip(names, times, strict=True):
        row(name, f"{seconds:.3f} s", f"{seconds / times[0]:.2f} x scan")
    bench_confinement(store, connection, rounds)
    bench_looks(folder, store, scan, rounds)


def bench_confinement(store: Path, connection: duckdb.DuckDBPyConnection, rounds: int) -> None:
    """What it costs that a query reaches the parts only through a file system that reads, after a check."""
    files = str(store / "edge_scores" / "*" / "*.parquet")
    plain = duckdb.connect()
    plain.execute(f"create view edge_scores as from read_parquet('{files}', hive_partitioning = true)")
    queries = {
        "confined, top 1000 by |mean|": "select edge_id, avg(score) as score from edge_scores "
        "group by edge_id order by abs(avg(score)) desc, edge_id limit 1000",
        "confined, top 1000 scores": "select prompt_id, edge_id, score from edge_scores "
        "order by abs(score) desc limit 1000",
        "confined, bare scan": "select sum(score) from edge_scores",
    }
    for name, query in queries.items():

        def confined(query: str = query) -> None:
            select(connection, query)

        def bare(query: str = query) -> None:
            plain.sql(query).to_arrow_table()

        times = in_turns([confined, bare], 3 * rounds)
        row(name, f"{times[0]:.3f} s", f"{times[0] / times[1]:.2f} x DuckDB on the files")


def bench_looks(folder: Path, store: Path, scan: Callable[[], None], rounds: int) -> None:
    """What it costs to see that no file is damaged: reading all of them once, and then remembering it."""

    def first() -> None:
        shutil.rmtree(folder / "cache" / "wirescope", ignore_errors=True)
        read_catalog(store)

    def later() -> None:
        read_catalog(store)

    def by_pages() -> None:
        run = read_catalog(store).run(RUN)
        listed = [(table, replace(part, crc32=None)) for table, parts in run.parts.items() for part in parts]
        assert not troubles(store, listed, run.schema_version)

    looks = {
        "first look, all files read": first,
        "later looks": later,
        "first look, older schema": by_pages,
    }
    scan_time, *times = in_turns([scan, *looks.values()], rounds)
    for name, seconds in zip(looks, times, strict=True):
        row(name, f"{seconds:.4f} s", f"{seconds / scan_time:.3f} x scan")


def bench_wiring(rounds: int) -> None:
    heading(f"OLMo-7B, {OLMO_7B.n_edges:,} edges")
    (build,) = in_turns([lambda: Wiring(OLMO_7B)], rounds)
    tracemalloc.start()
    wiring = Wiring(OLMO_7B)
    row("wiring", f"{build:.3f} s", f"{tracemalloc.get_traced_memory()[1] / 1e6:.0f} MB at the peak")
    tracemalloc.stop()
    (names,) = in_turns([wiring.edge_names], rounds)
    row("all names", f"{names:.2f} s", "")
    text = wiring.edge_names()
    (ids,) = in_turns([lambda: wiring.edge_ids(text)], rounds)
    row("all ids from names", f"{ids:.2f} s", "")
    scores = np.random.default_rng(0).standard_normal(wiring.n_edges, dtype=np.float32)
    sort, top = in_turns([lambda: np.argsort(scores), lambda: top_k(wiring, scores, 10_000)], rounds)
    row("top 10,000, pruned", f"{top:.3f} s", f"{top / sort:.1f} x argsort")
    everything = Circuit(wiring, np.arange(wiring.n_edges, dtype=np.int32), scores, wiring.n_edges)
    before = peak()
    (graph,) = in_turns([lambda: to_igraph(everything)], 1)
    row("igraph of all edges", f"{graph:.1f} s", f"{peak() - before:.0f} MB more at the peak")


def write_store(store: Path, wiring: Wiring, scores: np.ndarray) -> None:
    prompts, edges = scores.shape
    record = Run(run=RUN, model="none", shape=wiring.shape, prompts=prompts, levels=("edge",))
    with write_run(store, record) as writer:
        writer.write_wiring(wiring)
        numbered = [{"prompt_id": prompt} for prompt in range(prompts)]
        writer.write("prompts", pa.Table.from_pylist(numbered, schema=TABLES["prompts"]))
        for shard, first in enumerate(range(0, prompts, PROMPTS_A_SHARD)):
            block = scores[first : first + PROMPTS_A_SHARD]
            ids = np.arange(first, first + len(block), dtype=np.int32)
            rows = {
                "prompt_id": np.repeat(ids, edges),
                "edge_id": np.tile(np.arange(edges, dtype=np.int32), len(block)),
                "score": block.ravel(),
            }
            writer.write("edge_scores", pa.table(rows), shard)


if __name__ == "__main__":
    main()
