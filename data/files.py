"""Files and folders that are there whole or not at all."""

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..graphs import InputError, StoreError

_NOT_ALLOWED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
)


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the target's place when the block ends without an exception.

    It is written beside the target under a hidden name that ends in ``.tmp``. Where the target is a link,
    what it points to is replaced; what is no file at all, such as a pipe or a device, is written to.
    """
    if not target.name or target.is_dir():
        raise InputError(f"Cannot write '{target}': it is a folder; give the name of a file.")
    if target.exists() and not target.is_file():
        with disk_errors(target), target.open("wb") as file:
            yield file
        return
    target = target.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with disk_errors(target), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with disk_errors(target):
            temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes the target, which must not be there, when the block ends without an exception."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"'{target}' is there already and not an empty folder: choose another --out.")
    for left_over in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):  # of a call that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with disk_errors(target):
            temporary.mkdir(parents=True)
            yield temporary
            temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """What the disk refuses, as one sentence: a place that cannot be written to, or a failure."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            raise InputError(f"Cannot write '{path}': {error.strerror}.") from error
        raise StoreError(f"Writing '{path}' failed: {error.strerror or error}.") from error
