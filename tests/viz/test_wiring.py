"""Wiring diagrams: what is drawn, where, and how it is written down."""

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from pypdf import PdfReader
from wirescope.errors import InputError, StoreError
from wirescope.graphs import Inputs, Shape, Wiring, top_k
from wirescope.viz import Look, Panel, draw_wiring, save_diagram, to_dot, to_tikz
from wirescope.viz.dot import render
from wirescope.viz.scene import Scene

GOLDEN = Path(__file__).parent / "golden"
TOY = Wiring(Shape(2, 3))


def toy_circuit(k: int = 12, seed: int = 3, wiring: Wiring = TOY):
    scores = np.round(np.random.default_rng(seed).normal(size=wiring.n_edges), 2)
    return top_k(wiring, scores, k)


def marks(scene: Scene) -> dict:
    return {mark.name: mark for mark in scene.marks}


def golden(name: str, text: str) -> None:
    """After a wanted change: ``UPDATE_GOLDEN=1 pytest tests/viz``, and look at the picture."""
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_two_panels_are_the_golden_ones():
    panels = [
        Panel(circuit=toy_circuit(9), title="Sparse toy", colour="#D55E00"),
        Panel(circuit=toy_circuit(30), title="Toy"),
    ]
    scene = draw_wiring(panels, Look(slots=True, numbers=True))
    golden("pair.dot", to_dot(scene))
    golden("pair.tex", to_tikz(scene))


def test_every_node_and_kept_edge_is_drawn_once_strongest_last(published):
    circuit = top_k(published.wiring, published.scores, 200)
    dot = to_dot(draw_wiring([Panel(circuit=circuit, title="A title")]))
    drawn = re.findall(r'^\s*"?([\w.]+)"? -> "?([\w.]+)"? \[', dot, flags=re.MULTILINE)
    table = circuit.table()
    expected = list(zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True))
    assert drawn == expected[::-1]
    assert dot.count(" -> ") == circuit.kept  # the axis is no edge
    for name in published.wiring.node_names:
        assert re.search(rf'^\s*"?{re.escape(name)}"? \[', dot, flags=re.MULTILINE)
    assert 'label="A title"' in dot


def test_stronger_edges_are_wider_and_more_opaque(published):
    scene = draw_wiring([Panel(circuit=top_k(published.wiring, published.scores, 300))])
    pens, opacities = [line.pen for line in scene.lines], [line.opacity for line in scene.lines]
    assert pens == sorted(pens)
    assert opacities == sorted(opacities)
    assert pens[-1] > 3 * pens[0]


def test_only_nodes_of_the_circuit_are_white(published):
    circuit = top_k(published.wiring, published.scores, 64)
    scene = draw_wiring([Panel(circuit=circuit)])
    white = {mark.name for mark in scene.marks if mark.fill == "white"}
    assert white == {published.wiring.node_names[node] for node in circuit.nodes}


@pytest.mark.parametrize("upwards", [False, True])
def test_layers_go_down_or_up_and_heads_go_right(upwards):
    wiring = Wiring(Shape(2, 4, kv_heads=2, inputs=Inputs.GROUPED))
    circuit = top_k(wiring, [1.0] * wiring.n_edges, wiring.n_edges)
    scene = draw_wiring([Panel(circuit=circuit)], Look(upwards=upwards))
    at = {mark.name: (mark.at.x, mark.at.y * (-1 if upwards else 1)) for mark in scene.marks}
    assert at["input"][1] > at["a0.h0"][1] > at["a1.h0"][1] > at["logits"][1]
    assert at["a0.h0"][0] < at["a0.h1"][0] < at["a0.h3"][0] < at["m0"][0]
    assert at["a0.h0"][1] == at["m0"][1]
    assert at["a0.h0"][1] < at["a0.kv0"][1] < at["input"][1]
    assert len(set(at.values())) == len(at)  # none on top of another
    (axis,) = (rule for rule in scene.rules if rule.arrow)
    assert (axis.end.y > axis.start.y) is upwards
    for line in scene.lines:  # edges leave and arrive in the direction of the layers
        start, one, *_ = line.points
        assert (one.y > start.y) is upwards


def test_the_number_of_a_layer_stands_beside_it(published):
    scene = draw_wiring([Panel(circuit=top_k(published.wiring, published.scores, 64))])
    words = {word.name: word for word in scene.words}
    for layer in range(12):
        assert words[f"layer {layer}"].text == str(layer)
        assert words[f"layer {layer}"].at.y == marks(scene)[f"a{layer}.h0"].at.y


