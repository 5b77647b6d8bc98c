"""The parts of a store as DuckDB sees them: a file system that can be read, and has no way to be written.

DuckDB is given no folder of the disk. It knows a part by its name in ``run.json`` (``store://edges/run=a/...``), and
whatever it wants of the part it has to ask here, where nothing writes: whatever a query turns out to be, it cannot
change the store. A part may be a link to anywhere (git-annex, DVC, a cache): it is what the catalogue has looked at.
"""

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from ..data import Catalog
from ..errors import StoreError

_SCHEME = "store"


class Parts(AbstractFileSystem):  # type: ignore[misc]  # which has no types
    """The parts of the runs of a catalogue, by name, for reading."""

    protocol = _SCHEME
    cachable = False  # each store has its own

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self._files = {
            part_name(part.file): (catalog.path / part.file, name)
            for name, run in catalog.runs.items()
            for parts in run.parts.values()
            for part in parts
        }

    @property
    def names(self) -> list[str]:
        """What can be opened."""
        return list(self._files)

    def open(self, path: str, mode: str = "rb", **_: Any) -> "_Reader":
        """A part, for reading."""
        if mode != "rb":
            raise PermissionError(f"'{path}' is part of a store, which a query cannot change.")
        file, run = self._file(path)
        try:
            return _Reader(file)
        except OSError as error:
            raise _unreadable(file, run, error) from error

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The size of a part."""
        return {"name": path, "size": self._status(path).st_size, "type": "file"}

    def modified(self, path: str) -> datetime:
        """When a part was last written."""
        return datetime.fromtimestamp(self._status(path).st_mtime, UTC)

    def glob(self, path: str, **_: Any) -> list[str]:
        """A part by its name: nothing is a pattern, whatever a run is called."""
        return [path] if path in self._files else []

    def isfile(self, path: str) -> bool:
        """Whether there is a part of that name."""
        return path in self._files

    def isdir(self, path: str) -> bool:  # noqa: ARG002
        """There are no folders."""
        return False

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is a part of that name."""
        return path in self._files

    def _file(self, path: str) -> tuple[Path, str]:
        if path not in self._files:
            raise FileNotFoundError(f"'{path}' is no part of the store.")
        return self._files[path]

    def _status(self, path: str) -> os.stat_result:
        return check_there(*self._file(path))


class _Reader:
    """An open file, in which every thread is at a place of its own: DuckDB reads with several at once."""

    def __init__(self, file: Path) -> None:
        self._descriptor = -1  # should the next line fail
        self._descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._place, self._lock = threading.local(), threading.Lock()

    def read(self, size: int) -> bytes:
        """So many of the next bytes; fewer at the end."""
        at, read = self.tell(), b""
        # the system may give less than it was asked for, of a large piece or by a network
        while len(read) < size and (piece := self._read(size - len(read), at + len(read))):
            read = read + piece if read else piece
        self._place.at = at + len(read)
        return read

    def seek(self, at: int) -> int:
        """Go to a place, counted from the beginning."""
        self._place.at = at
        return at

    def tell(self) -> int:
        """Where this thread is."""
        return int(getattr(self._place, "at", 0))

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def _read(self, size: int, at: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, at)
        with self._lock:
            os.lseek(self._descriptor, at, os.SEEK_SET)
            return os.read(self._descriptor, size)


def part_name(file: str) -> str:
    """What DuckDB calls a part."""
    return f"{_SCHEME}://{file}"


def check_there(file: Path, run: str) -> os.stat_result:
    """The size and date of a part of a run, which may have gone since the catalogue was read."""
    try:
        return file.stat()
    except OSError as error:
        raise _unreadable(file, run, error) from error


def _unreadable(file: Path, run: str, error: OSError) -> StoreError:
    return StoreError(f"The run '{run}' cannot be read: '{file}': {error.strerror}.")
