"""Files of others, read up to a bound."""

import gzip
import os
import threading
from pathlib import Path

import pytest
from wirescope.data import read_bounded
from wirescope.errors import InputError

MOST = 1 << 20


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
@pytest.mark.parametrize("size", [0, 5, MOST])
def test_a_file_within_the_bound_is_read_whole(tmp_path, name, size):
    content = os.urandom(size)
    (tmp_path / name).write_bytes(gzip.compress(content, 0) if name.endswith(".gz") else content)
    if name.endswith(".gz") and size == MOST:  # packed, noise is larger than unpacked
        content = bytes(size)
        (tmp_path / name).write_bytes(gzip.compress(content))
    assert read_bounded(tmp_path / name, MOST) == content


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
def test_a_byte_more_is_refused_with_the_bound(tmp_path, name):
    content = bytes(MOST + 1)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match=f"'{tmp_path}/{name}' has more than 1 MB, the most that is read"):
        read_bounded(tmp_path / name, MOST)


def test_a_file_is_unpacked_no_further_than_the_bound(tmp_path, monkeypatch):
    """A gigabyte in a megabyte, of which no more is unpacked than is needed to refuse it."""
    asked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: asked.append(size) or read(self, size))
    piece = gzip.compress(bytes(1 << 24))
    (tmp_path / "bomb.gz").write_bytes(piece * 64)
    with pytest.raises(InputError, match="more than 1 MB"):
        read_bounded(tmp_path / "bomb.gz", MOST)
    assert asked == [MOST + 1]


def test_a_file_with_holes_is_refused_by_its_size(tmp_path):
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(InputError, match="has more than 1 MB"):
        read_bounded(tmp_path / "holes", MOST)


@pytest.mark.parametrize("pipes", [False, True])
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_a_device_is_not_a_file(device, pipes):
    with pytest.raises(InputError, match=f"'{device}' is not a file, but a pipe or a device"):
        read_bounded(device, MOST, pipes=pipes)


def test_a_pipe_is_read_where_that_is_said_and_no_further_than_the_bound(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file, but a pipe"):
        read_bounded(tmp_path / "pipe", MOST)
    for content, refused in ((b"some words", False), (bytes(MOST + 1), True)):
        writer = threading.Thread(target=_pour, args=(tmp_path / "pipe", content))
        writer.start()
        if refused:
            with pytest.raises(InputError, match="has more than 1 MB"):
                read_bounded(tmp_path / "pipe", MOST, pipes=True)
        else:
            assert read_bounded(tmp_path / "pipe", MOST, pipes=True) == content
        writer.join()


def _pour(pipe: Path, content: bytes) -> None:
    with pipe.open("wb") as file:
        file.write(content)


def test_what_the_system_refuses_stays_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none", MOST)
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path, MOST)
    for content in (b"not gzip", gzip.compress(b"words")[:-4]):
        (tmp_path / "bad.gz").write_bytes(content)
        with pytest.raises(OSError, match=r"ot a gzipped file|cut short"):
            read_bounded(tmp_path / "bad.gz", MOST)


def test_a_machine_that_has_no_room_says_so(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    (tmp_path / "a.gz").write_bytes(gzip.compress(b"words"))
    monkeypatch.setattr(gzip.GzipFile, "read", full)
    with pytest.raises(InputError, match="more than fits into the memory of this machine"):
        read_bounded(tmp_path / "a.gz", MOST)
