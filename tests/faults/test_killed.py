"""Extraction that is killed, at any moment: nothing that was done is lost, and no reader sees half a run."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wirescope.data import read_catalog
from wirescope.errors import InputError
from wirescope.queries import open_store, select

SCORES = 100 * 262
EFFECTS = 100 * 2 * 2 * 3  # at two levels, two sizes, by three rankings
WHOLE = ("nothing", "scores", "scores and curves")


def seen(store: Path) -> str:
    """What a reader sees of the run: one of the three, or anything else."""
    try:
        catalog = read_catalog(store)
    except InputError:  # no store yet, or one without a run
        return "nothing"
    if catalog.broken:
        return str(catalog.broken)
    query = "select (select count(*) from edge_scores) as scores, (select count(*) from effects) as effects"
    (found,) = select(open_store(catalog), query).to_pylist()
    listed = bool(catalog.runs and catalog.run("tiny").curves)
    return {
        (0, 0, False): "nothing",
        (SCORES, 0, False): "scores",
        (SCORES, EFFECTS, True): "scores and curves",
    }.get((found["scores"], found["effects"], listed), f"{found}, curves listed: {listed}")


@contextmanager
def watched(store: Path) -> Iterator[list[str]]:
    """What a reader sees meanwhile, each change of it, who looks as often as he can."""
    views, done = [seen(store)], threading.Event()

    def watch() -> None:
        while not done.is_set():
            if (view := seen(store)) != views[-1]:
                views.append(view)
            time.sleep(0.01)

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        yield views
    finally:
        done.set()
        reader.join()
        views.append(seen(store))


def parts(store: Path) -> int:
    return sum(1 for _ in store.glob("*/run=tiny/part-*.parquet"))


@pytest.mark.slow
def test_killed_at_ten_moments_it_loses_nothing(start, command, undisturbed, same_as, tmp_path):
    """The moments are spread over the whole of it: so many files are there, and some milliseconds more have passed."""
    rng = random.Random(9)
    total, killed, views = parts(undisturbed), 0, set()
    for moment in range(10):
        store = tmp_path / str(moment)
        with watched(store) as seen_here:
            process = start(command(store))
            files = rng.randrange(total * moment // 10, total * (moment + 1) // 10)
            while process.is_alive() and parts(store) < files:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.3 if files == 0 else 0.03))
            process.kill()
            process.join()
            killed += process.exitcode == -signal.SIGKILL
            again = start(command(store))
            again.join()
        assert again.exitcode == 0
        assert same_as(store)
        assert seen_here == sorted(seen_here, key=WHOLE.index)  # nothing else, and never less than before
        views |= set(seen_here)
    assert killed >= 8  # the last may come too late
    assert views == set(WHOLE)


KILL_AT_SECOND_FILE = """
import signal
replace, files = Path.replace, []
def killed(self, target):
    files.append(target)
    if len(files) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = killed
"""


@pytest.mark.slow
def test_killed_after_every_single_file_it_goes_on_each_time(start, command, undisturbed, same_as, tmp_path):
    """Each process finishes one file, and dies with the next one written and not yet in its place."""
    store, views, attempts = tmp_path / "s", [], 0
    while True:
        process = start(command(store), first=KILL_AT_SECOND_FILE)
        process.join()
        views.append(seen(store))
        attempts += 1
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert len(list(store.rglob(".*.tmp"))) == 1
    records = 3  # run.json is written when the run starts, when it is finished, and with the curves
    assert attempts == parts(undisturbed) + records
    assert views == sorted(views, key=WHOLE.index)
    assert set(views) == set(WHOLE)
    assert same_as(store)


def test_a_second_extraction_of_the_run_is_refused_and_the_first_goes_on(start, command, same_as, tmp_path):
    store = tmp_path / "s"
    process = start(command(store))
    while process.is_alive() and not parts(store):
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGSTOP)
    before = parts(store)
    program = Path(sys.executable).parent / "wirescope"
    second = subprocess.run([program, *command(store)], capture_output=True, text=True)
    assert second.returncode == 2
    assert second.stderr == "wirescope: The run 'tiny' is being written by another process.\n"
    assert second.stdout == ""
    assert parts(store) == before
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 0
    assert same_as(store)
