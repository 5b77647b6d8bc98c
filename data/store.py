"""The store: a folder of runs as Parquet, and the one place that knows its layout.

    STORE/runs/run=RUN/run.json
    STORE/TABLE/run=RUN/part-00000.parquet      one file a shard of prompts

Writing. A file is written under a temporary name and then renamed, and a run is finished when its
``run.json`` says so, which happens last: whatever dies in between leaves a run that readers skip. The same
call made again goes on with it: parts that are there are not written again. A lock on the run's folder
keeps a second writer out and goes away with the process that held it. Different runs share no file.

Reading. `read_catalog` looks at every ``run.json`` and at the footer of every part that it lists, and
sorts the runs into those that can be read, those that are not finished and those that are broken, with
the file that is to blame. It reads no data: that is for DuckDB, or whatever else reads Parquet.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..graphs import InputError, Shape, StoreError, Wiring, did_you_mean
from .files import disk_errors, replacing
from .schema import SCHEMA_VERSION, TABLES, encodings

ROW_GROUP = 1 << 18
SIGN = "metric(ablated) - metric(clean)"


@dataclass(frozen=True)
class Part:
    """A Parquet file of a run, relative to the store."""

    file: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """What ``run.json`` holds: everything needed to repeat the run, and what became of it.

    What is not known (an imported circuit does not say its seed) is None.
    """

    run: str
    model: str
    revision: str | None = None
    base_model: str | None = None
    """The dense model that a gated one came from."""
    config: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape
    task: str | None = None
    seed: int | None = None
    prompts: int
    prompts_hash: str | None = None
    levels: tuple[str, ...]
    method: str | None = None
    steps: int | None = None
    integration_rule: str | None = None
    metric: str | None = None
    sign: str = SIGN
    ablation: str | None = None
    dtype: str | None = None
    device: str | None = None
    source: str | None = None
    """The file that an imported run was read from."""
    source_hash: str | None = None
    """SHA-256 of what was read from it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    started: str | None = None
    finished: str | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    """By table."""

    @property
    def wiring(self) -> Wiring:
        """The wiring that its edge ids refer to."""
        return Wiring(self.shape)

    def differs_from(self, other: "Run") -> list[str]:
        """What the two calls differ in, whatever became of them and wherever they ran: [] for one call."""
        fate = {"versions", "device", "started", "finished", "parts"}
        names = [f.name for f in fields(self) if f.name not in fate]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def to_json(self) -> str:
        """The text of ``run.json``."""
        return json.dumps(asdict(self) | {"shape": self.shape.asdict()}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """The run of a ``run.json`` of this schema version."""
        record = json.loads(text)
        version = record["schema_version"]
        if version > SCHEMA_VERSION:
            raise InputError(
                f"The run '{record['run']}' was written by a newer Wirescope (schema {version}, this one "
                f"reads up to {SCHEMA_VERSION}); update Wirescope to read this store."
            )
        known = {f.name for f in fields(cls)}
        record = {key: value for key, value in record.items() if key in known}
        record["shape"] = Shape(**record["shape"])
        record["levels"] = tuple(record["levels"])
        record["parts"] = {
            table: tuple(Part(**part) for part in parts) for table, parts in record["parts"].items()
        }
        return cls(**record)


@dataclass(frozen=True)
class Catalog:
    """The runs of a store."""

    path: Path
    runs: Mapping[str, Run]
    unfinished: tuple[str, ...]
    broken: Mapping[str, str]
    """Run and what is wrong with it."""

    def run(self, name: str) -> Run:
        """A run by name; one that cannot be read is an error that says why."""
        if name in self.runs:
            return self.runs[name]
        if name in self.broken:
            raise StoreError(self.broken[name])
        if name in self.unfinished:
            raise InputError(
                f"The run '{name}' is not finished; the command that started it, given again, goes on with it."
            )
        there = ", ".join(sorted(self.runs)) or "none"
        raise InputError(
            f"The store '{self.path}' has no run '{name}' (runs: {there})."
            f"{did_you_mean(name, [*self.runs, *self.unfinished])}"
        )

    def files(self, table: str, run: str) -> list[Path]:
        """The parts of a table that a run has."""
        return [self.path / part.file for part in self.runs[run].parts.get(table, ())]


def read_catalog(store: Path | str) -> Catalog:
    """The runs of a store, each checked down to the footers of its files."""
    path = Path(store)
    if not path.is_dir():
        raise InputError(
            f"There is no store at '{store}'; make one with 'wirescope import FILE --store {store}'."
        )
    runs, unfinished, broken = {}, [], {}
    for record in sorted(path.glob("runs/run=*/run.json")):
        name = record.parent.name.removeprefix("run=")
        try:
            run = Run.from_json(record.read_text())
            if run.finished is None:
                unfinished.append(name)
                continue
            for table, parts in run.parts.items():
                for part in parts:
                    _check_part(path, name, table, part)
            runs[name] = run
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError, AttributeError) as error:
            broken[name] = f"The run '{name}' cannot be read: '{record}' is not a run.json ({error!r})."
        except StoreError as error:
            broken[name] = f"The run '{name}' cannot be read: {error}"
    if not (runs or unfinished or broken):
        raise InputError(
            f"The store '{store}' is empty; add a run with 'wirescope import FILE --store {store}'."
        )
    return Catalog(path, runs, tuple(unfinished), broken)


