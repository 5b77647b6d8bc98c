"""Real processes to kill and to starve, and places that are full or cannot be written to.

A process is forked from a server that has imported torch already: it is there in no time, so that a test can afford
many. What it runs is the command, as it would be from a shell.
"""

import json
import multiprocessing
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

TINY = Path(__file__).parents[1] / "extract" / "tiny-gpt2"
PROMPTS = 100
"""In shards of 32."""

Start = Callable[..., ForkServerProcess]


@pytest.fixture(scope="session")
def prompts(tmp_path_factory) -> Path:
    """Random pairs for the tiny model, as token ids."""
    rng = random.Random(4)
    pairs = []
    for _ in range(PROMPTS):
        clean = [rng.randrange(97) for _ in range(rng.randint(5, 9))]
        corrupted = [token if rng.random() < 0.5 else rng.randrange(97) for token in clean]
        correct, wrong = rng.sample(range(97), 2)
        answers = {"correct_ids": [correct], "wrong_ids": [wrong]}
        pairs.append({"clean_ids": clean, "corrupted_ids": corrupted} | answers)
    path = tmp_path_factory.mktemp("prompts") / "many.jsonl"
    path.write_text("\n".join(map(json.dumps, pairs)))
    return path


@pytest.fixture(scope="session")
def command(prompts) -> Callable[[Path], list[str]]:
    """The extraction that all of these tests are about."""

    def words(store: Path) -> list[str]:
        places = ("--model", TINY / "model", "--prompts", prompts, "--store", store, "--run", "tiny")
        how = (
            "--level",
            "edge",
            "--level",
            "head",
            "--method",
            "eap",
            "--sizes",
            "4,12",
            "--batch-size",
            "8",
        )
        return ["extract", *map(str, places), *how]

    return words


@pytest.fixture(scope="session")
def start(tmp_path_factory) -> Start:
    """Start a command in a process of its own; `first` is what the process does before."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["wirescope.extract", "wirescope.cli.app", "wirescope.cli.extracting"])
    cache = tmp_path_factory.mktemp("home")

    def begin(words: list[str], log: Path | None = None, first: str = "") -> ForkServerProcess:
        script = f"""
import os, sys
for stream in (1, 2):
    os.dup2(os.open({str(log or os.devnull)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
from pathlib import Path
from wirescope.data import parts
parts.cache_folder = lambda: Path({str(cache)!r})
{first}
from wirescope.cli import main
main({words!r})
"""
        process = server.Process(target=exec, args=(script, {}))
        process.start()
        return process

    with pytest.MonkeyPatch.context() as patch:
        # for the server, which starts with the first process: more threads would add in another order
        patch.setenv("OMP_NUM_THREADS", "1")
        warm = begin(["--version"])
        warm.join()
        assert warm.exitcode == 0
    return begin


@pytest.fixture(scope="session")
def undisturbed(start, command, tmp_path_factory) -> Path:
    """The store of an extraction that nothing happened to."""
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    process = start(command(store))
    process.join()
    assert process.exitcode == 0
    return store


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[..., Path]]:
    """Mount a file system in memory, or mount it again with other options; where that is not allowed, skip."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(*options: str) -> Path:
        again = ["remount"] if os.path.ismount(place) else []
        words = ["mount", "-t", "tmpfs", "-o", ",".join([*again, *options]), "wirescope", str(place)]
        try:
            subprocess.run(words, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting is not allowed here")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def contents(store: Path) -> dict[str, object]:
    """Everything in a store, byte for byte, but for the times and versions in run.json."""
    found: dict[str, object] = {}
    for file in sorted(path for path in store.rglob("*") if path.is_file()):
        name = file.relative_to(store).as_posix()
        found[name] = file.read_bytes()
        if file.name == "run.json":
            fate = ("started", "finished", "versions")
            record = json.loads(file.read_text())
            found[name] = {key: value for key, value in record.items() if key not in fate}
    return found


@pytest.fixture(scope="session")
def contents_of() -> Callable[[Path], dict[str, object]]:
    """All that a store has, to compare with another."""
    return contents


@pytest.fixture(scope="session")
def same_as(undisturbed) -> Callable[[Path], bool]:
    """Whether a store is, byte for byte, that of an undisturbed extraction."""
    return lambda store: contents(store) == contents(undisturbed)
