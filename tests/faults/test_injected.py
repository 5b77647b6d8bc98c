"""Every single write, fsync, rename and mkdir of a run fails once: a sentence, nothing half-done, and it goes on."""

import errno
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from wirescope.data import read_catalog
from wirescope.errors import InputError
from wirescope.extract.models import load_model

TINY = Path(__file__).parents[1] / "extract" / "tiny-gpt2"


class Fault:
    """Counts what is done below a folder, and lets the one of a number fail."""

    def __init__(self, below: Path, number: int | None = None, code: int = errno.EIO) -> None:
        self.below, self.number, self.code, self.done = str(below), number, code, []

    def passes(self, what: str, path: object) -> None:
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        if not str(path).startswith(self.below):
            return
        self.done.append((what, Path(str(path)).name))
        if len(self.done) == self.number:
            raise OSError(self.code, os.strerror(self.code), str(path))


@contextmanager
def failing(fault: Fault) -> Iterator[None]:
    """Have the calls of the system that change a disk pass by the fault first."""

    class Counted(io.FileIO):
        def write(self, content):
            fault.passes("write", self.fileno())
            return super().write(content)

    opened = io.open

    def open_counted(file, mode="r", *rest, **options):
        if mode != "wb" or isinstance(file, int):
            return opened(file, mode, *rest, **options)
        fault.passes("create", file)
        return io.BufferedWriter(Counted(file, "w"), 4096)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "mkdir"):
            real = getattr(os, name)
            patch.setattr(
                os,
                name,
                lambda path, *a, _n=name, _r=real, **o: (fault.passes(_n, path), _r(path, *a, **o))[1],
            )
        patch.setattr(io, "open", open_counted)
        yield


@pytest.fixture
def prompts(tmp_path) -> Path:
    file = tmp_path / "few.jsonl"
    lines = (TINY / "prompts.jsonl").read_text().splitlines()[:2]
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def commands(prompts, monkeypatch, tmp_path) -> dict[str, list[object]]:
    loaded = cache(lambda name: load_model(name, device=torch.device("cpu")))  # once for all
    monkeypatch.setattr("wirescope.extract.extraction.load_model", lambda name, **_: loaded(name))
    monkeypatch.setattr("wirescope.cli.extracting._say_reach", lambda *_: None)
    circuit = tmp_path / "circuit.json"
    circuit.write_text(json.dumps({"A0.0->MLP 0": 0.5, "MLP 0->Resid End": 1}))
    extract = ["extract", "--model", TINY / "model", "--prompts", prompts, "--run", "r", "--method", "eap"]
    return {
        "extract": [*extract, "--device", "cpu", "--sizes", "4"],
        "import": ["import", circuit, "--run", "r", "--layers", "1", "--heads", "1"],
    }


def seen(store: Path) -> str:
    """What a reader sees: nothing, or a whole run."""
    try:
        catalog = read_catalog(store)
    except InputError:
        return "nothing"
    assert not catalog.broken
    return f"whole, {len(catalog.run('r').curves)} curves" if catalog.runs else "nothing"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["extract", "import"])
def test_whatever_fails_and_whenever_nothing_is_half_done_and_it_goes_on(
    cli, commands, contents_of, tmp_path, request, command
):
    words, threads = commands[command], torch.get_num_threads()
    torch.set_num_threads(1)  # for so little work, more of them only wait for each other
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    calm = Fault(tmp_path / "calm")
    with failing(calm):
        assert cli(*words, "--store", tmp_path / "calm").status == 0
    calm_contents = contents_of(tmp_path / "calm")
    kinds = {what for what, _ in calm.done}
    assert kinds == {"create", "write", "fsync", "replace", "mkdir"}
    assert len(calm.done) > 30
    ends = ["nothing", *(f"whole, {n} curves" for n in range(2))]
    views = []
    for number in range(1, len(calm.done) + 1):
        store = tmp_path / "s"
        fault = Fault(store, number, errno.ENOSPC if number % 2 else errno.EIO)
        with failing(fault):
            result = cli(*words, "--store", store)
        what = f"{number}: {calm.done[number - 1]}: {result.err}"
        assert result.status in (1, 2), what
        assert "Traceback" not in result.err, what
        assert result.err.splitlines()[-1].startswith("wirescope: "), what
        assert os.strerror(fault.code) in result.err.splitlines()[-1], what
        assert not list(store.rglob(".*.tmp")), what
        views.append(seen(store))
        again = cli(*words, "--store", store)
        assert again.status == 0, what + again.err
        assert contents_of(store) == calm_contents, what
        shutil.rmtree(store)
    assert views == sorted(views, key=ends.index)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_is_flushed_then_renamed_and_then_its_folder_flushed(kind, tmp_path):
    from wirescope.data import new_folder, replacing

    fault = Fault(tmp_path)
    with failing(fault):
        if kind == "file":
            with replacing(tmp_path / "x") as file:
                file.write(b"a")
        else:
            with new_folder(tmp_path / "a" / "x") as folder:
                (folder / "f").write_bytes(b"a")
    mine = f".x.{os.getpid()}.tmp"
    whole = tmp_path.name
    expected = {
        "file": [("create", mine), ("write", mine), ("fsync", mine), ("replace", mine), ("fsync", whole)],
        "folder": [
            ("mkdir", "a"),
            ("fsync", whole),
            ("mkdir", mine),
            ("fsync", "a"),
            ("create", "f"),
            ("write", "f"),
            ("fsync", "f"),
            ("fsync", mine),
            ("replace", mine),
            ("fsync", "a"),
        ],
    }[kind]
    assert fault.done == expected


def test_every_file_and_folder_of_a_store_is_flushed_and_so_is_where_it_is(cli, commands, tmp_path):
    """After the last change of a folder comes an fsync of it."""
    store, order = tmp_path / "s", Fault(tmp_path)
    paths: list[tuple[str, str]] = []
    real = order.passes

    def noted(what: str, path: object) -> None:
        where = str(Path(f"/proc/self/fd/{path}").readlink()) if isinstance(path, int) else str(path)
        paths.append((what, where))
        real(what, path)

    order.passes = noted
    with failing(order):
        assert cli(*commands["extract"], "--store", store).status == 0
    for path in store.rglob("*"):
        changes = [
            i
            for i, (what, where) in enumerate(paths)
            if Path(where).parent == path.parent and what != "fsync"
        ]
        last = max(changes)
        assert ("fsync", str(path.parent)) in paths[last:], path
    assert json.loads((store / "runs/run=r/run.json").read_text())["finished"]


def test_a_fault_that_is_armed_is_felt(tmp_path):
    for act in (lambda: (tmp_path / "x").open("wb"), lambda: (tmp_path / "d").mkdir()):
        with failing(Fault(tmp_path, 1)), pytest.raises(OSError, match="Input/output"):
            act()
