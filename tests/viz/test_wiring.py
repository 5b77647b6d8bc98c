import re

import pytest
from wirescope.graphs import InputError, Inputs, Shape, Wiring, top_k
from wirescope.viz import render, wiring_dot


def test_every_node_and_kept_edge_is_drawn_once_strongest_last(published):
    circuit = top_k(published.wiring, published.scores, 200)
    dot = wiring_dot(circuit, title="A title")
    drawn = re.findall(r'^\s*"?([\w.]+)"? -> "?([\w.]+)"? \[', dot, flags=re.MULTILINE)
    table = circuit.table()
    expected = list(zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True))
    assert drawn == expected[::-1]
    for name in published.wiring.node_names:
        assert re.search(rf'^\s*"?{re.escape(name)}"? \[', dot, flags=re.MULTILINE)
    assert 'label="A title"' in dot


def test_only_nodes_of_the_circuit_are_white(published):
    circuit = top_k(published.wiring, published.scores, 64)
    dot = wiring_dot(circuit)
    white = set(re.findall(r'^\s*"?([\w.]+)"? \[[^\]]*fillcolor=white', dot, flags=re.MULTILINE))
    assert white == {published.wiring.node_names[node] for node in circuit.nodes}


def test_layers_go_down_and_heads_go_right():
    wiring = Wiring(Shape(2, 4, kv_heads=2, inputs=Inputs.GROUPED))
    dot = wiring_dot(top_k(wiring, [1.0] * wiring.n_edges, wiring.n_edges))
    at = {
        name: (float(x), float(y))
        for name, x, y in re.findall(
            r'^\s*"?([\w.]+)"? \[[^\]]*pos="([-\d.]+),([-\d.]+)"', dot, flags=re.MULTILINE
        )
    }
    assert at["input"][1] > at["a0.h0"][1] > at["a1.h0"][1] > at["logits"][1]
    assert at["a0.h0"][0] < at["a0.h1"][0] < at["a0.h3"][0] < at["m0"][0]
    assert at["a0.h0"][1] == at["m0"][1]
    assert at["a0.h0"][1] < at["a0.kv0"][1] < at["input"][1]
    assert len(set(at.values())) == len(at)  # none on top of another


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_it_renders(published, tmp_path, ending):
    file = tmp_path / f"x.{ending}"
    render(wiring_dot(top_k(published.wiring, published.scores, 64)), file)
    start = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[ending]
    assert file.read_bytes().startswith(start)


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"svg, pdf or png, not as '\.bmp'"):
        render("digraph {}", tmp_path / "x.bmp")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="Cannot write"):
        render("digraph {}", tmp_path / "no" / "x.svg")


def test_the_mark_of_a_layer_stands_beside_it(published):
    dot = wiring_dot(top_k(published.wiring, published.scores, 64))
    for layer in (0, 11):
        (mark,) = re.findall(rf'"layer {layer}" \[[^\]]*pos="[-\d.]+,([-\d.]+)"', dot)
        (head,) = re.findall(rf'"a{layer}\.h0" \[[^\]]*pos="[-\d.]+,([-\d.]+)"', dot)
        assert float(mark) == float(head)


def test_without_any_graphviz_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"pip install 'wirescope\[draw\]'"):
        render("digraph {}", tmp_path / "x.svg")
