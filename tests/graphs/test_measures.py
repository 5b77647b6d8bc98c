from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.graphs import (
    Circuit,
    Inputs,
    Shape,
    Wiring,
    betweenness,
    communities,
    density,
    depth,
    layer_profile,
    minimum_cut,
    node_profile,
    on_a_path,
    path_count,
    skip_lengths,
    strongest_paths,
    summary,
    to_networkx,
    top_k,
    width,
)

EDGES = {
    "input->a0.h0<q>": -4.0,
    "input->a0.h0<v>": 2.0,
    "input->m0": 1.0,
    "a0.h0->m1": 3.0,
    "a0.h0->logits": 1.0,
    "m0->a1.h1<k>": 0.5,
    "a1.h1->logits": 8.0,
    "m1->logits": 5.0,
}


@pytest.fixture(scope="module")
def hand() -> Circuit:
    """A circuit that can be worked out by hand: 2 layers x 2 heads, 8 edges, all on a path."""
    wiring = Wiring(Shape(2, 2))
    ids = wiring.edge_ids(EDGES)
    order = np.argsort(ids)
    return Circuit(wiring, ids[order], np.array(list(EDGES.values()), dtype=np.float32)[order], 10)


@st.composite
def circuits(draw) -> Circuit:
    """Small random circuits of every kind of wiring, not empty."""
    shape = Shape(
        draw(st.integers(1, 3)),
        2,
        draw(st.sampled_from([1, 2])),
        draw(st.booleans()),
        draw(st.sampled_from(Inputs)),
    )
    wiring = Wiring(shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keep = rng.random(wiring.n_edges) < draw(st.floats(0.1, 0.5))
    keep[wiring.edge_ids(["input->logits"])] = True
    edges = np.flatnonzero(on_a_path(wiring, keep)).astype(np.int32)
    return Circuit(wiring, edges, rng.normal(size=len(edges)).astype(np.float32), int(keep.sum()))


def all_paths(circuit: Circuit) -> list[list[dict]]:
    """Every path as a list of edges' attributes, found one by one."""
    graph = to_networkx(circuit)
    return [
        [graph.edges[edge] for edge in path] for path in nx.all_simple_edge_paths(graph, "input", "logits")
    ]


def strength(path: list[dict], largest: float) -> float:
    return float(np.prod([abs(edge["score"]) / largest for edge in path if edge["edge_id"] >= 0]))


def test_paths_depth_and_width_by_hand(hand):
    assert path_count(hand) == 5  # two ways into a0.h0, each with two ways out, and one through m0
    assert depth(hand) == 3
    assert width(hand) == 2
    assert sorted(skip_lengths(hand).tolist()) == [1, 1, 1, 1, 1, 1, 1, 2]


def test_strongest_paths_by_hand(hand):
    first, second, *others = strongest_paths(hand, 10)
    assert first.edges == ("input->a0.h0<q>", "a0.h0->m1", "m1->logits")
    assert first.nodes == ("input", "a0.h0", "m1", "logits")
    assert first.strength == pytest.approx(4 * 3 * 5 / 8**3)
    assert second.edges == ("input->a0.h0<q>", "a0.h0->logits")
    assert second.strength == pytest.approx(4 * 1 / 8**2)
    assert len(others) == 3


def test_minimum_cut_by_hand(hand):
    cut = minimum_cut(hand)
    names = hand.wiring.edge_names(cut.edges).to_pylist()
    assert names == ["m0->a1.h1<k>", "a0.h0->m1", "a0.h0->logits"]
    assert cut.value == pytest.approx(4.5)


def test_density_by_hand(hand):
    """Between input, a0.h0, m0, a1.h1, m1 and logits, all edges of the wiring, by where they end."""
    possible = {"a0.h0": 3 * 1, "m0": 2, "a1.h1": 3 * 3, "m1": 4, "logits": 5}
    assert density(hand) == pytest.approx(8 / sum(possible.values()))


def test_layer_profile_by_hand(hand):
    rows = {row["layer"]: row for row in layer_profile(hand).to_pylist()}
    assert rows[-1] == {
        "layer": -1,
        "nodes": 1,
        "in_degree": 0,
        "out_degree": 3,
        "in_strength": 0.0,
        "out_strength": 7.0,
    }
    assert rows[0] == {
        "layer": 0,
        "nodes": 2,
        "in_degree": 3,
        "out_degree": 3,
        "in_strength": 7.0,
        "out_strength": 4.5,
    }
    assert rows[1] == {
        "layer": 1,
        "nodes": 2,
        "in_degree": 2,
        "out_degree": 2,
        "in_strength": 3.5,
        "out_strength": 13.0,
    }
    assert rows[2]["in_strength"] == 14.0


def test_node_profile_agrees_with_networkx(hand):
    graph = to_networkx(hand)
    for row in node_profile(hand).to_pylist():
        assert row["in_degree"] == graph.in_degree(row["name"])
        assert row["out_degree"] == graph.out_degree(row["name"])
        edges = graph.out_edges(row["name"], data="score")
        assert row["out_strength"] == pytest.approx(sum(abs(score) for _, _, score in edges))
    assert {row["name"] for row in node_profile(hand).to_pylist()} == set(graph)


@given(circuits())
def test_paths_agree_with_their_enumeration(circuit):
    paths = all_paths(circuit)
    assert path_count(circuit) == len(paths)
    assert depth(circuit) == max(sum(edge["edge_id"] >= 0 for edge in path) for path in paths)
    largest = float(np.abs(circuit.scores).max())
    expected = sorted((strength(path, largest) for path in paths), reverse=True)[:4]
    found = strongest_paths(circuit, 4)
    assert [path.strength for path in found] == pytest.approx(expected, rel=1e-4)
    for path in found:
        for before, after in pairwise(path.edges):
            # a key/value head is fed by one edge and read by the next
            assert before.split("->")[1].split("<")[0] == after.split("->")[0] or "kv" in before


@given(circuits())
def test_the_minimum_cut_cuts_and_is_the_least(circuit):
    cut = minimum_cut(circuit)
    keep = np.zeros(circuit.wiring.n_edges, dtype=bool)
    keep[circuit.edges] = True
    weights = dict(zip(circuit.edges.tolist(), np.abs(circuit.scores).astype(float).tolist(), strict=True))
    assert sum(weights[edge] for edge in cut.edges.tolist()) == pytest.approx(cut.value, rel=1e-5)
    keep[cut.edges] = False
    assert not on_a_path(circuit.wiring, keep).any()
    flow = nx.DiGraph()
    for source, destination, attributes in to_networkx(circuit).edges(data=True):
        capacity = abs(attributes["score"]) if attributes["edge_id"] >= 0 else 1e9
        before = flow.get_edge_data(source, destination, {"capacity": 0.0})["capacity"]
        flow.add_edge(source, destination, capacity=before + capacity)
    assert cut.value == pytest.approx(nx.minimum_cut_value(flow, "input", "logits"), rel=1e-5)


@given(circuits())
def test_betweenness_counts_the_shortest_paths_that_lead_through_a_node(circuit):
    """Against every path between every two nodes, one by one."""
    graph = to_networkx(circuit)
    expected = dict.fromkeys(graph, 0.0)
    for source in graph:
        for target in graph:
            paths = list(nx.all_simple_edge_paths(graph, source, target)) if source != target else []
            shortest = [path for path in paths if len(path) == min(map(len, paths))]
            for path in shortest:
                for _, node, _ in path[:-1]:
                    expected[node] += 1 / len(shortest)
    ours = dict(zip((circuit.wiring.node_names[n] for n in circuit.nodes), betweenness(circuit), strict=True))
    assert ours == pytest.approx({node: expected[node] for node in ours})


def test_communities_have_the_modularity_they_claim(published):
    circuit = top_k(published.wiring, published.scores, 200)
    found = communities(circuit, seed=3)
    assert found == communities(circuit, seed=3)
    groups = [
        {n for n, m in zip(found.nodes, found.membership, strict=True) if m == i}
        for i in set(found.membership)
    ]
    graph = nx.MultiGraph()
    for source, destination, score in to_networkx(circuit).edges(data="score"):
        graph.add_edge(source, destination, weight=abs(score))
    assert found.modularity == pytest.approx(nx.community.modularity(graph, groups), abs=1e-6)
    assert found.modularity > 0.3


def test_an_empty_circuit_has_measures_too():
    wiring = Wiring(Shape(2, 2))
    empty = Circuit(wiring, np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32), 3)
    assert summary(empty) == {
        "requested": 3,
        "kept": 0,
        "nodes": 0,
        "heads": 0,
        "strength": 0.0,
        "density": 0.0,
        "depth": 0,
        "width": 0,
        "mean_skip": 0.0,
        "paths": 0,
        "strongest_path": 0.0,
        "minimum_cut": 0.0,
        "cut_edges": 0,
        "largest_betweenness": 0.0,
        "communities": 0,
        "modularity": 0.0,
    }


def test_a_circuit_that_leads_nowhere_has_measures_too():
    """Rewiring makes such circuits."""
    wiring = Wiring(Shape(2, 2))
    found = summary(Circuit(wiring, wiring.edge_ids(["input->m0"]), np.ones(1, dtype=np.float32), 1))
    assert (found["depth"], found["paths"], found["strongest_path"], found["minimum_cut"]) == (0, 0, 0, 0)


def test_edges_of_score_zero_lie_on_no_strong_path():
    wiring = Wiring(Shape(1, 1))
    circuit = top_k(wiring, np.zeros(8), 8)
    assert path_count(circuit) == 8
    assert strongest_paths(circuit, 3) == []
    assert minimum_cut(circuit).value == 0