def test_panels_stand_side_by_side_with_names_of_their_own():
    scene = draw_wiring([Panel(circuit=toy_circuit(), title=title) for title in "ABC"])
    at = marks(scene)
    assert at["m0"].at.x < at["2/a0.h0"].at.x < at["2/m0"].at.x < at["3/a0.h0"].at.x
    assert {at[f"{prefix}a1.h2"].at.y for prefix in ("", "2/", "3/")} == {at["a1.h2"].at.y}
    assert [word.text for word in scene.words if word.name.endswith("title")] == ["A", "B", "C"]
    assert {line.src.partition("/")[0] for line in scene.lines if "/" in line.src} == {"2", "3"}


def width(scene: Scene) -> float:
    return max(mark.at.x + mark.width / 2 for mark in scene.marks)


def height(scene: Scene) -> float:
    ys = [mark.at.y for mark in scene.marks]
    return max(ys) - min(ys)


def test_two_gpt2_fit_a_text_column_and_two_olmo_a_page(published):
    small = Panel(circuit=top_k(published.wiring, published.scores, 64))
    assert width(draw_wiring([small, small])) <= 392
    assert max(mark.width for mark in draw_wiring([small, small]).marks if mark.shape == "circle") >= 7
    olmo = Wiring(Shape(32, 32))
    large = Panel(circuit=top_k(olmo, np.linspace(-1, 1, olmo.n_edges), 30_000))
    scene = draw_wiring([large, large])
    assert 392 < width(scene) <= 468
    assert height(scene) <= 600
    assert width(draw_wiring([small, small], Look(width=240))) <= 240


def test_beyond_the_limit_the_strongest_are_drawn_and_the_caption_says_so(published):
    circuit = top_k(published.wiring, published.scores, 500)
    scene = draw_wiring([Panel(circuit=circuit, title="GPT-2")], Look(limit=40))
    assert len(scene.lines) == 40
    assert scene.caption == f"GPT-2: the 40 strongest edges are drawn, {circuit.kept - 40} are not."
    strongest = circuit.table()["name"].to_pylist()[:40]
    assert {line.about.split()[0] for line in scene.lines} == set(strongest)
    assert not draw_wiring([Panel(circuit=circuit)]).caption


def test_without_mlps_their_edges_go_too_and_the_caption_says_so():
    circuit = toy_circuit(30)
    scene = draw_wiring([Panel(circuit=circuit)], Look(mlps=False))
    mlps = [name for name in circuit.table()["name"].to_pylist() if "m" in name]
    assert mlps
    assert not any(mark.shape == "square" for mark in scene.marks)
    assert len(scene.lines) == circuit.kept - len(mlps)
    assert scene.caption == f"the {len(mlps)} edges from and to MLPs are not drawn."


def test_head_numbers_are_written_into_active_heads_only():
    circuit = toy_circuit()
    texts = {mark.name: mark.text for mark in draw_wiring([Panel(circuit=circuit)], Look(numbers=True)).marks}
    active = {TOY.node_names[node] for node in circuit.heads}
    for name in TOY.node_names:
        if name.startswith("a"):
            assert texts[name] == (name.partition(".h")[2] if name in active else "")


def test_slots_have_their_own_lines():
    scene = draw_wiring([Panel(circuit=toy_circuit(40))], Look(slots=True))
    dashes = {}
    for line in scene.lines:
        slot = re.search(r"<(\w)>", line.about)
        dashes.setdefault(slot.group(1) if slot else "", set()).add(line.dash)
    assert dashes == {"": {"solid"}, "q": {"solid"}, "k": {"dashed"}, "v": {"dotted"}}
    assert [word.text for word in scene.words if word.name.startswith("key")] == ["q", "k", "v"]
    plain = draw_wiring([Panel(circuit=toy_circuit(40))])
    assert {line.dash for line in plain.lines} == {"solid"}


