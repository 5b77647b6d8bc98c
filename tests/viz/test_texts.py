"""Texts are drawn letter by letter, whatever they say and whichever way they come in.

Tokens, labels, and the names of models, runs and tasks are others' words: to Graphviz they could be HTML, to matplotlib
formulas, to TeX commands.
"""

import base64
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace

import pyarrow as pa
import pytest
from pypdf import PdfReader
from wirescope.data import read_catalog, task_title, write_run
from wirescope.graphs import Shape, Wiring, top_k
from wirescope.queries import Choice, View, labels_of, open_store, select
from wirescope.viz import (
    Panel,
    TokenPanel,
    curve_figure,
    diagram,
    draw_attention,
    draw_wiring,
    explorer,
    save_curves,
    save_diagram,
    to_dot,
    to_tikz,
)
from wirescope.viz.dot import render
from wirescope.viz.scene import Mark, Point, Scene
from wirescope.viz.tikz import escape

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
TABLE = "<<TABLE><TR><TD>{}</TD></TR></TABLE>>"
TEXTS = {
    "token": "<s>",
    "end of text": "<|endoftext|>",
    "unbalanced": "<a<b>",
    "link": '<<TABLE HREF="javascript:alert(1)"><TR><TD>x</TD></TR></TABLE>>',
    "bold": "<<B>x</B>>",
    "entity": "&lt;b&gt; &#65; &amp;",
    "escapes": r"\N \G \E \T \l \n \\",
    "quotes": "\"a\" 'b' \\",
    "end": '"]; x [label=y]; //',
    "record": "{x|<p> y}",
    "formula": "$x$",
    "half a formula": "a $ b_c^d",
    "underscore": "_hidden",
    "math command": r"$\frac{1}{2}$ $\undefined$",
    "tex command": r"\input{/etc/passwd} \write18 ^^5cbye % # ~ --- `` ''",
    "control": "a\nb\0c\x1b]0;d\a",
}
ODD = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


