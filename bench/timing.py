"""Measuring, and printing what was measured, for all benchmarks."""

import re
import resource
import time
from collections.abc import Callable
from pathlib import Path


def in_turns(jobs: list[Callable[[], object]], rounds: int) -> list[float]:
    """The best time of each job, the jobs taking turns."""
    best = [float("inf")] * len(jobs)
    for _ in range(rounds):
        for i, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def by_round(jobs: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """The times of each job, round by round, the jobs taking turns: what is in one round can be compared."""
    times = [in_turns(jobs, 1) for _ in range(rounds)]
    return [list(job) for job in zip(*times, strict=True)]


def peak() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_during(job: Callable[[], object]) -> float:
    """How much memory a job takes at its peak, in MB: above what the process has before it, where the system tells."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not (status.exists() and reset.exists()):
        before = peak()
        job()
        return peak() - before

    def kilobytes(key: str) -> int:
        return int(re.search(rf"{key}:\s+(\d+)", status.read_text())[1])

    reset.write_text("5")  # the peak is now what there is
    before = kilobytes("VmRSS")
    job()
    return (kilobytes("VmHWM") - before) / 1024


def heading(text: str) -> None:
    print(f"\n{text}")


def row(name: str, value: str, note: str) -> None:
    print(f"  {name:<28}{value:>12}   {note}")
