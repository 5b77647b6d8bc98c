"""The README is true: its commands run and print what it says they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Where a reader stands after cloning."""
    for name in ("data", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


def test_the_commands_print_what_the_readme_says(folder):
    checked = 0
    for (language, command), (after, expected) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if language == "sh" and "wirescope" in command:
            printed = shell(command.replace("source .venv/bin/activate\n", ""), folder)
            if after == "":
                assert printed == expected
                checked += 1
    assert checked == 10


def test_the_python_prints_what_the_readme_says(folder):
    """Each print is followed by a comment that begins as its output does."""
    shell("wirescope import data/circuits/gpt2-small-ioi.json.gz --store circuits", folder)
    for code in [text for language, text in BLOCKS if language == "python"]:
        script = folder / "readme.py"
        script.write_text(code)
        printed = shell(f"{sys.executable} readme.py 2>/dev/null", folder).splitlines()
        said = re.findall(r"^print\(.*\)\s+# (.*)$", code, flags=re.MULTILINE)
        assert len(said) == len(printed) > 2
        for expected, line in zip(said, printed, strict=True):
            assert expected.startswith(line)


def test_the_picture_is_there():
    for picture in re.findall(r'src="([^"]+)"', README):
        assert (ROOT / picture).is_file()
