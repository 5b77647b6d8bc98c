"""Fuzz whatever reads what others wrote: any bytes must be read, or refused with a sentence.

A target is fuzzed in a process of its own, from a few valid inputs and whatever it found before (in build/fuzz/). An
exception that is not one of the errors for the user is a crash: libFuzzer stops there and keeps the input.

    python fuzz/readers.py [--minutes 10] [TARGET ...]      all targets, or these, one after another
    python fuzz/readers.py --only TARGET [libFuzzer option or file ...]      one, for example a crash again
"""

import argparse
import atexit
import gzip
import io
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "build" / "fuzz"
LONGEST = 8192
PATIENCE = 0.2
"""Seconds that a query may take: what is fuzzed is what runs at all, not how long."""

Read = Callable[[bytes], object]


def main() -> None:
    if sys.argv[1:2] == ["--only"]:
        fuzz(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default"
    )
    parser.add_argument("--minutes", type=float, default=10, help="of CPU time, in all")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}: choose from {', '.join(TARGETS)}")
    targets = options.targets or list(TARGETS)
    print(f"{'target':<10}{'executions':>12}{'CPU seconds':>13}", flush=True)
    crashed = [name for name in targets if not watch(name, 60 * options.minutes / len(targets))]
    sys.exit(1 if crashed else 0)


def watch(target: str, seconds: float) -> bool:
    """Fuzz a target for so much CPU time, print a row of the table, and say whether it went well."""
    begun, runs, used, crash = cpu_seconds(), 0, 0.0, ""
    while used < seconds and not crash:
        command = [sys.executable, __file__, "--only", target, f"-max_total_time={ceil(seconds - used)}"]
        log = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        runs += sum(map(int, re.findall(r"number_of_executed_units: +(\d+)", log.stdout)))
        used, crash = cpu_seconds() - begun, log.stdout[-4000:] if log.returncode else ""
    print(f"{target:<10}{runs:>12,}{used:>13.0f}   {'crashed' if crash else ''}", flush=True)
    print(crash, end="", flush=True)
    return not crash


def cpu_seconds() -> float:
    """What all processes that were waited for have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fuzz(target: str, options: list[str]) -> None:
    """Fuzz a target in this process until libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["wirescope", "json"]):
        read, seeds = TARGETS[target]()
    from wirescope.graphs import InputError, StoreError

    os.environ["XDG_CACHE_HOME"] = str(new_folder())  # what is read here is not worth remembering
    corpus = FOUND / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def once(content: bytes) -> None:
        try:
            read(content)
        except (InputError, StoreError) as error:
            assert str(error), "an error that says nothing"

    files = [option for option in options if not option.startswith("-")]
    limits = [f"-max_len={LONGEST}", "-rss_limit_mb=8192", "-timeout=30", "-print_final_stats=1"]
    places = files or [str(corpus), f"-artifact_prefix={FOUND}/{target}-"]
    flags = [option for option in options if option.startswith("-")]
    atheris.Setup([sys.argv[0], *limits, *flags, *places], once)
    atheris.Fuzz()


def new_folder() -> Path:
    """A folder of this process, in memory where there is such a place: thousands of files pass through it."""
    memory = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(prefix="wirescope-fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(folder.cleanup)
    return Path(folder.name)


def from_file(name: str, read: Callable[[Path], object]) -> Read:
    """A reader of files as one of bytes."""
    file = new_folder() / name

    def read_bytes(content: bytes) -> object:
        file.write_bytes(content)
        return read(file)

    return read_bytes


ODD = [
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 10**400, 1.5, 1e39, float("nan"), float("inf")),
    *("", "a", "\ud800", "edge", "../x", [], [1], ["a"], [[]], {}, {"a": 1}, {"edge": 1}),
]


def tampered(document: Any, choices: Any) -> Any:
    """A document with something odd in one place: bytes alone seldom make another valid one."""
    if isinstance(document, dict) and document and choices.ConsumeIntInRange(0, 7):
        key = choices.PickValueInList(list(document))
        return document | {key: tampered(document[key], choices)}
    if isinstance(document, list) and document and choices.ConsumeIntInRange(0, 7):
        at = choices.ConsumeIntInRange(0, len(document) - 1)
        return [*document[:at], tampered(document[at], choices), *document[at + 1 :]]
    return choices.PickValueInList(ODD)


def or_tampered(read: Read, document: Any, write: Callable[[Any], bytes]) -> Read:
    """A reader of bytes that takes what begins with ``t`` for choices of how to tamper with a document."""
    from atheris import FuzzedDataProvider

    def either(content: bytes) -> object:
        if content[:1] != b"t":
            return read(content)
        return read(write(tampered(document, FuzzedDataProvider(content[1:]))))

    return either


