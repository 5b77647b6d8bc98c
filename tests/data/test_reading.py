"""Circuits of other tools. ``auto-circuit.json`` has what auto-circuit 1.0.1 itself calls the edges of a model of two
layers and two heads, in four variants, with a random score each: by name, and in its prune scores by module."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wirescope.data import (
    MEMBERSHIP,
    Run,
    auto_circuit_json,
    import_circuit,
    parse_circuit,
    read_catalog,
    read_circuit,
)
from wirescope.errors import InputError
from wirescope.graphs import Inputs, Shape, Wiring, cytoscape, node_link, spelled, top_k

AUTO_CIRCUIT = json.loads((Path(__file__).parent / "auto-circuit.json").read_text())
SHAPES = {
    "split": Shape(2, 2),
    "merged": Shape(2, 2, inputs=Inputs.MERGED),
    "parallel": Shape(2, 2, parallel=True),
    "attention only": Shape(2, 2),
}
DRAWING = """strict digraph "" {
    graph [bgcolor=transparent,
        layout=dot];
    "<embed>"	[color=black, shape=box, style="filled, rounded"];
    "<embed>" -> "<a0.1_v>"	[color="#b3e2cd",
        penwidth=0.6];
    "<a0.1_v>" -> "<a0.1>"	[color="#b3e2cd", penwidth=0.6];
    "<a0.1>" -> "<m1>"	[color="#b3e2cd", penwidth=1.2];
    <m1> -> <resid_post>;
}
"""


@pytest.mark.parametrize("variant", ["split", "merged", "parallel"])
def test_all_edges_of_auto_circuit_are_a_circuit_that_says_its_shape(variant):
    edges = AUTO_CIRCUIT[variant]["edges"]
    circuit = parse_circuit(edges, "f")
    assert circuit.wiring.shape == SHAPES[variant]
    names = spelled(circuit.wiring.edge_names().to_pylist(), "auto-circuit", 2)
    assert dict(zip(names, circuit.scores.tolist(), strict=True)) == pytest.approx(edges)
    assert circuit.listed == circuit.wiring.n_edges


def test_a_part_of_the_edges_needs_the_shape_and_leaves_0_for_the_others():
    edges = AUTO_CIRCUIT["attention only"]["edges"]
    with pytest.raises(
        InputError, match=r"'f' has 29 edges .* give --layers and --heads \(its names need 2 and 2 at"
    ):
        parse_circuit(edges, "f")
    circuit = parse_circuit(edges, "f", shape=Shape(3, 4))
    assert circuit.wiring.shape == Shape(3, 4)
    assert circuit.listed == np.count_nonzero(circuit.scores) == 29
    assert circuit.scores[circuit.wiring.edge_ids(["a0.h0->a1.h0<k>"])[0]] == np.float32(1.541)
    with pytest.raises(InputError, match=r"The model of 1 layers x 2 heads has no node 'a1\.h0'"):
        parse_circuit(edges, "f", shape=Shape(1, 2))


def test_a_circuit_survives_the_names_of_auto_circuit(published):
    circuit = top_k(published.wiring, published.scores, 200)
    run = Run(run="a", model="m", shape=Shape(12, 12), prompts=1, levels=("edge",))
    again = parse_circuit(json.loads(auto_circuit_json(circuit, run)), "f", shape=Shape(12, 12))
    assert again.sign == "loss"
    assert np.array_equal(np.flatnonzero(again.scores), circuit.edges)
    assert np.array_equal(again.scores[circuit.edges], -circuit.scores)


@pytest.mark.parametrize(
    "content",
    [
        ["Resid Start->A0.1.V", "A0.1->MLP 1", "MLP 1->Resid End", "A0.1->MLP 1"],
        {"input->a0.h1<v>": True, "a0.h1->m1": True, "m1->logits": True, "input->m0": False},
        {
            "nodes": [],
            "links": [
                {"source": "input", "target": "a0.h1", "slot": "v"},
                {"source": "a0.h1", "target": "m1"},
                {"source": "m1", "target": "logits"},
            ],
        },
    ],
)
def test_a_circuit_without_scores_is_1_inside_and_0_outside(content, tmp_path):
    circuit = parse_circuit(content, "f", shape=Shape(2, 2))
    kept = circuit.wiring.edge_names(np.flatnonzero(circuit.scores)).to_pylist()
    assert kept == ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
    assert circuit.scores.sum() == 3
    assert circuit.in_graph.tolist() == (circuit.scores == 1).tolist()
    import_circuit(circuit, tmp_path / "s", run="a", source="f", model="m")
    assert read_catalog(tmp_path / "s").run("a").sign == MEMBERSHIP == "1 in the circuit, 0 outside"


def test_effects_of_acdc_by_its_hooks_need_none_inside_a_head():
    """As its own pickle has them: an edge inside a component may have no effect size."""
    q_input, q = "blocks.1.hook_q_input[:, :, 0]", "blocks.1.attn.hook_q[:, :, 0]"
    content = {f"blocks.0.attn.hook_result[:, :, 1]->{q_input}": 0.25, f"{q_input}->{q}": None}
    circuit = parse_circuit(content, "f", shape=Shape(2, 2))
    assert circuit.wiring.edge_names(np.flatnonzero(circuit.scores)).to_pylist() == ["a0.h1->a1.h0<q>"]
    assert circuit.scores.max() == 0.25
    assert circuit.listed == 1


@pytest.mark.parametrize("name", ["c.gv", "c.json"])
def test_a_drawing_of_acdc_is_known_by_its_content(tmp_path, name):
    (tmp_path / name).write_text(DRAWING)
    circuit = read_circuit(tmp_path / name, shape=Shape(2, 2))
    kept = circuit.wiring.edge_names(np.flatnonzero(circuit.in_graph)).to_pylist()
    assert kept == ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
    indexed = DRAWING.replace("a0.1_v>", "a0.1_v_[:, :, 1]>").replace('"<embed>"', '"embed"')
    (tmp_path / name).write_text(indexed)
    assert np.array_equal(read_circuit(tmp_path / name, shape=Shape(2, 2)).scores, circuit.scores)


def test_a_drawing_that_is_not_acdcs_is_refused(tmp_path):
    for text, reason in (
        ("digraph { a9.h9 -> a11.h10 }", "'<a9.h9>' is not a component"),
        ("digraph { a; }", "the drawing has no edges"),
    ):
        (tmp_path / "c.gv").write_text(text)
        with pytest.raises(InputError, match=reason):
            read_circuit(tmp_path / "c.gv", shape=Shape(12, 12))


@pytest.mark.parametrize("write", [node_link, cytoscape])
@pytest.mark.parametrize("inputs", Inputs)
def test_our_own_json_comes_back_with_the_shape_of_its_model(write, inputs):
    wiring = Wiring(Shape(2, 4, 2, inputs=inputs))
    scores = np.random.default_rng(0).normal(size=wiring.n_edges).astype(np.float32)
    circuit = top_k(wiring, scores, 20)
    again = parse_circuit(json.loads(write(circuit)), "f")
    assert again.wiring == wiring
    assert np.array_equal(np.flatnonzero(again.scores), circuit.edges)
    assert np.array_equal(again.scores[circuit.edges], circuit.scores)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"A0.0->MPL 0": 1.0, "Resid Start->MLP 0": 1.0}, r"'MPL 0' is not a component.*Did you mean 'MLP 0'\?"),
        ({"A0.0->A0.1.Q": 1.0}, "is not an edge: a0.h1 does not read what a0.h0 writes"),
        ({"A0.0->A1.1.Q": 1.0, "A0.0->A1.1": 1.0}, "is not an edge of this wiring"),
        ({"A0.0->MLP 1": "0.5"}, "has no score for the edge a0.h0->m1: it says '0.5'"),
        ({"A0.0->MLP 1": None}, "has no score for the edge a0.h0->m1: it says None"),
        ({"A0.0->MLP 1": 1e999}, "scores must be finite"),
        ({"A0.0->MLP 1": 1.0, "a0.h0->m1": True}, "has no node|is not a component"),
        ({"nodes": 5.0}, "'nodes' is not the name of an edge, such as a9.h9"),
        (["m0"], "'m0' is not the name of an edge"),
        ({"edges": [{"source": 0, "target": 1}], "nodes": []}, "has an edge without the names of its ends"),
        (
            {"edges": [{"source": "input", "target": "m0", "score": 1.0}] * 2, "nodes": []},
            "has the edge input->m0 more than once",
        ),
        (
            {"edges": [{"source": "input", "target": "m0"}], "graph": {"layers": 2, "heads": "2"}},
            "does not say its model's shape, but {'heads': '2', 'layers': 2}",
        ),
        ({"edges": [], "nodes": []}, "has no edge between components"),
        (
            {"blocks.0.hook_mlp_out[:]->blocks.3.hook_resid_post[:]": 1.0},
            "is of a model of 4 layers, not 2",
        ),
    ],
)  # fmt: skip
def test_what_is_no_circuit_of_this_model_is_refused_with_the_reason(content, reason):
    with pytest.raises(InputError, match=reason):
        parse_circuit(content, "f", shape=Shape(2, 2))


def test_a_model_out_of_all_proportion_is_not_built():
    content = {"edges": [{"source": "input", "target": "m0"}]}
    content["graph"] = {"layers": 9999, "heads": 9999, "kv_heads": 9999, "parallel": False, "inputs": "split"}
    with pytest.raises(InputError, match="which is more than can be kept"):
        parse_circuit(content, "f")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
names = st.sampled_from(
    [*list(AUTO_CIRCUIT["split"]["edges"])[:6], "input->m0", "m0->logits", "a->b", "\ud800->m0"]
)
documents = st.one_of(
    st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=8),
    st.dictionaries(names, leaves, min_size=1),
    st.lists(names),
    st.fixed_dictionaries(
        {"edges": st.lists(st.dictionaries(st.sampled_from(["source", "target", "score", "slot", "name", "key"]),
                                           leaves | names))},
        optional={"graph": leaves | st.dictionaries(st.sampled_from(["layers", "heads", "inputs"]), leaves),
                  "elements": leaves | st.fixed_dictionaries({"edges": st.lists(leaves)})},
    ),
)  # fmt: skip


@given(documents, st.none() | st.just(Shape(2, 2)))
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_is_a_circuit_or_refused(content, shape):
    try:
        circuit = parse_circuit(content, "f", shape=shape)
    except InputError as refused:
        str(refused).encode()  # it can be printed
        return
    assert circuit.scores.shape == (circuit.wiring.n_edges,)
    assert np.isfinite(circuit.scores).all()


@given(st.data())
@settings(max_examples=200)
def test_our_own_json_with_something_odd_in_one_place_is_a_circuit_or_refused(data):
    wiring = Wiring(Shape(1, 2))
    content = json.loads(node_link(top_k(wiring, np.arange(wiring.n_edges), 6)))
    where = data.draw(st.sampled_from([content, content["graph"], content["edges"][0], content["edges"][-1]]))
    where[data.draw(st.sampled_from(list(where)))] = data.draw(leaves)
    try:
        parse_circuit(copy.deepcopy(content), "f")
    except InputError as refused:
        str(refused).encode()
