"""The store: a folder of runs as Parquet, and the one place that knows its layout.

    STORE/runs/run=RUN/run.json
    STORE/TABLE/run=RUN/part-00000.parquet      one file a shard of prompts
    STORE/effects/run=RUN/part-00000-TAG.parquet   and a set of curves, which has a tag

Writing. A file is written under a temporary name and then renamed, and a run is finished when its
``run.json`` says so, which happens last: whatever dies in between leaves a run that readers skip. The same
call made again goes on with it: parts that are there are not written again. A lock on the run's folder
keeps a second writer out and goes away with the process that held it. Different runs share no file. Curves are
added to a finished run: their parts are not listed, and so not read, before the last of them is there.
Only files that have the name, the prompts and the rows of a part of the run are taken for one, and only what has the
name of a part is ever removed. A part may be a link to a file elsewhere: it is read there, and never written to.

Reading. `read_catalog` looks at every ``run.json`` and at every part that it lists, and sorts the runs into
those that can be read, those that are not finished and those that are broken, with the file that is to
blame. A part is read from end to end when it is first seen, and then taken for what it was. Data is for
DuckDB, or whatever else reads Parquet.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, StoreError, did_you_mean
from ..graphs import Wiring
from .files import disk_errors, is_temporary, make_folder, replacing, resolved
from .layout import PART, Piece, check_rows, part_name, pieces, pieces_of_curves, tag_of
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
    check_path(path)
    if not path.is_dir():
        raise InputError(
            f"There is no store at '{store}'; make one with 'wirescope extract' or 'wirescope import'."
        )
    runs, unfinished, broken = {}, [], {}
    memory = Memory(path, again=again)
    for folder in _run_folders(path):
        name = folder.name.removeprefix("run=")
        try:
            name = _utf8(name)
            record = folder / "run.json"
            run = read_run(record) if _is_there(record) else None
            if run is None or run.finished is None:
                unfinished.append(name)
                continue
            listed = _listed(run, name)
            check_rows(run)
            new = [(table, part) for table, part in listed if not memory.has(part)]
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
        except UnicodeEncodeError:
            name = os.fsencode(name).decode(errors="backslashreplace")
            broken[name] = f"{_cannot(name)}its name is not UTF-8; rename its folders."
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
        size = sum(map(_size, files))
        rows.append({"run": name, "files": len(files), "bytes": size, "state": state, "trouble": trouble})
    return pa.Table.from_pylist(rows, schema=_CHECKED)


def repair_command(store: Path | str, name: str) -> str | None:
    """The command that does again what is damaged of a run, and only that; None where its ``run.json`` cannot tell."""
    try:
        run = find_run(store, name)
    except (StoreError, OSError):
        return None
    if run is None or run.run != name:
        return None
    words = run.command(store)
    return shlex.join(words if run.source is not None else [*words, "--no-curves"])


def _run_folders(store: Path) -> list[Path]:
    """The folders of all runs; that they cannot be listed is an error, not a store without runs."""
    try:
        folders = sorted((store / "runs").iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(
            f"The store '{store}' cannot be read: '{error.filename}': {error.strerror}."
        ) from error
    return [folder for folder in folders if folder.name.startswith("run=")]


def _size(file: Path) -> int:
    """How many bytes a file has; none if it is a link to nowhere, or was removed just now."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


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
        run, known = _resumed(path, record, run) if _is_there(record) else (_started(record, run), ())
        for left_over in path.glob(f"*/run={run.run}/.*.tmp"):
            if is_temporary(left_over, rf"{PART}|run\.json"):
                _remove(left_over)
        writer = RunWriter(path, run, known)
        yield writer
        writer.finish()


def join_run(store: Path | str, name: str) -> "RunWriter":
    """Write parts of a run beside the process that holds it by `write_run`, and finishes it."""
    return RunWriter(Path(store), read_run(_record(Path(store), name)))


def find_run(store: Path | str, name: str) -> Run | None:
    """A run as its ``run.json`` has it, finished or not, or None if there is no such run."""
    record = _record(Path(store), name)
    return read_run(record) if _is_there(record) else None


def _is_there(record: Path) -> bool:
    """Whether there is a ``run.json``, if only a link to one that cannot be had here."""
    return record.exists() or record.is_symlink()


def _record(store: Path, name: str) -> Path:
    return store / "runs" / f"run={name}" / "run.json"


def _started(record: Path, run: Run) -> Run:
    run = replace(run, started=_now(), versions=_versions() | dict(run.versions))
    _put(record, run.to_json())
    return run


def _resumed(store: Path, record: Path, run: Run) -> tuple[Run, list[Part]]:
    """The run as it is in the store, if it is of the same call, and its parts; those that are damaged are removed."""
    there = read_run(record)
    listed = _listed(there, run.run)
    changed = there.differs_from(run)
    if there.shard_size is None and not _fit(run, listed):
        changed.append("shard_size")
    if changed:
        raise InputError(
            f"The store '{store}' has a run '{run.run}' of another call already (not the same: "
            f"{', '.join(changed)}); choose another name with --run."
        )
    there = replace(there, file=run.file, limit=run.limit, shard_size=there.shard_size or run.shard_size)
    broken = set(troubles(store, listed, there.schema_version))
    whole = [part for _, part in listed if store / part.file not in broken]
    if broken or (there.finished and _lacks(there)):
        there = replace(there, finished=None, parts={})
        _put(record, there.to_json())
    seen = {part.file for _, part in listed}
    others = [piece for piece in _present(store, there) if piece.file not in seen]
    for file, part in inspect(store, others, there.schema_version):
        if part is None:
            broken.add(file)
        else:
            whole.append(part)
    for file in broken:
        _remove(file)
    return there, whole