def test_a_highlight_stands_out_and_the_others_fade(published):
    circuit = top_k(published.wiring, published.scores, 200)
    plain = {line.about: line.opacity for line in draw_wiring([Panel(circuit=circuit)]).lines}

    def standing_out(*highlight: str) -> set[str]:
        scene = draw_wiring([Panel(circuit=circuit)], Look(highlight=highlight))
        strong = {line.about for line in scene.lines if line.opacity >= 0.85}
        faded = {line.about for line in scene.lines} - strong
        assert all(line.opacity < 0.2 * plain[line.about] for line in scene.lines if line.about in faded)
        assert [line.about in strong for line in scene.lines] == sorted(
            line.about in strong for line in scene.lines
        )
        return {about.split()[0] for about in strong}

    names = circuit.table()["name"].to_pylist()
    assert standing_out("a9.h9") == {name for name in names if re.search(r"\ba9\.h9\b", name)}
    assert standing_out("a9.h9->a11.h10<q>") == {"a9.h9->a11.h10<q>"}
    assert standing_out("input->m0->a10.h7->logits") == {
        name for name in names if re.sub("<.>", "", name) in ("input->m0", "m0->a10.h7", "a10.h7->logits")
    }
    assert standing_out("input->m0", "a9.h9->logits") == {"input->m0", "a9.h9->logits"}


@pytest.mark.parametrize(
    ("highlight", "message"),
    [
        ("a9.h99", "has no node 'a9.h99'"),
        ("a11.h0->a0.h1", "Nothing that is drawn is highlighted by a11.h0->a0.h1"),
        ("a9.h9->a11.h10<x>", "an input 'x' that there is not"),
    ],
)
def test_a_highlight_that_is_not_there_is_refused(published, highlight, message):
    circuit = top_k(published.wiring, published.scores, 200)
    with pytest.raises(InputError, match=message):
        draw_wiring([Panel(circuit=circuit)], Look(highlight=(highlight,)))


@pytest.mark.parametrize("look", [{"limit": 0}, {"width": 10}])
def test_a_look_that_cannot_be_is_refused(look):
    with pytest.raises(InputError, match="at least"):
        Look(**look)


def test_heads_alone_are_filled_by_strength():
    heads = {TOY.node_ids(["a0.h1"])[0]: 1.0, TOY.node_ids(["a1.h2"])[0]: 0.1}
    none = top_k(TOY, [0.0] * TOY.n_edges, 1)
    at = marks(draw_wiring([Panel(circuit=none, heads=heads, colour="#123456")]))
    assert {name for name, mark in at.items() if mark.fill == "#123456"} == {"a0.h1", "a1.h2"}
    assert at["a0.h1"].fill_opacity > at["a1.h2"].fill_opacity


@pytest.mark.parametrize("ending", ["svg", "pdf", "png", "dot", "tex"])
def test_it_is_written_by_its_ending(published, tmp_path, ending):
    file = tmp_path / f"x.{ending}"
    save_diagram(draw_wiring([Panel(circuit=top_k(published.wiring, published.scores, 64))]), file)
    start = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "dot": b"digraph", "tex": b"% needs"}[ending]
    assert file.read_bytes().startswith(start)


def test_a_path_that_is_partly_there_says_what_is_not(published):
    circuit = top_k(published.wiring, published.scores, 200)
    look = Look(highlight=("input->m0->a11.h11->logits",))
    said = draw_wiring([Panel(circuit=circuit, title="G")], look).caption
    assert said == "G: of input->m0->a11.h11->logits, m0->a11.h11, a11.h11->logits is not in the circuit."
    with pytest.raises(InputError, match="Nothing that is drawn is highlighted by m0"):
        draw_wiring([Panel(circuit=circuit)], Look(highlight=("m0",), mlps=False))


def test_shared_key_value_heads_are_joined_to_those_that_read_them():
    wiring = Wiring(Shape(2, 4, kv_heads=2, inputs=Inputs.GROUPED))
    circuit = top_k(wiring, [1.0] * wiring.n_edges, wiring.n_edges)
    scene = draw_wiring([Panel(circuit=circuit)])
    at = marks(scene)
    joined = {(rule.start, rule.end) for rule in scene.rules if not rule.arrow}
    assert joined == {
        (at[f"a{layer}.kv{head // 2}"].at, at[f"a{layer}.h{head}"].at)
        for layer in range(2)
        for head in range(4)
    }
    into = next(line for line in scene.lines if line.dst == "a1.kv0")
    assert into.points[-1].y == pytest.approx(at["a1.kv0"].at.y + at["a1.kv0"].height / 2)


