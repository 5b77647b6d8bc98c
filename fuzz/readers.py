"""Fuzz whatever reads what others wrote: any bytes must be read, or refused with a sentence.

A target is fuzzed in a process of its own, from a few valid inputs and whatever it found before (in build/fuzz/). An
exception that is not one of the errors for the user is a crash: libFuzzer stops there and keeps the input.

    python fuzz/readers.py [--minutes 10] [TARGET ...]      all targets, or these, one after another
    python fuzz/readers.py --only TARGET [libFuzzer option or file ...]      one, for example a crash again
    python fuzz/readers.py --only sql --queries 200000 [--seed 0]      SQL by the grammar alone, without libFuzzer
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
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import suppress
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
    if sys.argv[1:4] == ["--only", "sql", "--queries"]:
        parser = argparse.ArgumentParser(description=ask.__doc__)
        parser.add_argument("--only")
        parser.add_argument("--queries", type=int)
        parser.add_argument("--seed", type=int, default=0)
        options = parser.parse_args()
        ask(options.queries, options.seed)
        return
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
    from wirescope.errors import InputError, StoreError

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
    hollow = [b"r" + saved(small_pt() | {"edges_scores": scores}) for scores in hollow_scores()]
    seeds = [
        *hollow,
        b"r" + archive,
        b"r" + legacy,
        b"p" + records[pickled],
        b"p" + plain,
        b"r" + plain,
        b"t1234",
    ]
    return or_tampered(either, small_pt(), lambda content: b"r" + saved(content)), seeds


def npz() -> tuple[Read, list[bytes]]:
    """A twin's difference: a file as it is (r), or choices of how to tamper with its config (t)."""
    import numpy as np
    import torch
    from wirescope.extract import convert, write_difference

    folder = new_folder()
    for name in ("dense", "twin"):
        model = small_llama()
        if name == "twin":
            torch.nn.init.constant_(model.model.norm.weight, 2.0)
            model.config.gate_bias = [[0.5]]
        model.save_pretrained(folder / name)
    write_difference(folder / "twin", folder / "dense", folder / "twin.npz")
    arrays = dict(np.load(folder / "twin.npz"))
    read = from_file("d.npz", made(lambda file, out: convert(file, out, base=str(folder / "dense"))))

    def saved(config: Any) -> bytes:
        file = io.BytesIO()
        np.savez(file, **arrays | {"config": np.frombuffer(dumped(config), np.uint8)})
        return file.getvalue()

    config = json.loads(arrays["config"].tobytes()) | {"known_names": ["Mary"]}
    tampering = or_tampered(lambda content: read(content[1:]), config, lambda config: b"r" + saved(config))
    return tampering, [b"r" + (folder / "twin.npz").read_bytes(), b"r" + saved(config), b"t1234"]


def llama2c() -> tuple[Read, list[bytes]]:
    from wirescope.extract import convert

    tokenizer = struct.pack("<i", 5) + b"".join(
        struct.pack("<fi", -score, len(piece)) + piece
        for score, piece in enumerate((b"<unk>", b"<s>", b"</s>", b"a", b"b", b"ab"))
    )
    weights = struct.pack("<7i", 2, 2, 1, 1, 1, 6, 4) + bytes(4 * 54)
    return from_file("m.bin", made(convert)), [weights, weights + tokenizer]


def made(convert: Callable[[Path, Path], object]) -> Callable[[Path], object]:
    """A converter of files as a reader: what it writes is removed."""
    out = new_folder() / "out"

    def read(file: Path) -> object:
        try:
            return convert(file, out)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    return read


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
            open_store(catalog, memory="1GB").execute("from runs").fetchall()
        return catalog

    tampering = or_tampered(read, json.loads(bare.to_json()), dumped)
    return tampering, [record.to_json().encode(), bare.to_json().encode(), b"t1234"]


def sql() -> tuple[Read, list[bytes]]:
    """Texts as they are (with an ``x`` before), or queries by the grammar, a choice a byte: see `Door`."""
    door = Door()
    queries = [f"x{query}".encode() for query in door.seeds()]
    return door.read, [*queries, *(bytes(range(n, n + 40)) for n in range(0, 200, 20))]