def _fit(run: Run, listed: list[tuple[str, Part]]) -> bool:
    """Whether parts that are listed are of the shards of a call, as far as their rows tell."""
    if run.shard_size is None:
        return True
    rows = {piece.file: piece.rows for piece in pieces(run)}
    return all(rows.get(part.file) in (None, part.rows) for table, part in listed if table == "prompts")


def _lacks(run: Run) -> bool:
    """Whether a finished run does not list all that it must have."""
    try:
        check_rows(run)
    except StoreError:
        return True
    return False


def _present(store: Path, run: Run) -> list[Piece]:
    """The parts of a run that are there, listed or not; where its shards are not known, all that have a part's name."""
    if run.shard_size is not None:
        return [piece for piece in pieces(run) if (store / piece.file).exists()]
    tags = {"", *(curves.tag for curves in run.curves)}
    return [
        Piece(table, file.relative_to(store).as_posix())
        for table in TABLES
        for file in _files(store, table, run.run)
        if tag_of(file.name) in tags
    ]


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
        there = [
            self._store / piece.file for piece in _present(self._store, self.run) if piece.table == table
        ]
        try:
            return pq.read_table(
                there if shard is None else self._path(table, shard), columns=columns, partitioning=None
            )
        except (OSError, pa.ArrowException) as error:
            raise self._gone(self._path(table, shard or 0)) from error

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
        """Remove parts of curves that were begun and not added, but of these, and of these what is damaged."""
        known = {"", *(curves.tag for curves in (*self.run.curves, but))}
        for file in _files(self._store, "effects", self.run.run):
            if tag_of(file.name) not in known:
                _remove(file)
        if self.run.shard_size is not None:
            begun = [p for p in pieces_of_curves(self.run, but) if (self._store / p.file).exists()]
            for file, part in inspect(self._store, begun, self.run.schema_version):
                if part is None:
                    _remove(file)
                else:
                    self._known[file] = part

    def _publish(self, run: Run) -> None:
        self.run = replace(run, parts=self._parts(run))
        _put(_record(self._store, run.run), self.run.to_json())

    def _parts(self, run: Run) -> dict[str, tuple[Part, ...]]:
        """All parts of the run, by table."""
        there = _present(self._store, run)
        if run.shard_size is not None:
            here = {piece.file for piece in there}
            for piece in pieces(run):
                if piece.file not in here:
                    raise self._gone(self._store / piece.file)
        foreign = [
            piece for piece in there if self._store / piece.file not in self._known
        ]  # of other processes
        for file, part in inspect(self._store, foreign, run.schema_version):
            if part is None:
                raise self._gone(file)
            self._known[file] = part
        found: dict[str, list[Part]] = {}
        for piece in sorted(there, key=lambda piece: (list(TABLES).index(piece.table), piece.file)):
            found.setdefault(piece.table, []).append(self._known[self._store / piece.file])
        return {table: tuple(parts) for table, parts in found.items()}

    def _gone(self, file: Path) -> StoreError:
        return StoreError(
            f"'{file}' was removed or damaged since it was written; the same command does it again."
        )

    def _path(self, table: str, shard: int, tag: str = "") -> Path:
        return self._store / table / f"run={self.run.run}" / part_name(shard, tag)


def _files(store: Path, table: str, run: str) -> list[Path]:
    """What has the name of a part, in the folder of a run."""
    files = sorted((store / table / f"run={run}").glob("part-*.parquet"))
    return [file for file in files if tag_of(file.name) is not None]


def _remove(file: Path) -> None:
    with disk_errors(file):
        file.unlink(missing_ok=True)


def check_run(store: Path | str, name: str) -> None:
    """Refuse a name that cannot be that of a run, and a path that cannot be that of a store."""
    check_path(Path(store))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}", name):
        raise InputError(
            f"'{name}' cannot be the name of a run: use letters, digits and . _ + @ -, starting with a "
            "letter or digit; --run names it."
        )


def check_path(store: Path) -> None:
    """Refuse a path that readers of Parquet cannot take, or would take for a pattern of many."""
    try:
        place = _utf8(str(resolved(store)))
        store.exists()  # such as a name that is too long
    except UnicodeEncodeError as error:
        shown = os.fsencode(store).decode(errors="backslashreplace")
        raise InputError(f"The path '{shown}' is not UTF-8: choose another for a store.") from error
    except OSError as error:
        raise InputError(f"There can be no store at '{store}': {error.strerror}.") from error
    if set(place) & set("*?["):
        raise InputError(f"The path '{store}' reads as a pattern: choose one without * ? and [ for a store.")


def _utf8(text: str) -> str:
    """The text, if it can be written as UTF-8."""
    text.encode()
    return text


def _listed(run: Run, name: str) -> list[tuple[str, Part]]:
    """The parts that a run lists, with their tables; what is no part of the run of this name is an error."""
    if run.run != name:
        raise StoreError(f"its run.json is that of the run '{run.run}'.")
    listed = [(table, part) for table, parts in run.parts.items() for part in parts]
    for table, part in listed:
        if table not in TABLES or not re.fullmatch(rf"{table}/run={re.escape(name)}/{PART}", part.file):
            raise StoreError(f"its run.json lists '{part.file}', which is no part of its {table}.")
    if len({part.file for _, part in listed}) < len(listed):
        raise StoreError("its run.json lists a part twice.")
    return listed


def _put(target: Path, text: str) -> None:
    with replacing(target, follow=False) as file:
        file.write(text.encode())


@contextmanager
def _locked(folder: Path, run: str) -> Iterator[None]:
    """Hold the lock of a run's folder; the system drops it when the process ends, however it ends."""
    import fcntl  # not above: a system without it can still read stores

    with disk_errors(folder):
        make_folder(folder)
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
