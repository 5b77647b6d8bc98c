"""The store: a folder of runs as Parquet, and the one place that knows its layout.

    STORE/runs/run=RUN/run.json
    STORE/TABLE/run=RUN/part-00000.parquet      one file a shard of prompts
    STORE/effects/run=RUN/part-00000-TAG.parquet   and a set of curves, which has a tag

Writing. A file is written under a temporary name and then renamed, and a run is finished when its
``run.json`` says so, which happens last: whatever dies in between leaves a run that readers skip. The same
call made again goes on with it: parts that are there are not written again. A lock on the run's folder
keeps a second writer out and goes away with the process that held it. Different runs share no file. Curves are
added to a finished run: their parts are not listed, and so not read, before the last of them is there.

Reading. `read_catalog` looks at every ``run.json`` and at every part that it lists, and sorts the runs into
those that can be read, those that are not finished and those that are broken, with the file that is to
blame. A part is read from end to end when it is first seen, and then taken for what it was. Data is for
DuckDB, or whatever else reads Parquet.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..graphs import InputError, StoreError, Wiring, did_you_mean
from .files import disk_errors, replacing
from .parts import Memory, inspect, troubles, write_part
from .run import Curves, Part, Run, read_run
from .schema import TABLES

_CHECKED = pa.schema(
    {
        "run": pa.string(),
        "files": pa.int64(),
        "bytes": pa.int64(),
        "state": pa.string(),
        "trouble": pa.string(),
    }
)


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


def read_catalog(store: Path | str, *, again: bool = False) -> Catalog:
    """The runs of a store, each checked down to its files: those that are new, or all of them again."""
    path = Path(store)
    if not path.is_dir():
        raise InputError(
            f"There is no store at '{store}'; make one with 'wirescope extract' or 'wirescope import'."
        )
    runs, unfinished, broken = {}, [], {}
    memory = Memory(path, again=again)
    for folder in sorted(path.glob("runs/run=*")):
        name = folder.name.removeprefix("run=")
        try:
            run = read_run(folder / "run.json") if (folder / "run.json").exists() else None
            if run is None or run.finished is None:
                unfinished.append(name)
                continue
            new = [(table, part) for table, part in _listed(run, name) if not memory.has(part)]
            found = troubles(path, new, run.schema_version)
            for _, part in new:
                if path / part.file not in found:
                    memory.add(part)
            if found:
                trouble, *others = found.values()
                raise StoreError(
                    trouble + (f" So it is with {len(others)} more of its files." if others else "")
                )
            runs[name] = run
        except StoreError as error:
            broken[name] = f"{_cannot(name)}{error}"
        except OSError as error:  # such as a folder that is another user's
            broken[name] = f"{_cannot(name)}'{error.filename}': {error.strerror}."
    memory.keep()
    if not (runs or unfinished or broken):
        raise InputError(
            f"The store '{store}' is empty; add a run with 'wirescope extract' or 'wirescope import'."
        )
    return Catalog(path, runs, tuple(unfinished), broken)


def check_store(store: Path | str) -> pa.Table:
    """Read everything again: every run with its files and bytes, its state, and what is wrong with it, if anything."""
    catalog = read_catalog(store, again=True)
    rows = []
    for name in sorted({*catalog.runs, *catalog.unfinished, *catalog.broken}):
        files = [file for table in TABLES for file in _files(catalog.path, table, name)]
        trouble = catalog.broken.get(name, "").removeprefix(_cannot(name)) or None
        state = "broken" if trouble else "whole" if name in catalog.runs else "not finished"
        size = sum(file.stat().st_size for file in files)
        rows.append({"run": name, "files": len(files), "bytes": size, "state": state, "trouble": trouble})
    return pa.Table.from_pylist(rows, schema=_CHECKED)


def _cannot(run: str) -> str:
    return f"The run '{run}' cannot be read: "


@contextmanager
def write_run(store: Path | str, run: Run) -> Iterator["RunWriter"]:
    """Write a run, or go on with it; it is finished at the latest when the block ends without an exception."""
    path = Path(store)
    check_run(path, run.run)
    run = Run.from_json(run.to_json())  # plain values, as they will be read back
    record = _record(path, run.run)
    with _locked(record.parent, run.run):
        run, known = _resumed(path, record, run) if record.exists() else (_started(record, run), ())
        for left_over in path.glob(f"*/run={run.run}/.*.tmp"):
            left_over.unlink()
        writer = RunWriter(path, run, known)
        yield writer
        writer.finish()


def join_run(store: Path | str, name: str) -> "RunWriter":
    """Write parts of a run beside the process that holds it by `write_run`, and finishes it."""
    return RunWriter(Path(store), read_run(_record(Path(store), name)))


def find_run(store: Path | str, name: str) -> Run | None:
    """A run as its ``run.json`` has it, finished or not, or None if there is no such run."""
    record = _record(Path(store), name)
    return read_run(record) if record.exists() else None


def _record(store: Path, name: str) -> Path:
    return store / "runs" / f"run={name}" / "run.json"


def _started(record: Path, run: Run) -> Run:
    run = replace(run, started=_now(), versions=_versions() | dict(run.versions))
    _put(record, run.to_json())
    return run


def _resumed(store: Path, record: Path, run: Run) -> tuple[Run, list[Part]]:
    """The run as it is in the store, if it is of the same call, and its parts; those that are damaged are removed."""
    there = read_run(record)
    if changed := there.differs_from(run):
        raise InputError(
            f"The store '{store}' has a run '{run.run}' of another call already (not the same: "
            f"{', '.join(changed)}); choose another name with --run."
        )
    listed = _listed(there, run.run)
    broken = troubles(store, listed, there.schema_version)
    whole = [part for _, part in listed if store / part.file not in broken]
    if broken:
        there = replace(there, finished=None, parts={})
        _put(record, there.to_json())
    seen = {store / part.file for _, part in listed}
    others = [(table, file) for table in TABLES for file in _files(store, table, run.run) if file not in seen]
    for file, part in inspect(store, others, there.schema_version):
        if part is None:
            broken[file] = ""
        else:
            whole.append(part)
    for file in broken:
        with disk_errors(file):
            file.unlink(missing_ok=True)
    return there, whole


class RunWriter:
    """Writes the parts of one run. Made by `write_run`, which holds the run's lock."""

    def __init__(self, store: Path, run: Run, known: Iterable[Part] = ()) -> None:
        self._store, self.run = store, run
        self._known = {store / part.file: part for part in known}

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do but to add curves."""
        return self.run.finished is not None

    def has(self, table: str, shard: int = 0, tag: str = "") -> bool:
        """Whether this part is there already."""
        return self._path(table, shard, tag).exists()

    def write(self, table: str, rows: pa.Table, shard: int = 0, tag: str = "") -> None:
        """Write a part, unless it is there already. Rows come sorted by their ids."""
        if self.has(table, shard, tag):
            return
        part = self._path(table, shard, tag)
        # a run stays what it was begun as
        self._known[part] = write_part(self._store, part, table, rows, self.run.schema_version)

    def read(self, table: str, columns: list[str], shard: int | None = None) -> pa.Table:
        """Columns of what is there of a table, or of one part."""
        files = self._files(table) if shard is None else self._path(table, shard)
        return pq.read_table(files, columns=columns, partitioning=None)

    def write_wiring(self, wiring: Wiring) -> None:
        """Write `nodes` and `edges`."""
        self.write("nodes", wiring.node_table())
        self.write("edges", wiring.edge_table())

    def finish(self) -> None:
        """Let readers see the run, unless they do already."""
        if not self.finished:
            self._publish(replace(self.run, finished=_now()))

    def add_curves(self, curves: Curves) -> None:
        """Let readers see curves whose parts are there."""
        self._publish(replace(self.run, curves=(*self.run.curves, curves)))

    def drop_curves(self, but: Curves) -> None:
        """Remove parts of curves that were begun and not added, but of these."""
        known = {curves.tag for curves in (*self.run.curves, but)}
        for file in (self._store / "effects" / f"run={self.run.run}").glob("part-*-*.parquet"):
            if _tag(file) not in known:
                file.unlink()

    def _publish(self, run: Run) -> None:
        self.run = run
        self.run = replace(run, parts=self._parts())
        _put(_record(self._store, run.run), self.run.to_json())

    def _parts(self) -> dict[str, tuple[Part, ...]]:
        """All parts of the run, by table."""
        files = [(table, file) for table in TABLES for file in self._files(table)]
        foreign = [(table, file) for table, file in files if file not in self._known]  # of other processes
        for file, part in inspect(self._store, foreign, self.run.schema_version):
            if part is None:
                raise StoreError(
                    f"'{file}' was damaged since it was written; the same command does it again."
                )
            self._known[file] = part
        found: dict[str, list[Part]] = {}
        for table, file in files:
            found.setdefault(table, []).append(self._known[file])
        return {table: tuple(parts) for table, parts in found.items()}

    def _files(self, table: str) -> list[Path]:
        """The parts of a table, less those of curves that are not added yet."""
        tags = {"", *(curves.tag for curves in self.run.curves)}
        return [file for file in _files(self._store, table, self.run.run) if _tag(file) in tags]

    def _path(self, table: str, shard: int, tag: str = "") -> Path:
        name = f"part-{shard:05d}-{tag}" if tag else f"part-{shard:05d}"
        return self._store / table / f"run={self.run.run}" / f"{name}.parquet"


def _files(store: Path, table: str, run: str) -> list[Path]:
    return sorted((store / table / f"run={run}").glob("part-*.parquet"))


def _tag(part: Path) -> str:
    """The tag of the curves that a part is of, if it has one: part-00000-TAG.parquet."""
    return part.stem.removeprefix("part-").partition("-")[2]


def check_run(store: Path | str, name: str) -> None:
    """Refuse a name that cannot be that of a run, and a path that cannot be that of a store."""
    check_path(Path(store))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}", name):
        raise InputError(
            f"'{name}' cannot be the name of a run: use letters, digits and . _ + @ -, starting with a "
            "letter or digit; --run names it."
        )


def check_path(store: Path) -> None:
    """Refuse a path that readers of Parquet would take for a pattern of many."""
    if set(str(store.resolve())) & set("*?["):
        raise InputError(f"The path '{store}' reads as a pattern: choose one without * ? and [ for a store.")


def _listed(run: Run, name: str) -> list[tuple[str, Part]]:
    """The parts that a run lists, with their tables; what is no part of the run of this name is an error."""
    if run.run != name:
        raise StoreError(f"its run.json is that of the run '{run.run}'.")
    listed = [(table, part) for table, parts in run.parts.items() for part in parts]
    for table, part in listed:
        if table not in TABLES or not re.fullmatch(
            rf"{table}/run={re.escape(name)}/part-\d+(-[0-9a-f]+)?\.parquet", part.file
        ):
            raise StoreError(f"its run.json lists '{part.file}', which is no part of its {table}.")
    return listed


def _put(target: Path, text: str) -> None:
    with replacing(target) as file:
        file.write(text.encode())


@contextmanager
def _locked(folder: Path, run: str) -> Iterator[None]:
    """Hold the lock of a run's folder; the system drops it when the process ends, however it ends."""
    import fcntl  # not above: a system without it can still read stores

    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"The run '{run}' is being written by another process.") from error
        except OSError as error:
            raise StoreError(f"The run '{run}' cannot be locked in '{folder}': {error.strerror}.") from error
        yield
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("wirescope", "numpy", "pyarrow")}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