class Door:
    """A store, and what watches it: whatever a query is, no file of the store or elsewhere is other than before.

    A query is tried as a user's, where nothing may come of it but an answer or a sentence. Then DuckDB is given it as
    it is, on a connection that nobody guards: there must be nothing to write to even for what should be let pass.
    """

    def __init__(self) -> None:
        from wirescope.data import write_run
        from wirescope.errors import InputError, StoreError
        from wirescope.graphs import Wiring

        self.refusals = (InputError, StoreError)
        self.world = new_folder()
        self.store = self.world / "store"
        with write_run(self.store, small_run()) as writer:
            writer.write_wiring(Wiring(small_run().shape))
        for name in ("home", "here", "tmp", "elsewhere"):
            (self.world / name).mkdir()
            (self.world / name / "canary.csv").write_text("canary\n1\n")
        os.environ |= {"HOME": str(self.world / "home"), "XDG_CACHE_HOME": str(new_folder())}
        tempfile.tempdir = str(self.world / "tmp")
        os.chdir(self.world / "here")
        self.asked, self.answered, self.ran = 0, 0, 0
        self.connection, self.defenceless = self.connect(), self.connect()
        self.views = self.view_texts()
        self.before, self.bytes = self.state(), self.contents()
        self.grammar = Grammar(self)

    def connect(self) -> Any:
        import duckdb
        from wirescope.queries import open_store

        connect = duckdb.connect

        def frugal(config: dict[str, Any]) -> duckdb.DuckDBPyConnection:
            limits = {"memory_limit": "512MB", "threads": 1, "max_temp_directory_size": "64MB"}
            return connect(config=config | limits)

        duckdb.connect = frugal  # the connection cannot be configured any more once it is open
        try:
            return open_store(self.store, memory="1GB")
        finally:
            duckdb.connect = connect

    def read(self, content: bytes) -> None:
        """Try a query."""
        from wirescope.queries import limited, select

        query = content[1:].decode(errors="replace") if content[:1] == b"x" else self.grammar.query(content)
        self.asked += 1
        try:
            select(limited(self.connection, timeout=PATIENCE), query)
            self.answered += 1
        except self.refusals as error:
            assert str(error), f"an error that says nothing: {query}"
        except Exception as error:
            raise RuntimeError(f"a traceback: {query!r}") from error
        self.check_files(query)
        self.run(query)
        self.check_files(query)
        if self.asked % 1000 == 0:
            self.check_all()
            self.defenceless.close()
            self.defenceless = self.connect()  # by now it may have lost its views

    def run(self, query: str) -> None:
        """Have DuckDB run a query that nobody has looked at."""
        import duckdb

        impatient = threading.Timer(PATIENCE, self.defenceless.interrupt)
        impatient.start()
        try:
            self.defenceless.execute(query).fetchmany(3)
            self.ran += 1
        except Exception:  # whatever it says: it is DuckDB's, and what counts is what it does
            pass
        finally:
            impatient.cancel()
            impatient.join()
        with suppress(duckdb.Error):
            self.defenceless.rollback()

    def check_files(self, query: str) -> None:
        changed = set(self.state()) ^ set(self.before)
        assert not changed, f"a query changed {sorted(changed)}: {query!r}"

    def check_all(self) -> None:
        """The views, and every byte."""
        assert self.view_texts() == self.views, "a query changed a view"
        assert self.contents() == self.bytes, "a query changed a byte"

    def view_texts(self) -> list[Any]:
        views, tables = (
            "select view_name, sql from duckdb_views()",
            "select table_name, sql from duckdb_tables()",
        )
        return self.connection.sql(f"{views} union all {tables} order by 1").fetchall()

    def files(self) -> list[Path]:
        """All of this world, less what DuckDB has for what does not fit in memory."""
        found = []
        for folder, folders, files in os.walk(self.world):
            folders[:] = [
                name for name in folders if not (name.startswith("wirescope-") and folder.endswith("tmp"))
            ]
            found += [Path(folder, name) for name in (*folders, *files)]
        return sorted(found)

    def state(self) -> list[Any]:
        found = []
        for file in self.files():
            stat = file.stat()
            # the date of a folder says no more than the names in it, and a temporary one comes and goes
            found.append(
                (str(file), stat.st_ino, *((stat.st_mtime_ns, stat.st_size) if file.is_file() else ()))
            )
        return found

    def contents(self) -> list[bytes]:
        return [file.read_bytes() for file in self.files() if file.is_file()]

    def seeds(self) -> list[str]:
        part = self.store / "edges" / "run=a" / "part-00000.parquet"
        copy = f"copy (select 42 as a) to '{part}' (format parquet)"
        return [
            "select name, score from edge_means order by abs(score) desc limit 5",
            "with a as (select 1 as b) select * from a",
            "describe edge_scores",
            "from runs",
            copy,
            f"with x as ({copy}) select * from x",
            f"with x as ({copy}) values (1)",
            f"from query('with x as ({copy.replace(chr(39), chr(39) * 2)}) from x')",
            "with x as (insert into runs values (1) returning *) from x",
            f"explain analyze {copy}",
            f"export database '{self.store}/x'",
            f"attach '{self.store}/x.db'",
            "create or replace view runs as select 1 as run",
            f"select 1; {copy}",
            f"prepare p as {copy}; execute p",
            "select sum(170141183460469231731687303715884105727::hugeint) as s, map {1: date '2020-01-01'} as m",
            "pivot nodes on kind using count(*)",
            "call pragma_version()",
            "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) as m from t",
        ]


