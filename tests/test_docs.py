"""The README and the pages of docs/ are true: their commands run and print what they say, their links lead somewhere.

A block marked ``sh`` is run; the block after it, if it has no mark, is what that printed. The pages run in the folder
in which the tour ended, each in a copy of its own. What is marked ``console`` needs a GPU, a cluster or a model that is
not here, and is not run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tour.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: how each is marked, and its text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[tuple[str, str | None]]:
    """The blocks of a page that are run, each with what it says that they print, if it does."""
    found = blocks(page)
    return [
        (command, found[i + 1][1] if i + 1 < len(found) and found[i + 1][0] == "" else None)
        for i, (mark, command) in enumerate(found)
        if mark == "sh"
    ]


def shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def run(page: Path, folder: Path) -> int:
    """Run the commands of a page, and compare what they print; how many were compared."""
    compared = 0
    for command, expected in commands(page):
        printed = shell(re.sub(r"^(source|make) .*\n", "", command, flags=re.MULTILINE), folder)
        if expected is not None:
            assert printed == expected, command
            compared += 1
    return compared


@pytest.fixture(scope="module")
def toured(tmp_path_factory) -> tuple[Path, int]:
    """Where a reader stands after the tour, and how much of it was compared."""
    folder = tmp_path_factory.mktemp("tour")
    for name in ("data", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder, run(TOUR, folder)


@pytest.fixture
def folder(toured, tmp_path) -> Path:
    shutil.copytree(toured[0], tmp_path / "here", symlinks=True)
    return tmp_path / "here"


def test_the_tour_prints_what_it_says(toured):
    assert toured[1] == 10


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (TOUR, ROOT / "README.md")], ids=lambda page: page.stem
)
def test_the_commands_of_a_page_print_what_it_says(page, folder):
    run(page, folder)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "smollm2").is_dir(), reason="the model is not there: make smollm2")
def test_the_readme_prints_what_it_says(tmp_path):
    (tmp_path / "smollm2").symlink_to(ROOT / "smollm2")
    assert run(ROOT / "README.md", tmp_path) >= 5


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_the_python_of_a_page_prints_what_it_says(page, folder):
    """Each print is followed by a comment that says what it prints."""
    for code in [text for mark, text in blocks(page) if mark == "python"]:
        (folder / "page.py").write_text(code)
        printed = shell(f"{sys.executable} page.py 2>/dev/null", folder).splitlines()
        said = re.findall(r"^print\(.*\)\s+# (.*)$", code, flags=re.MULTILINE)
        assert len(said) == len(printed) > 0
        for expected, line in zip(said, printed, strict=True):
            assert line == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, target


def test_every_page_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert f"(docs/{page.name})" in text
