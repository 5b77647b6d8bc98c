import io

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.errors import InputError
from wirescope.graphs import (
    Inputs,
    Shape,
    Wiring,
    from_igraph,
    from_networkx,
    graphml,
    to_igraph,
    to_networkx,
    top_k,
)

shapes = st.builds(Shape, st.integers(1, 3), st.just(4), st.just(2), st.booleans(), st.sampled_from(Inputs))


@given(shapes, st.integers(0, 2**32 - 1), st.floats(0.05, 1))
def test_a_circuit_survives_igraph_networkx_and_graphml(shape, seed, share):
    wiring = Wiring(shape)
    scores = np.random.default_rng(seed).normal(size=wiring.n_edges)
    circuit = top_k(wiring, scores, max(1, int(share * wiring.n_edges)))
    assert from_igraph(to_igraph(circuit)) == circuit
    assert from_networkx(to_networkx(circuit)) == circuit
    assert from_networkx(nx.read_graphml(io.BytesIO(graphml(circuit)), force_multigraph=True)) == circuit


def test_both_libraries_see_the_same_graph(published):
    circuit = top_k(published.wiring, published.scores, 200)
    graph, other = to_igraph(circuit), to_networkx(circuit)
    assert graph.vcount() == other.number_of_nodes() == len(circuit.nodes)
    assert graph.ecount() == other.number_of_edges() == circuit.kept
    assert graph.is_dag()
    edge = graph.es.find(name="a9.h9->a11.h10<q>")
    assert graph.vs[edge.source]["name"] == "a9.h9"
    assert edge["score"] == other.edges["a9.h9", "a11.h10", "a9.h9->a11.h10<q>"]["score"]
    assert other.nodes["a9.h9"] == {"kind": "head", "layer": 9, "head": 9}
    assert other.nodes["m0"] == {"kind": "mlp", "layer": 0}


def test_a_graph_that_is_no_circuit_is_refused():
    with pytest.raises(InputError, match="not a circuit of Wirescope: 'layers' is missing"):
        from_networkx(nx.MultiDiGraph([("a", "b")]))
