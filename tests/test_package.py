"""The package as it is built and imported."""

import doctest
import importlib
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wirescope.data import EMBEDDED

ROOT = Path(__file__).parents[1]
FOLDERS = ("errors", "extract", "graphs", "queries", "viz", "data", "cli")
TORCH_FREE = ("errors", "graphs", "queries", "viz", "data")


def modules(folder: str) -> list[str]:
    package = importlib.import_module(f"wirescope.{folder}")
    names = [f"wirescope.{folder}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return [package.__name__, *(name for name in names if not name.endswith("__main__"))]


def python(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_wheel_holds_the_tree_and_nothing_else(tmp_path):
    tree = tmp_path / "tree"
    left_out = shutil.ignore_patterns(
        ".*", "build", "dist", "demo", "pairs", "*.egg-info", "__pycache__", "tests"
    )
    shutil.copytree(ROOT, tree, ignore=left_out)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("wirescope-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            name.removeprefix("wirescope/"): archive.read(name)
            for name in archive.namelist()
            if ".dist-info/" not in name
        }
        assert all(name.startswith("wirescope/") for name in archive.namelist() if ".dist-info/" not in name)
    files = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed.keys() == files.keys()
    assert packed == files


def test_help_imports_nothing_slow():
    script = """
import sys
sys.argv = ["wirescope", "--help"]
from wirescope.cli import main
try:
    main()
except SystemExit as exit_:
    assert exit_.code == 0
slow = {"torch", "transformers", "duckdb", "matplotlib", "igraph", "networkx", "numpy", "pyarrow"}
print("loaded:", sorted(slow & set(sys.modules)))
"""
    assert python(script).splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_the_torch_free_folders_import_without_torch(folder):
    names = modules(folder)
    assert names
    script = f"""
import importlib, sys
for absent in ("torch", "transformers"):
    sys.modules[absent] = None  # as if it were not installed: importing it raises ImportError
for name in {names!r}:
    importlib.import_module(name)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "transformers") and sys.modules[name]))
"""
    assert python(script).strip() == "[]"


def test_reading_a_pt_file_without_torch_says_what_to_install(tmp_path):
    script = f"""
import sys
sys.modules["torch"] = None
from wirescope.cli import main
try:
    main(["import", "x.pt", "--store", {str(tmp_path)!r}])
except SystemExit as exit_:
    print(exit_.code)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "2"
    assert "Reading 'x.pt' needs torch: pip install 'wirescope[extract]'." in result.stderr


def test_spark_that_is_not_installed_says_what_to_install(tmp_path):
    script = f"""
import sys
sys.modules["pyspark"] = None
from wirescope.cli import main
for arguments in (["import", {str(EMBEDDED)!r}], ["sql", "runs", "--engine", "spark"]):
    try:
        main([*arguments, "--store", {str(tmp_path / "s")!r}])
    except SystemExit as exit_:
        print(exit_.code)
    else:
        print(0)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["0", "2"]
    assert result.stderr.endswith("wirescope: Spark is not installed: pip install 'wirescope[spark]'.\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "rows"),
    [
        (
            "store.py",
            ("--prompts", "20", "--rounds", "1"),
            (
                "bytes a score",
                "write",
                "top 1000 edges",
                "mean |score| an edge",
                "first look, all files read",
                "later looks",
                "wiring",
                "igraph of all edges",
            ),
        ),
        (
            "scale.py",
            ("--layers", "2", "--heads", "2", "--prompts", "4", "--memory", "100MB"),
            (
                "46 edges x 4 prompts",
                "bytes a score",
                "DuckDB within 100MB",
                "top 10,000 edges by |mean|",
                "stability of the top 1,000",
                "circuit of 0.9 of the mass",
                "MB on disk",
            ),
        ),
        (
            "agreement.py",
            ("--prompts", "1", "--edges", "3", "--steps", "2"),
            ("tiny on ioi, 1 prompts, 3,628 edges", "eap-ig in 2 steps", "Pearson", "explained together"),
        ),
        (
            "figures.py",
            ("--edges", "200", "--rounds", "1"),
            ("layout", "svg", "pdf", "tex", "The explorer with 200 edges a side", "a step"),
        ),
        (
            "curves.py",
            ("--layers", "1", "--rounds", "1"),
            ("edge curve, memory", "bare forward, 1 thread", "at most 100 edges", "head", "attention"),
        ),
        (
            "extract.py",
            ("--shapes", "small", "--layers", "1", "--rounds", "1"),
            (
                "eap, memory",
                "bare passes, 1 thread",
                "eap, 1 thread",
                "eap-ig, 5 steps",
                "half a common prefix",
            ),
        ),
    ],
)
def test_the_benchmarks_print_their_tables(script, options, rows):
    command = [sys.executable, ROOT / "bench" / script, *options]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for row in rows:
        assert row in table


def test_nothing_at_the_root_shadows_the_package():
    assert not (ROOT / "wirescope").exists()


@pytest.mark.parametrize("name", [name for folder in FOLDERS for name in modules(folder)])
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
