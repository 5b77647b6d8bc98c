"""The example for Slurm, run on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from wirescope.extract import Settings, extract

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm.py"


def parts(store) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in sorted(store.rglob("*.parquet"))}


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_jobs_of_two_processes_write_what_plain_calls_do(tmp_path, one_thread):
    pytest.importorskip("submitit")
    tasks = ("ioi", "greater-than")
    job = ("--cluster", "local", "--devices", "2", "--logs", tmp_path / "logs")
    call = (
        "--model",
        "tiny",
        "--task",
        *tasks,
        "--store",
        tmp_path / "jobs",
        "--limit",
        "40",
        "--level",
        "head",
    )
    jobs = subprocess.run(
        [sys.executable, EXAMPLE, *job, *call],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    said = [line.split(": ")[1] for line in jobs.stdout.splitlines()]
    assert said == ["tiny-ioi, by 2 processes", "tiny-greater-than, by 2 processes"]
    for task in tasks:
        extract(
            model="tiny", task=task, store=tmp_path / "plain", limit=40, settings=Settings(levels=("head",))
        )
    assert len(parts(tmp_path / "plain")) > 8
    assert parts(tmp_path / "jobs") == parts(tmp_path / "plain")