def prompts() -> tuple[Read, list[bytes]]:
    from wirescope.data import Vocabulary, encode_pairs, read_pairs

    vocabulary = Vocabulary(size=256, context=16, encode=lambda text: list(text.encode()))
    text = {"clean": "ab", "corrupted": "cb", "correct": ["c"], "wrong": ["d", "e"]}
    ids = {"clean_ids": [5, 9], "corrupted_ids": [7, 9], "correct_ids": [3], "wrong_ids": [4]}
    lines = [json.dumps(pair).encode() for pair in (text, ids)]
    read = from_file("p.jsonl", lambda file: encode_pairs(read_pairs(file), vocabulary))
    return or_tampered(read, text | ids, dumped), [*lines, b"\n\n".join(lines), b"t1234"]


def text() -> tuple[Read, list[bytes]]:
    from wirescope.data import read_documents

    def read(name: str) -> Read:
        return from_file(name, lambda file: read_documents(file, lambda text: list(text.encode()), 4))

    lines, whole = read("t.jsonl"), read("t.txt")

    def either(content: bytes) -> object:
        return lines(content[1:]) if content[:1] == b"l" else whole(content[1:])

    return either, [b'l{"text": "some words"}\n{"text": "more"}\n', b"wjust some text that is long enough"]


def circuit() -> tuple[Read, list[bytes]]:
    from wirescope.data import read_circuit

    read = or_tampered(from_file("c.json", read_circuit), small_circuit(), dumped)
    return read, [dumped(small_circuit()), b"t1234"]


def gzipped() -> tuple[Read, list[bytes]]:
    """Half of the inputs are compressed here, or none would get beyond the checksum."""
    from wirescope.data import read_circuit

    read = from_file("c.json.gz", read_circuit)
    whole = dumped(small_circuit())

    def either(content: bytes) -> object:
        return read(content[1:] if content[:1] == b"r" else gzip.compress(content[1:], 1))

    return either, [b"r" + gzip.compress(whole), b"c" + whole]