def test_a_long_title_is_smaller():
    short, long = ("A", "A name of a model that is much longer than its panel is wide")
    sizes = [
        next(
            word.size
            for word in draw_wiring([Panel(circuit=toy_circuit(), title=title)]).words
            if word.text == title
        )
        for title in (short, long)
    ]
    assert sizes == [9.0, 6.0]


@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_the_page_is_as_wide_as_what_is_drawn(published, tmp_path, ending):
    panel = Panel(circuit=top_k(published.wiring, published.scores, 64))
    scene = draw_wiring([panel, panel])
    save_diagram(scene, tmp_path / f"x.{ending}")
    if ending == "pdf":
        size = float(PdfReader(tmp_path / "x.pdf").pages[0].mediabox.width)
    else:
        size = float(ET.parse(tmp_path / "x.svg").getroot().get("width").removesuffix("pt"))
    assert size == pytest.approx(width(scene), abs=12)
    assert size <= 400


def test_text_is_text_to_graphviz(tmp_path):
    odd = r"\N \G &#65; &amp; <b> {x|y}"
    save_diagram(draw_wiring([Panel(circuit=toy_circuit(), title=odd)]), tmp_path / "x.svg")
    texts = [text.text.replace("\xa0", " ") for text in ET.parse(tmp_path / "x.svg").findall(".//{*}text")]
    assert odd in texts


def test_the_svg_has_what_the_scene_has(published, tmp_path):
    circuit = top_k(published.wiring, published.scores, 100)
    scene = draw_wiring([Panel(circuit=circuit, title="Name & <title>")])
    save_diagram(scene, tmp_path / "x.svg")
    tree = ET.parse(tmp_path / "x.svg")
    of_class = {kind: tree.findall(f".//{{*}}g[@class='{kind}']") for kind in ("node", "edge")}
    assert len(of_class["edge"]) == circuit.kept
    assert len(of_class["node"]) == len(scene.marks) + len(scene.words)
    texts = [text.text for text in tree.findall(".//{*}text")]
    assert {"Name & <title>", "Layers", "0", "11", "input", "logits"} <= set(texts)
    by_name = {edge.find("{*}title").text: edge for edge in of_class["edge"]}
    ends = re.findall(r"-?\d+\.?\d*", by_name["a9.h9->logits"].find(".//{*}path").get("d"))
    drawn = next(line for line in scene.lines if line.about.startswith("a9.h9->logits ")).points
    assert float(ends[0]) == pytest.approx(drawn[0].x, abs=0.02)
    assert float(ends[-2]) == pytest.approx(drawn[-1].x, abs=0.02)


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(InputError, match="'bmp' is not a file ending of this figure: choose from pdf, svg"):
        save_diagram(Scene((), (), ()), tmp_path / "x.bmp")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="Cannot write"):
        save_diagram(Scene((), (), ()), tmp_path / "no" / "x.svg")


def test_without_any_graphviz_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"pip install 'wirescope\[draw\]'"):
        save_diagram(Scene((), (), ()), tmp_path / "x.svg")
    for ending in ("dot", "tex"):
        save_diagram(Scene((), (), ()), tmp_path / f"x.{ending}")


def test_an_installed_graphviz_does_where_the_bundled_one_is_not(tmp_path, monkeypatch):
    """A stand-in for `dot`: it writes down how it was called, and what it was given."""
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "$@ $FONTCONFIG_FILE"\ncat\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    called, given = render("digraph {}", "png").decode().split("\n", 1)
    assert called.startswith("-Knop2 -Tpng -Gdpi=300 ")
    assert called.endswith(".conf")
    assert given == "digraph {}"
    program.write_text("#!/bin/sh\necho no such engine >&2\nexit 1\n")
    with pytest.raises(StoreError, match="failed: no such engine"):
        render("digraph {}", "pdf")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_the_tikz_compiles_in_an_article(published, tmp_path):
    panels = [
        Panel(circuit=top_k(published.wiring, published.scores, k), title=title)
        for k, title in ((200, r"50 % of #1_{a} & \b ~ ^ $x$ ⏎ ␣ é 中"), (2500, "GPT-2"))
    ]
    save_diagram(draw_wiring(panels, Look(width=340, slots=True, numbers=True)), tmp_path / "figure.tex")
    (tmp_path / "article.tex").write_text(
        "\\documentclass{article}\\usepackage{tikz}\\begin{document}\\noindent\\input{figure}\\end{document}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "article.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
