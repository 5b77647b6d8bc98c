"""Files and folders that are there whole or not at all, also after a power cut, and files of others, up to a bound.

A new file is flushed to the disk, renamed, and then its folder is flushed: a rename that is not may be undone when
the power goes. A new folder is an entry of the one above it, which is flushed likewise. What is under way has a hidden
name that ends in ``.tmp`` and is removed whatever happens, by the process itself or else by the next call.
"""

import atexit
import errno
import glob
import gzip
import io
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..errors import InputError, StoreError

_NOT_ALLOWED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
_CANNOT_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EISDIR)
"""Of a folder: it may be written to and not read, or its file system knows no such thing."""
_under_way: dict[Path, int] = {}
"""Temporary files and folders, and the process that writes them."""


def read_bounded(file: Path | str, most: int, *, pipes: bool = False) -> bytes:
    """The content of a file of at most so many bytes, unpacked where its name ends in ``.gz``, no further than that.

    What has more is refused, before it is read where its size is known. So is what is no file, such as a device;
    with `pipes`, what comes through a pipe is read as well. What the system refuses is an OSError, as ever.
    """
    path = Path(file)
    kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(kind) or (pipes and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)))):
        raise InputError(f"'{file}' is not a file, but a pipe or a device: give the name of a file.")
    too_large = InputError(
        f"'{file}' has more than {most >> 20:,} MB, the most that is read: is it the right file?"
    )
    try:
        with path.open("rb") as raw:
            if os.fstat(raw.fileno()).st_size > most:
                raise too_large
            content: IO[bytes] = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[assignment]
            read = content.read(most + 1)
    except (EOFError, zlib.error) as error:
        raise OSError(f"it is not gzip, or cut short ({error})") from error
    except MemoryError as error:
        raise InputError(f"'{file}' is more than fits into the memory of this machine.") from error
    if len(read) > most:
        raise too_large
    return read


def read_bounded_text(file: Path | str, most: int) -> str:
    """The text of a file or pipe of at most so many bytes, every end of a line as a newline."""
    return io.TextIOWrapper(io.BytesIO(read_bounded(file, most, pipes=True)), encoding="utf-8").read()


@contextmanager
def replacing(target: Path, *, follow: bool = True) -> Iterator[IO[bytes]]:
    """A file to write that takes the target's place when the block ends without an exception.

    It is written beside the target under a hidden name that ends in ``.tmp``. Where the target is a link, what it
    points to is replaced or, if it is not to be followed, the link itself; what is no file at all, such as a pipe or a
    device, is written to.
    """
    with disk_errors(target):
        if not target.name or target.is_dir():
            raise InputError(f"Cannot write '{target}': it is a folder; give the name of a file.")
        odd = target.exists() and not target.is_file()
        target = resolved(target) if follow and not odd else target
    if odd:
        with disk_errors(target), target.open("wb") as file:
            yield file
        return
    with _temporary(target) as temporary:
        with disk_errors(target), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with disk_errors(target):
            temporary.replace(target)
            sync_folder(target.parent)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes the target, which must not be there, when the block ends without an exception."""
    with disk_errors(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(f"'{target}' is there already and not an empty folder: choose another --out.")
    for left_over in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):  # of a call that was killed
        if is_temporary(left_over, re.escape(target.name)):
            shutil.rmtree(left_over, ignore_errors=True)
    with disk_errors(target), _temporary(target) as temporary:
        make_folder(temporary)
        yield temporary
        settle_folder(temporary, target)


def settle_folder(folder: Path, target: Path) -> None:
    """Give a folder that is filled its place: all that is in it is flushed to the disk before, the place after."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync_folder(path) if path.is_dir() else _sync(path)
    sync_folder(folder)
    folder.replace(target)
    sync_folder(target.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are not there, so that they stay."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync_folder(folder: Path) -> None:
    """Flush to the disk which files a folder has, where that can be done."""
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def is_temporary(path: Path, name: str) -> bool:
    """Whether this is what is left of writing a file or folder whose name matches a pattern."""
    return re.fullmatch(rf"\.({name})\.\d+\.tmp", path.name) is not None


def resolved(path: Path) -> Path:
    """Where a path leads; a link that leads to itself is an OSError, as it is for the system."""
    try:
        return path.resolve()
    except RuntimeError as error:  # up to Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """What the disk refuses, as one sentence: a place that cannot be written to, or a failure."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            raise InputError(f"Cannot write '{path}': {error.strerror}.") from error
        raise StoreError(f"Writing '{path}' failed: {error.strerror or error}.") from error


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A name beside the target that is nobody's afterwards, and not if the process is stopped either."""
    path = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    _under_way[path] = os.getpid()
    try:
        yield path
    finally:
        _remove(path)
        _under_way.pop(path, None)


@atexit.register
def _remove_all() -> None:
    """Remove what is under way: the process ends in the middle of it."""
    for path, process in list(_under_way.items()):
        if process == os.getpid():  # not in a fork of it
            _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
