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
