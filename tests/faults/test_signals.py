"""Commands that are told to stop, at any moment: one sentence, 130 or 143, nothing left behind, and no traceback."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "wirescope"
COMMANDS = {
    "extract": "extract --model tiny --task ioi --limit 40 --level edge --level head --store {out}/s",
    "sql": "sql --store {store} 'select count(*) from range(100000000000) a(i) where i % 7 = 3'",
    "diagram": "diagram --store {store} --runs sparse-ioi dense-ioi --k 40 --out {out}/d.pdf",
    "sparsify": "sparsify --model tiny --task ioi --steps 50 --evaluate-every 5 --out {out}/twin",
}


def is_ours(process: subprocess.Popen[str]) -> bool:
    """Whether the program has its handlers by now: SIGTERM is caught, which Python by itself never does."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def begin(words: list[str], out: Path) -> subprocess.Popen[str]:
    (out / "tmp").mkdir(parents=True)
    places = {"TMPDIR": str(out / "tmp"), "XDG_CACHE_HOME": str(out / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(PROGRAM), *words],
        env=os.environ | places,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def words_of(command: str, out: Path, store: Path) -> list[str]:
    import shlex

    return [word.format(out=out, store=store) for word in shlex.split(COMMANDS[command])]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_stops_a_command_at_any_moment(command, toy, tmp_path):
    """Also many of them, of both kinds, close together; the moments are seeded, two of five in the first 300 ms.

    Of signals that wait together, the kernel hands over the one with the lower number first, not the one that was
    sent first: the status is that of one which was sent.
    """
    rng = random.Random(command)
    stopped = 0
    for i, latest in enumerate((0.3, 0.3, 1.0, 3.0, 6.0)):
        out = tmp_path / str(i)
        process = begin(words_of(command, out, toy.path), out)
        time.sleep(rng.uniform(0.02, latest))
        ours = is_ours(process)
        sent = [rng.choice((signal.SIGINT, signal.SIGTERM)) for _ in range(1 + rng.randrange(4))]
        for number in sent:
            process.send_signal(number)
            time.sleep(rng.uniform(0, 0.02))
        _, said = process.communicate(timeout=20)
        if process.returncode == 0:  # it was done
            continue
        stopped += 1
        if not ours and (process.returncode < 0 or "Traceback" in said):  # Python was on its way to us
            continue
        assert process.returncode in {128 + number for number in sent}, said
        assert said.splitlines()[-1].startswith("Stopped. ")
        assert said.count("Stopped. ") == 1
        left = [path.name for path in (out / "tmp").iterdir()]
        assert [name for name in left if not name.startswith("torchinductor")] == []  # that is torch's own
        assert not list(out.rglob(".*.tmp"))
    assert stopped >= 2


def test_a_call_that_does_not_return_is_ended_all_the_same(tmp_path):
    """The main thread is in C, and Python's own handlers wait for it; another signal changes nothing."""
    script = (
        "import ctypes, sys; from wirescope.cli import main, stopping; stopping.stop_on_signals(); "
        "print('ready', flush=True); ctypes.CDLL(None).sleep(60); ctypes.CDLL(None).sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - started < 20
    assert process.returncode == 143
    assert said == "Stopped. No file is half-written.\n"


def test_what_is_being_written_is_removed_when_the_process_is_stopped(tmp_path):
    script = f"""
import time
from pathlib import Path
from wirescope.cli import stopping
from wirescope.data import new_folder, replacing
stopping.stop_on_signals()
with replacing(Path({str(tmp_path)!r}) / "file") as file, new_folder(Path({str(tmp_path)!r}) / "folder") as folder:
    file.write(b"half")
    (folder / "x").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_what_is_ignored_stays_so():
    """As under nohup, or what a shell script starts behind it."""
    script = (
        "import signal; from wirescope.cli import stopping; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "stopping.stop_on_signals(); import os; os.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(0.5)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0