def plain(text: str) -> str:
    """As it can be read on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def svg_of(scene: Scene) -> ET.Element:
    return ET.fromstring(render(to_dot(scene), "svg"))


def texts_in(svg: ET.Element) -> list[str]:
    return ["".join(text.itertext()).replace("\xa0", " ") for text in svg.findall(".//{*}text")]


def titled(text: str) -> Scene:
    wiring = Wiring(Shape(1, 2))
    scores = [0.5] * wiring.n_edges
    return draw_wiring([Panel(circuit=top_k(wiring, scores, wiring.n_edges), title=text)])


def attended(text: str) -> Scene:
    rows = [{"layer": 0, "head": 0, "query": 1, "key": 0, "score": 1.0}]
    return draw_attention([TokenPanel(edges=pa.Table.from_pylist(rows), tokens=("a", text), title=text)])


def in_a_mark(text: str) -> Scene:
    mark = Mark(name="m", at=Point(0, 0), shape="box", width=200, height=20, text=text, about=text)
    return Scene((), (mark,), ())


DOORS = {"title": titled, "token": attended, "mark": in_a_mark}


@ODD
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
def test_graphviz_draws_a_text_as_it_is(door, text):
    svg = svg_of(door(text))
    assert plain(text).strip() in [found.strip() for found in texts_in(svg)]
    assert not svg.findall(".//{*}image")
    links = {element.get("{http://www.w3.org/1999/xlink}href") for element in svg.iter("{*}a")}
    assert links <= {None}
    tips = {element.get("{http://www.w3.org/1999/xlink}title") for element in svg.iter("{*}a")}
    assert all("<TABLE" not in (tip or "") or text in tip for tip in tips)


@ODD
def test_the_dot_source_quotes_every_text(text):
    """As a program reads it that is not the bundled one, or a user who takes the file elsewhere."""
    for door in DOORS.values():
        source = to_dot(door(text))
        for name in ("label", "tooltip"):
            values = re.findall(rf'\b{name}=("(?:[^"\\]|\\.)*"|\S+?)[\] ]', source)
            assert values
            assert all(value.startswith('"') or re.fullmatch(r"[\w.]+", value) for value in values)


def test_a_picture_of_the_disk_does_not_get_into_the_figure(tmp_path):
    (tmp_path / "secret.png").write_bytes(PIXEL)
    text = TABLE.format(f'<IMG SRC="{tmp_path / "secret.png"}"/>')
    for door in DOORS.values():
        save_diagram(door(text), tmp_path / "x.pdf")
        (page,) = PdfReader(tmp_path / "x.pdf").pages
        assert not list(page.images)
        assert "secret.png" in page.extract_text()
        assert not svg_of(door(text)).findall(".//{*}image")


@pytest.fixture(scope="module")
def odd(toy, tmp_path_factory):
    """A store with a run for each text: of a model, a task and prompts that say it."""
    path = tmp_path_factory.mktemp("odd") / "store"
    shutil.copytree(toy.path, path)
    connection = open_store(path)
    dense = read_catalog(path).run("dense-ioi")
    tables = {
        name: select(connection, f"select * from {name} where run = 'dense-ioi'").drop(["run"])
        for name in ("prompts", "edge_scores", "head_scores", "attention_scores", "effects")
    }
    prompts = tables["prompts"]
    where = prompts.schema.get_field_index("clean_tokens")
    for i, text in enumerate(TEXTS.values()):
        words = pa.array([[text] * len(ids) for ids in prompts["clean_ids"].to_pylist()])
        tables["prompts"] = prompts.set_column(where, "clean_tokens", words)
        record = replace(dense, run=f"odd-{i}", model=text, task=text, parts={}, finished=None)
        with write_run(path, record) as writer:
            writer.write_wiring(record.wiring)
            for name, rows in tables.items():
                writer.write(name, rows)
    catalog = read_catalog(path)
    return open_store(catalog), catalog, {text: f"odd-{i}" for i, text in enumerate(TEXTS.values())}


@pytest.mark.parametrize("level", ["edge", "head", "attention"])
@ODD
def test_models_tokens_and_labels_are_texts_in_diagrams(odd, text, level):
    connection, catalog, named = odd
    choice = Choice(k=4, prompt=0 if level == "attention" else None, greedy=level == "edge")
    for labels in ({}, {named[text]: text}):
        scene = diagram(connection, catalog, [named[text]], choice=choice, level=level, labels=labels)
        drawn = [found.strip() for found in texts_in(svg_of(scene))]
        assert plain(text if labels else labels_of([catalog.run(named[text])])[0]).strip() in drawn
        assert drawn.count(plain(text).strip()) >= (3 if level == "attention" else bool(labels))


@ODD
def test_models_tasks_and_labels_are_texts_in_curves(odd, tmp_path, text):
    connection, catalog, named = odd
    for labels in ({}, {named[text]: text}):
        found = curve_figure(connection, catalog, [named[text]], view=View(ranking="task"), labels=labels)
        save_curves(found.figure, tmp_path / "x.svg")
        called = plain(text if labels else labels_of([catalog.run(named[text])])[0])
        drawn = texts_in(ET.parse(tmp_path / "x.svg").getroot())
        assert {called.strip(), plain(task_title(text)).strip()} <= {found.strip() for found in drawn}
        assert [entry.get_text() for entry in found.figure.legends[0].get_texts()] == [called]


@ODD
def test_the_page_of_the_explorer_has_no_text_that_is_markup(odd, text):
    connection, catalog, named = odd
    page = explorer(connection, catalog, [named[text]], labels={named[text]: text})
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1)
    assert not set(data) & set("<>&")
    (panel,) = json.loads(data)["panels"]
    assert panel["sides"][0]["label"] == plain(text)
    assert task_title(text) == panel["name"]


def test_tex_sets_every_letter_of_a_text_by_itself():
    assert escape("---") == "-{}-{}-"
    assert escape("``a''") == "`{}`a'{}'"
    assert escape("?`") == "?{}`"
    assert escape("GPT-2's") == "GPT-2's"
    assert escape("a\nb") == "a b"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_any_text_compiles_in_an_article(tmp_path):
    latin = "".join(map(chr, range(0x20, 0x100)))
    scenes = [door(text) for text in (*TEXTS.values(), latin, "中 😀 ğ Ġ") for door in DOORS.values()]
    pictures = "\n\n".join(map(to_tikz, scenes))
    (tmp_path / "article.tex").write_text(
        f"\\documentclass{{article}}\\usepackage{{tikz}}\\begin{{document}}{pictures}\\end{{document}}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "article.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    text = "".join(page.extract_text() for page in PdfReader(tmp_path / "article.pdf").pages)
    assert "/etc/passwd" in text
    assert "root:" not in text
