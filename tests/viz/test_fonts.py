"""Every PDF has its text and its fonts in it, on a machine that has no fonts as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pypdf import PdfReader

SCRIPT = """
import sys
from pathlib import Path
from wirescope.cli import main

store, out = sys.argv[1:]
both = ["--store", store, "--runs", "sparse-ioi", "dense-ioi"]
for command in (
    ["curve", *both, "--out", f"{out}/curve.pdf"],
    ["diagram", *both, "--k", "20", "--out", f"{out}/diagram.pdf"],
    ["diagram", *both, "--k", "5", "--level", "attention", "--prompt", "0", "--out", f"{out}/attention.pdf"],
):
    try:
        main(command)
    except SystemExit as exit_:
        assert not exit_.code, exit_.code
"""
EXPECTED = {
    "curve": ["IOI", "Explained effect", "toy-sparse"],
    "diagram": ["Layers", "toy-sparse", "input", "logits"],
    "attention": ["Layer 1", "toy-sparse", "attention edges"],
}


@pytest.fixture(scope="module")
def pdfs(toy, tmp_path_factory) -> Path:
    """Made by another process that finds no font of the system."""
    out = tmp_path_factory.mktemp("fonts")
    (out / "fonts.conf").write_text('<?xml version="1.0"?><fontconfig></fontconfig>')
    bare = {"FONTCONFIG_FILE": str(out / "fonts.conf"), "HOME": str(out), "MPLCONFIGDIR": str(out / "mpl")}
    subprocess.run([sys.executable, "-c", SCRIPT, str(toy.path), str(out)], check=True, env=os.environ | bare)
    return out


@pytest.mark.parametrize("name", EXPECTED)
def test_the_text_is_in_the_pdf_and_its_font_too(pdfs, name):
    (page,) = PdfReader(pdfs / f"{name}.pdf").pages
    text = page.extract_text()
    for words in EXPECTED[name]:
        assert words in text
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    assert fonts
    for font in fonts:
        if "/DescendantFonts" in font:
            font = font["/DescendantFonts"][0].get_object()
        assert "DejaVuSans" in font["/BaseFont"]
        assert "/FontFile2" in font["/FontDescriptor"].get_object()  # TrueType, embedded


def test_a_drawing_that_is_killed_leaves_no_folder(tmp_path):
    """Its settings for fonts are where the next drawing finds them."""
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    kept = {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)}
    script = (
        "import os, signal; from wirescope.viz.dot import render; render('digraph {a}', 'svg'); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=False, env=os.environ | kept)
        assert list(temporary.iterdir()) == []
        assert len(list((cache / "wirescope" / "fonts").glob("*.conf"))) == 1


def test_without_a_cache_folder_fonts_are_found_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")
    none = {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "file")}
    script = "from wirescope.viz.dot import render; print(len(render('digraph {a}', 'svg')))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, env=os.environ | none, capture_output=True, text=True
    )
    assert int(done.stdout) > 100
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