@contextmanager
def write_run(store: Path | str, run: Run) -> Iterator["RunWriter"]:
    """Write a run, or go on with it; it is finished when the block ends without an exception."""
    path = Path(store)
    _check_name(run.run)
    run = Run.from_json(run.to_json())  # plain values, as they will be read back
    record = path / "runs" / f"run={run.run}" / "run.json"
    with _locked(record.parent, run.run):
        if record.exists():
            there = Run.from_json(record.read_text())
            if changed := there.differs_from(run):
                raise InputError(
                    f"The store '{store}' has a run '{run.run}' of another call already (not the same: "
                    f"{', '.join(changed)}); choose another name with --run."
                )
            run = there
        else:
            run = replace(run, started=_now(), versions=_versions() | dict(run.versions))
            _put(record, run.to_json())
        writer = RunWriter(path, run)
        yield writer
        if run.finished is None:
            _put(record, replace(run, finished=_now(), parts=writer.parts()).to_json())


class RunWriter:
    """Writes the parts of one run. Made by `write_run`, which holds the run's lock."""

    def __init__(self, store: Path, run: Run) -> None:
        self._store, self._run = store, run.run
        self.finished = run.finished is not None
        """Whether there is nothing left to do."""
        for left_over in store.glob(f"*/run={self._run}/.*.tmp"):
            left_over.unlink()

    def has(self, table: str, shard: int = 0) -> bool:
        """Whether this part is there already."""
        return self._path(table, shard).exists()

    def write(self, table: str, rows: pa.Table, shard: int = 0) -> None:
        """Write a part, unless it is there already. Rows come sorted by their ids."""
        if self.has(table, shard):
            return
        schema = TABLES[table]
        encoded = encodings(schema)
        others = [name for name in schema.names if name not in encoded]
        part = self._path(table, shard)
        with disk_errors(part):
            part.parent.mkdir(parents=True, exist_ok=True)
        with replacing(part) as file:
            pq.write_table(
                rows.select(schema.names).cast(schema),
                file,
                row_group_size=ROW_GROUP,
                compression="zstd",
                use_dictionary=others or False,
                column_encoding=encoded,
                write_page_checksum=True,
                store_schema=False,
            )

    def write_wiring(self, wiring: Wiring) -> None:
        """Write `nodes` and `edges`."""
        self.write("nodes", wiring.node_table())
        self.write("edges", wiring.edge_table())

    def parts(self) -> dict[str, tuple[Part, ...]]:
        """All parts of the run, by table."""
        found = {}
        for table in TABLES:
            files = sorted((self._store / table / f"run={self._run}").glob("part-*.parquet"))
            if files:
                found[table] = tuple(
                    Part(
                        file.relative_to(self._store).as_posix(),
                        pq.read_metadata(file).num_rows,
                        file.stat().st_size,
                    )
                    for file in files
                )
        return found

    def _path(self, table: str, shard: int) -> Path:
        return self._store / table / f"run={self._run}" / f"part-{shard:05d}.parquet"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}", name):
        raise InputError(
            f"'{name}' cannot be the name of a run: use letters, digits and . _ + @ -, starting with a "
            "letter or digit."
        )


def _check_part(store: Path, run: str, table: str, part: Part) -> None:
    file = store / part.file
    if table not in TABLES or not re.fullmatch(rf"{table}/run={re.escape(run)}/part-\d+\.parquet", part.file):
        raise StoreError(f"its run.json lists '{part.file}', which is no part of its {table}.")
    if not file.is_file():
        raise StoreError(f"'{file}' is missing.")
    size = file.stat().st_size
    if size != part.bytes:
        raise StoreError(f"'{file}' has {size} bytes instead of {part.bytes}: it was cut short or replaced.")
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"'{file}' is not a Parquet file ({error}).") from error
    if not schema.equals(TABLES[table]):
        raise StoreError(f"'{file}' does not have the columns of {table}: it has {', '.join(schema.names)}.")


def _put(target: Path, text: str) -> None:
    with replacing(target) as file:
        file.write(text.encode())


@contextmanager
def _locked(folder: Path, run: str) -> Iterator[None]:
    """Hold the lock of a run's folder; the system drops it when the process ends, however it ends."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise InputError(f"The run '{run}' is being written by another process.") from error
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("wirescope", "numpy", "pyarrow")}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
