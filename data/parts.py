"""Parts: the Parquet files of a run, and whether they are as they were written.

DuckDB verifies no checksum: a bit that flipped on the disk is a wrong number, not an error. So the CRC-32 of a part is
taken from its bytes on their way to the disk and listed in ``run.json``, and readers compare: once, when they first
see the part on this machine, and again when its size, time or inode say that it is another file. What was found whole
is remembered in the user's cache folder, a file a store, which may be deleted at any time.

A part that has no listed checksum, because its run is not finished or of an older version, is verified by those that
Parquet keeps with every page.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, StoreError
from .files import disk_errors, make_folder, replacing
from .layout import Piece
from .run import Part
from .schema import CHECKSUMS, encodings, schema_of

ROW_GROUP = 1 << 18
_CHUNK = 1 << 20


def write_part(store: Path, file: Path, table: str, rows: pa.Table, version: int) -> Part:
    """Write rows of a table as a part of a store, as a version of the schema has it."""
    schema = schema_of(table, version)
    encoded = encodings(schema)
    others = [name for name in schema.names if name not in encoded]
    with disk_errors(file):
        make_folder(file.parent)
    with replacing(file, follow=False) as out:  # what a link points to may be another's
        summed = _Summed(out)
        pq.write_table(
            rows.select(schema.names).cast(schema),
            summed,
            row_group_size=ROW_GROUP,
            compression="zstd",
            use_dictionary=others or False,
            column_encoding=encoded,
            write_page_checksum=True,
            store_schema=False,
        )
    return _part(store, file, rows.num_rows, summed.size, summed.crc32, version)


def troubles(store: Path, parts: Iterable[tuple[str, Part]], version: int) -> dict[Path, str]:
    """Read parts of tables from end to end: those that are not as they are listed, and in what way."""
    listed = [(store / part.file, table, part) for table, part in parts]
    with ThreadPoolExecutor() as pool:  # reading and summing leave the interpreter free
        found = list(pool.map(lambda one: _trouble(one[0], one[1], one[2], version), listed))
    return {file: trouble for (file, *_), trouble in zip(listed, found, strict=True) if trouble}


def inspect(store: Path, wanted: Iterable[Piece], version: int) -> Iterator[tuple[Path, Part | None]]:
    """Files as parts to list, or None where one is damaged, by the checksums that it has in itself, or another's."""
    there = [(store / piece.file, piece) for piece in wanted]
    with ThreadPoolExecutor() as pool:
        parts = pool.map(lambda one: _inspected(store, one[0], one[1], version), there)
        yield from zip((file for file, _ in there), parts, strict=True)


class Memory:
    """Which parts of a store this user has found whole on this machine, from one call to the next."""

    def __init__(self, store: Path, *, again: bool = False) -> None:
        self._store, self._file = store, _remembering(store)
        self._before: dict[str, Any] = {} if again else _read(self._file)
        self._now: dict[str, Any] = {}
        self._new: dict[str, Any] = {}

    def has(self, part: Part) -> bool:
        """Whether the part was found whole, and is still the same file."""
        looks = _looks(self._store, part)
        known = looks is not None and self._before.get(part.file) == looks
        (self._now if known else self._new)[part.file] = looks
        return known

    def add(self, part: Part) -> None:
        """Remember a part that was found whole after `has` did not know it; as it looked then, before it was read."""
        self._now[part.file] = self._new[part.file]

    def keep(self) -> None:
        """Write down what is new; where that cannot be done, parts are read again next time, and that is all."""
        if self._file is not None and self._now != self._before:
            with suppress(OSError, InputError, StoreError):
                make_folder(self._file.parent)
                with replacing(self._file) as file:
                    file.write(json.dumps(self._now).encode())


def _looks(store: Path, part: Part) -> list[Any] | None:
    """What tells a part from another of its name, without reading it."""
    try:
        status = (store / part.file).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino, part.crc32]


def cache_folder() -> Path | None:
    """Where this user's programs keep what they can do without; None where there is no such place."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "wirescope"
    except RuntimeError:  # a user without a home
        return None


def _remembering(store: Path) -> Path | None:
    """The file that remembers a store."""
    folder, name = cache_folder(), hashlib.sha256(str(store.resolve()).encode()).hexdigest()[:32]
    return folder / f"{name}.json" if folder else None


def _read(file: Path | None) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes()) if file is not None else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _trouble(file: Path, table: str, part: Part, version: int) -> str | None:
    if not file.is_file():
        where = f" a link to '{file.readlink()}', where there is no file" if file.is_symlink() else " missing"
        return f"'{file}' is{where}."
    try:
        size = file.stat().st_size
    except FileNotFoundError:  # just now
        return f"'{file}' is missing."
    if size != part.bytes:
        return f"'{file}' has {size} bytes instead of {part.bytes}: it was cut short or replaced."
    try:
        content = pq.read_metadata(file)
        schema, rows = content.schema.to_arrow_schema(), content.num_rows
    except Exception as error:  # a damaged footer can make it fail in any way
        return f"'{file}' is not a Parquet file ({error})."
    if not schema.equals(schema_of(table, version)):
        return f"'{file}' does not have the columns of {table}: it has {', '.join(schema.names)}."
    if rows != part.rows:
        return f"'{file}' has {rows} rows instead of {part.rows}."
    try:
        if part.crc32 is None:
            _read_pages(file)
        elif (crc32 := _crc32(file)) != part.crc32:
            return f"'{file}' is damaged: its CRC-32 is {crc32} instead of {part.crc32}."
    except Exception as error:
        return f"'{file}' is damaged ({error})."
    return None


def _inspected(store: Path, file: Path, piece: Piece, version: int) -> Part | None:
    try:
        if not pq.read_schema(file).equals(schema_of(piece.table, version)):
            return None
        rows = _read_pages(file)
        if piece.rows not in (None, rows):
            return None
        if piece.prompts is not None:
            ids = pq.read_table(file, columns=["prompt_id"], partitioning=None)["prompt_id"]
            if sorted(ids.unique().to_pylist()) != list(piece.prompts):
                return None
        return _part(store, file, rows, file.stat().st_size, _crc32(file), version)
    except Exception:  # a damaged file can make it fail in any way
        return None


def _part(store: Path, file: Path, rows: int, size: int, crc32: str, version: int) -> Part:
    return Part(file.relative_to(store).as_posix(), rows, size, crc32 if version >= CHECKSUMS else None)


def _read_pages(file: Path) -> int:
    """Read a whole file, with its checksums, and count its rows; a page that is not as it was written is an OSError."""
    with pq.ParquetFile(file, page_checksum_verification=True) as content:
        return sum(content.read_row_group(i).num_rows for i in range(content.num_row_groups))


def _crc32(file: Path) -> str:
    crc32 = 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            crc32 = zlib.crc32(chunk, crc32)
    return f"{crc32:08x}"


class _Summed:
    """A file to write that knows the size and the CRC-32 of what was written."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._crc32, self.size = file, 0, 0

    @property
    def crc32(self) -> str:
        return f"{self._crc32:08x}"

    def write(self, content: bytes) -> int:
        self._crc32 = zlib.crc32(content, self._crc32)
        self.size += len(content)
        return self._file.write(content)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()