class Grammar:
    """Queries of DuckDB's own words: its keywords, functions and settings, our views, and paths of all kinds.

    Bytes choose; when there are no more, it is always the first choice, which ends.
    """

    def __init__(self, door: Door) -> None:
        def words(query: str) -> list[str]:
            return sorted({word for (word,) in door.connection.sql(query).fetchall()})

        self.keywords = words("select keyword_name from duckdb_keywords()")
        self.functions = words("select function_name from duckdb_functions() where function_type <> 'pragma'")
        self.tables = words("select function_name from duckdb_functions() where function_type = 'table'")
        self.pragmas = words("select function_name from duckdb_functions() where function_type = 'pragma'")
        self.settings = words("select name from duckdb_settings()")
        self.views = ["runs", *words("select view_name from duckdb_views() where not internal")]
        self.columns = words("select column_name from duckdb_columns() where not internal")
        part = "edges/run=a/part-00000.parquet"
        self.paths = [
            *(
                f"{door.store}/{name}"
                for name in (part, "x.csv", "x", "runs/run=a/run.json", "edges", "*", "../x.csv")
            ),
            *(
                f"store://{part}",
                f"STORE://{part}",
                "store://x.csv",
                "store://../x",
                f"file://{door.store}/{part}",
            ),
            *(
                f"{door.world}/{name}"
                for name in ("elsewhere/canary.csv", "elsewhere/x", "here/x", "home/.duckdb")
            ),
            *(
                "x.csv",
                "../elsewhere/x.csv",
                "~/x",
                "/etc/passwd",
                "/dev/stdin",
                ":memory:",
                "https://example.org/x",
            ),
        ]

    def query(self, choices: bytes) -> str:
        """A query for some bytes."""
        self.choices, self.depth = iter(choices), 0
        return self.pick([self.statement, self.statement, self.soup, self.several])

    def pick(self, options: list[Any]) -> str:
        """One of some words, or what one of some rules makes."""
        size, chosen = 1, 0
        while size < len(options):  # a byte chooses from 256
            size, chosen = size * 256, chosen * 256 + next(self.choices, 0)
        option = options[chosen % len(options)]
        return str(option() if callable(option) else option)

    def rule(self, *options: Any) -> str:
        """The same, of rules that may contain themselves."""
        self.depth += 1
        try:
            return self.pick(list(options)) if self.depth < 12 else self.pick(list(options[:1]))
        finally:
            self.depth -= 1

    def several(self) -> str:
        return f"{self.statement()}; {self.statement()}"

    def soup(self) -> str:
        """A statement with other words in it, or nothing but words."""
        words = self.statement().split(" ")
        for _ in range(3):
            at = next(self.choices, 0) % (len(words) + 1)
            words[at : at + next(self.choices, 0) % 2] = [self.word()]
        return " ".join(words)

    def word(self) -> str:
        return self.pick(
            [
                lambda: self.pick(self.keywords),
                self.name,
                self.path,
                self.function,
                ";",
                "(",
                ")",
                ",",
                "--",
                "*",
                "$1",
            ]
        )

    def statement(self) -> str:
        return self.rule(
            *(
                self.select,
                self.select,
                self.select,
                self.cte,
                self.cte,
                self.cte,
                self.cte,
                self.copy,
                self.modify,
            ),
            *(self.define, self.configure, self.run_other, self.describe),
        )

    def select(self) -> str:
        return self.rule(
            lambda: f"from {self.name()}",
            lambda: f"select {self.expression()} as a from {self.source()}{self.rest()}",
            lambda: f"select {self.expression()} as a, {self.expression()} as b{self.rest()}",
            lambda: f"from {self.source()}{self.rest()}",
            lambda: f"values ({self.expression()})",
            lambda: f"({self.statement()})",
            lambda: (
                f"{self.select()} {self.pick(['union all', 'union', 'except', 'intersect'])} {self.statement()}"
            ),
            lambda: f"pivot {self.source()} on {self.column()} using count(*)",
            lambda: f"table {self.name()}",
        )

    def cte(self) -> str:
        recursive = self.pick(["", "", "", " recursive"])
        kind = self.pick(["", "", " materialized", " not materialized"])
        name = self.pick(["x", "x(n)", "runs"])
        body = self.pick([self.statement, self.copy, self.modify, self.run_other])
        more = self.pick(["", "", lambda: f", y as ({self.statement()})"])
        return f"with{recursive} {name} as{kind} ({body}){more} {self.rule(lambda: 'from x', self.statement)}"

    def copy(self) -> str:
        what = self.pick([lambda: f"({self.statement()})", self.name, f"({self.name()})"])
        options = self.pick(
            [
                *(
                    "",
                    "",
                    " (format parquet)",
                    " (format csv)",
                    " (format json)",
                    " (format parquet, partition_by (a))",
                ),
                *(
                    " (per_thread_output)",
                    " (format parquet, overwrite_or_ignore)",
                    " (use_tmp_file false)",
                    " (append)",
                ),
                *(
                    " (format parquet, return_files)",
                    " (format blob)",
                    " (format database)",
                    " (return_stats)",
                ),
            ]
        )
        return f"copy {what} {self.pick(['to', 'to', 'to', 'from'])} {self.path()}{options}"

    def modify(self) -> str:
        returning = self.pick(["", " returning *"])
        return self.rule(
            lambda: f"delete from {self.name()}{returning}",
            lambda: f"insert into {self.name()} {self.statement()}{returning}",
            lambda: f"update {self.name()} set {self.column()} = {self.expression()}{returning}",
            lambda: f"truncate {self.name()}",
            lambda: (
                f"merge into {self.name()} using {self.source()} on true when matched then delete{returning}"
            ),
        )

    def define(self) -> str:
        replacing, temporary = self.pick(["", " or replace"]), self.pick(["", " temp", " persistent"])
        kind = self.pick(
            ["table", "view", "macro", "secret", "schema", "sequence", "type", "index", "function"]
        )
        return self.rule(
            lambda: f"drop {kind} {self.name()}",
            lambda: f"create{replacing}{temporary} {kind} {self.name()} as {self.statement()}",
            lambda: f"create{replacing}{temporary} secret s (type http, scope {self.path()})",
            lambda: f"create{replacing} macro m() as {self.pick(['', 'table '])}{self.statement()}",
            lambda: f"alter {kind} {self.name()} rename to y",
        )

    def configure(self) -> str:
        value = self.pick([self.path, "true", "1", self.expression])
        return self.rule(
            lambda: (
                f"set {self.pick(['', 'session ', 'global ', 'variable '])}{self.pick(self.settings)} = {value}"
            ),
            lambda: f"reset {self.pick(self.settings)}",
            lambda: f"pragma {self.pick([*self.settings, *self.pragmas])} = {value}",
            lambda: f"pragma {self.pick(self.pragmas)}({value})",
        )

    def run_other(self) -> str:
        return self.rule(
            *("checkpoint", "vacuum", "begin", "commit", "rollback", "execute p", "analyze"),
            lambda: (
                f"attach {self.path()} as {self.pick(['y', 'main', 'temp'])}{self.pick(['', ' (read_only)'])}"
            ),
            lambda: f"export database {self.path()}",
            lambda: f"import database {self.path()}",
            lambda: f"{self.pick(['install', 'load', 'force install', 'use', 'detach'])} {self.word()}",
            lambda: f"{self.pick(['install', 'load'])} {self.path()}",
            lambda: f"call {self.called(self.tables)}",
            lambda: f"explain{self.pick(['', ' analyze'])} {self.statement()}",
            lambda: f"prepare p as {self.statement()}",
            lambda: f"comment on view {self.name()} is {self.path()}",
        )

    def describe(self) -> str:
        return self.rule(
            "show tables",
            lambda: f"{self.pick(['describe', 'summarize', 'show'])} {self.name()}",
            lambda: f"{self.pick(['describe', 'summarize'])} {self.statement()}",
        )

    def source(self) -> str:
        return self.rule(
            self.name,
            lambda: f"({self.statement()})",
            lambda: self.called(self.tables),
            lambda: f"query({quoted(self.statement())})",
            lambda: f"json_execute_serialized_sql(json_serialize_sql({quoted(self.statement())}))",
            lambda: f"{self.name()} join {self.source()} using ({self.column()})",
            lambda: f"{self.name()}, lateral ({self.statement()})",
            self.path,
        )

    def rest(self) -> str:
        return self.pick(
            [
                *("", "", ""),
                lambda: f" where {self.expression()}",
                lambda: f" order by {self.expression()} limit 3",
                lambda: f" group by {self.column()}",
                lambda: f" limit ({self.statement()})",
            ]
        )

    def expression(self) -> str:
        return self.rule(
            *("1", "'a'", self.column, self.path),
            lambda: self.called(self.functions),
            lambda: f"({self.statement()})",
            lambda: f"exists ({self.statement()})",
            lambda: (
                f"{self.expression()} {self.pick(['+', '=', 'in', '->', '||', 'is', '::'])} {self.expression()}"
            ),
            lambda: f"[{self.expression()}]",
            lambda: (
                f"cast({self.expression()} as {self.pick(['int', 'varchar', 'date', 'blob', 'json', 'hugeint'])})"
            ),
        )

    def called(self, functions: list[str]) -> str:
        given = self.pick(
            ["", self.expression, self.path, self.path, lambda: f"{self.path()}, {self.expression()}"]
        )
        return f"{self.pick(functions)}({given})"

    def function(self) -> str:
        return self.called(self.functions)

    def name(self) -> str:
        return self.pick([*self.views, "x", "y"])

    def column(self) -> str:
        return self.pick(["*", "a", *self.columns])

    def path(self) -> str:
        return quoted(self.pick(self.paths))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def ask(count: int, seed: int) -> None:
    """So many queries by the grammar, without libFuzzer; the first that does any harm ends it."""
    import random

    door, bytes_of = Door(), random.Random(seed)
    for query in door.seeds():
        door.read(f"x{query}".encode())
    while door.asked < count:
        door.read(bytes_of.randbytes(120))
        if door.asked % 10_000 == 0 or door.asked == count:
            print(
                f"{door.asked:,} queries: {door.answered:,} answers; as they are, {door.ran:,} ran",
                flush=True,
            )
    door.check_all()


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
        "sign": "metric",
        "metric": "kl",
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


def hollow_scores() -> list[Any]:
    """Scores that are larger than what is saved of them."""
    import torch

    shape = (3, 5)
    views = [
        torch.ones(1).expand(shape),
        torch.ones(7).as_strided(shape, (1, 1)),
        torch.empty(shape, device="meta"),
    ]
    return [*views, torch.eye(*shape).to_sparse(), torch.eye(*shape).to_sparse_csr()]


def small_llama() -> Any:
    """One of one layer and one head."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 4, "hidden_size": 2, "intermediate_size": 2, "max_position_embeddings": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=1))


def small_run() -> Any:
    from wirescope.data import Run
    from wirescope.graphs import Shape

    return Run(run="a", model="m", shape=Shape(1, 1), prompts=1, levels=("edge",))


TARGETS = {each.__name__: each for each in (prompts, text, circuit, gzipped, pt, npz, llama2c, run, sql)}


if __name__ == "__main__":
    main()