def pt() -> tuple[Read, list[bytes]]:
    """A file as it is (r), its pickle, which is put into an archive like torch's here (p), or choices (t)."""
    import torch
    from atheris import instrument_func
    from torch._weights_only_unpickler import Unpickler
    from wirescope.extract import read_pt

    Unpickler.load = instrument_func(Unpickler.load)
    read = from_file("c.pt", read_pt)

    def saved(content: Any, **options: bool) -> bytes:
        file = io.BytesIO()
        torch.save(content, file, **options)
        return file.getvalue()

    archive, legacy = saved(small_pt()), saved(small_pt(), _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        records = {info.filename: opened.read(info) for info in opened.infolist()}
    (pickled,) = (name for name in records if name.endswith("/data.pkl"))

    def either(content: bytes) -> object:
        if content[:1] != b"p":
            return read(content[1:])
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as opened:
            for name, record in records.items():
                opened.writestr(name, content[1:] if name == pickled else record)
        return read(packed.getvalue())

    plain = pickle.dumps({"cfg": {"n_layers": 1}, "src_nodes": [1.5, None]}, protocol=2)
    seeds = [b"r" + archive, b"r" + legacy, b"p" + records[pickled], b"p" + plain, b"r" + plain, b"t1234"]
    return or_tampered(either, small_pt(), lambda content: b"r" + saved(content)), seeds


def run() -> tuple[Read, list[bytes]]:
    """Reading a run.json, and opening a store that has it."""
    from wirescope.data import Curves, Part, read_catalog

    record = replace(
        small_run(),
        finished="2026-01-01T00:00:00+00:00",
        curves=(Curves(ablation="corrupt", split=0.5, sizes={"edge": {"task": (1, 8)}}),),
        parts={"edges": (Part("edges/run=a/part-00000.parquet", 8, 100),)},
    )
    bare = replace(record, parts={})
    store = new_folder() / "store"
    file = store / "runs" / "run=a" / "run.json"
    file.parent.mkdir(parents=True)

    def read(content: bytes) -> object:
        from wirescope.queries import open_store

        file.write_bytes(content)
        catalog = read_catalog(store)
        if "a" in catalog.runs:
            open_store(catalog).execute("from runs").fetchall()
        return catalog

    tampering = or_tampered(read, json.loads(bare.to_json()), dumped)
    return tampering, [record.to_json().encode(), bare.to_json().encode(), b"t1234"]


def sql() -> tuple[Read, list[bytes]]:
    """Whatever a query is, nothing in the store, nor any of its views, is other than before."""
    import duckdb
    from wirescope.data import write_run
    from wirescope.graphs import Wiring

    store = new_folder() / "store"
    with write_run(store, small_run()) as writer:
        writer.write_wiring(Wiring(small_run().shape))
    (store / "canary.csv").write_text("canary\n1\n")

    connect = duckdb.connect

    def frugal(config: dict[str, Any]) -> duckdb.DuckDBPyConnection:
        limits = {"memory_limit": "512MB", "threads": 1, "max_temp_directory_size": "64MB"}
        return connect(config=config | limits)

    duckdb.connect = frugal  # the connection cannot be configured any more once it is open
    from wirescope.queries import open_store, select

    connection = open_store(store)
    duckdb.connect = connect

    def state() -> list[Any]:
        files = [
            (str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(store.rglob("*"))
        ]
        return [
            files,
            sorted(path.name for path in store.parent.iterdir()),
            connection.execute(views).fetchall(),
        ]

    views = "select view_name, sql from duckdb_views() union all select table_name, sql from duckdb_tables() order by 1"
    before = state()

    words = [
        *(
            "select",
            "from",
            "where",
            "copy",
            "to",
            "(",
            ")",
            ",",
            ";",
            "*",
            "1",
            "as",
            "a",
            "with",
            "insert into",
        ),
        *(
            "values",
            "create",
            "or replace",
            "temp",
            "table",
            "view",
            "macro",
            "drop",
            "attach",
            "detach",
            "use",
        ),
        *(
            "export database",
            "import database",
            "install",
            "load",
            "set",
            "pragma",
            "call",
            "explain",
            "analyze",
        ),
        *(
            "prepare p as",
            "execute p",
            "describe",
            "summarize",
            "pivot",
            "update",
            "delete",
            "union all",
            "runs",
        ),
        *(
            "nodes",
            "edge_means",
            "query(",
            "read_csv(",
            "read_text(",
            "glob(",
            "begin",
            "commit",
            "vacuum",
            "--",
        ),
        *(
            f"'{store}/x.csv'",
            f"'{store}/canary.csv'",
            f"'{store}'",
            "'/etc/passwd'",
            "returning *",
            "into",
            "=",
        ),
    ]

    def said(content: bytes) -> str:
        """A text as it is or, after a ``t``, a word for each byte."""
        if content[:1] != b"t":
            return content.decode(errors="replace")
        return " ".join(words[byte % len(words)] for byte in content[1:])

    def read(content: bytes) -> object:
        impatient = threading.Timer(PATIENCE, connection.interrupt)
        impatient.start()
        try:
            return select(connection, said(content))
        finally:
            impatient.cancel()
            impatient.join()
            assert state() == before, "a query changed something"

    queries = [
        "select name, score from edge_means order by abs(score) desc limit 5",
        "with a as (select 1 as b) select * from a",
        "describe edge_scores",
        "from runs",
        f"copy (select 1) to '{store}/x.csv'",
        f"copy (select 1) to '{store}/canary.csv'",
        f"explain analyze copy (select 1) to '{store}/x.csv'",
        f"export database '{store}/x'",
        f"attach '{store}/x.db'",
        "create or replace view runs as select 1 as run",
        "drop view runs",
        f"select 1; copy (select 1) to '{store}/x.csv'",
        f"prepare p as copy (select 1) to '{store}/x.csv'; execute p",
        f"select * from query('copy (select 1) to ''{store}/x.csv''')",
        "select sum(170141183460469231731687303715884105727::hugeint) as s, map {1: date '2020-01-01'} as m",
        "pivot nodes on kind using count(*)",
        "call pragma_version()",
        "vacuum",
        "checkpoint",
        "begin transaction",
        "t\0\x09\x01\x2c",
    ]
    return read, [query.encode() for query in queries]


def dumped(content: Any) -> bytes:
    return json.dumps(content).encode()


def small_circuit() -> dict[str, Any]:
    """A published circuit of a model of one layer and one head."""
    from wirescope.graphs import Shape, Wiring

    wiring = Wiring(Shape(1, 1))
    return {
        "cfg": {"n_layers": 1, "n_heads": 1, "parallel_attn_mlp": False},
        "nodes": {name: {"in_graph": True} for name in wiring.node_names},
        "edges": {name: {"score": 0.5, "in_graph": True} for name in wiring.edge_names().to_pylist()},
    }


def small_pt() -> dict[str, Any]:
    """The same as EAP-IG saves it."""
    import torch

    sources, destinations = ["input", "a0.h0", "m0"], ["a0.h0<q>", "a0.h0<k>", "a0.h0<v>", "m0", "logits"]
    scores = torch.ones(len(sources), len(destinations))
    return {
        "cfg": {"n_layers": 1, "n_heads": 1, "parallel_attn_mlp": False},
        "src_nodes": sources,
        "dst_nodes": destinations,
        "edges_scores": scores,
        "edges_in_graph": scores > 0,
    }


def small_run() -> Any:
    from wirescope.data import Run
    from wirescope.graphs import Shape

    return Run(run="a", model="m", shape=Shape(1, 1), prompts=1, levels=("edge",))


TARGETS = {each.__name__: each for each in (prompts, text, circuit, gzipped, pt, run, sql)}


if __name__ == "__main__":
    main()
