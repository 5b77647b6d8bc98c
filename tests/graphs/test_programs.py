"""Files for graph programs. What Gephi and Cytoscape do with them cannot be run here; what they ask for is pinned."""

import io
import json
import re
import shutil
import subprocess
from xml.etree import ElementTree

import igraph
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
    cytoscape,
    from_networkx,
    gexf,
    graphml,
    node_link,
    top_k,
)

NAMESPACE = "{http://gexf.net/1.3}"


@pytest.fixture(scope="module")
def circuit(published) -> Circuit:
    return top_k(published.wiring, published.scores, 200)


@pytest.fixture(scope="module")
def grouped() -> Circuit:
    """A circuit with feeds, and with edges whose score is 0."""
    wiring = Wiring(Shape(2, 4, 2, inputs=Inputs.GROUPED))
    scores = np.random.default_rng(0).normal(size=wiring.n_edges).astype(np.float32)
    scores[:3] = 0
    return top_k(wiring, scores, wiring.n_edges)


def edges_of(circuit: Circuit) -> list[dict]:
    """The edges of the GEXF file, as its elements have them, with the attributes by their titles."""
    root = ElementTree.fromstring(gexf(circuit))
    (attributes,) = root.iterfind(f".//{NAMESPACE}attributes[@class='edge']")
    titles = {one.get("id"): one.get("title") for one in attributes}
    return [
        dict(edge.attrib)
        | {titles[one.get("for")]: one.get("value") for one in edge.iter(f"{NAMESPACE}attvalue")}
        for edge in root.iter(f"{NAMESPACE}edge")
    ]


def test_networkx_reads_every_file(circuit):
    names = set(circuit.table()["name"].to_pylist())
    read = [
        nx.read_graphml(io.BytesIO(graphml(circuit)), force_multigraph=True),
        nx.read_gexf(io.BytesIO(gexf(circuit)), version="1.3"),
        nx.node_link_graph(json.loads(node_link(circuit)), edges="edges"),
    ]
    for graph in read:
        assert {row["name"] for _, _, row in graph.edges(data=True)} == names
        assert graph.nodes["a9.h9"]["layer"] == 9
        assert graph.is_directed()


@given(
    st.builds(Shape, st.integers(1, 3), st.just(4), st.just(2), st.booleans(), st.sampled_from(Inputs)),
    st.integers(0, 2**32 - 1),
    st.floats(0.05, 1),
)
def test_a_circuit_survives_graphml_and_node_link_json(shape, seed, share):
    wiring = Wiring(shape)
    scores = np.random.default_rng(seed).normal(size=wiring.n_edges)
    circuit = top_k(wiring, scores, max(1, int(share * wiring.n_edges)))
    assert from_networkx(nx.read_graphml(io.BytesIO(graphml(circuit)), force_multigraph=True)) == circuit
    assert from_networkx(nx.node_link_graph(json.loads(node_link(circuit)), edges="edges")) == circuit


def test_igraph_reads_graphml_with_scores_weights_and_places(circuit, tmp_path):
    (tmp_path / "c.graphml").write_bytes(graphml(circuit))
    graph = igraph.Graph.Read_GraphML(str(tmp_path / "c.graphml"))
    assert (graph.vcount(), graph.ecount(), graph.is_directed()) == (38, 179, True)
    assert graph["layers"] == 12
    assert graph["parallel"] is False
    edge = graph.es.find(name="a9.h9->a11.h10<q>")
    assert graph.vs[edge.source]["label"] == "a9.h9"
    assert edge["weight"] == abs(edge["score"]) > 0
    assert (graph.vs.find(label="a9.h9")["x"], graph.vs.find(label="a9.h9")["y"]) == (900, 1350)


def test_ids_in_graphml_are_of_the_characters_that_its_schema_allows(circuit, grouped):
    for one in (circuit, grouped):
        root = ElementTree.fromstring(graphml(one))
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert all(re.fullmatch(r"[\w.:-]+", name) for name in ids)
        assert len(set(ids)) == len(ids)


def test_no_key_of_graphml_is_taken_for_a_label_of_another_program(circuit):
    """Gephi reads the keys d3 (of nodes) and d7 (of edges) as yEd's labels, whatever they are called."""
    root = ElementTree.fromstring(graphml(circuit))
    keys = {key.get("id"): key.get("attr.name") for key in root.iter() if key.tag.endswith("}key")}
    assert all(name == title for name, title in keys.items())
    assert {"label", "weight", "x", "y"} <= keys.keys()


def test_edges_are_told_apart_in_gexf_by_id_and_by_kind(circuit, grouped):
    """Programs drop an edge whose id they have seen; Gephi adds up parallel edges of one kind."""
    for one, count in ((circuit, 179), (grouped, 82 + 8)):
        edges = edges_of(one)
        assert len(edges) == len({edge["id"] for edge in edges}) == count
        assert len({(e["source"], e["target"], e.get("kind")) for e in edges}) == count
        assert {e.get("kind") for e in edges} - {None, "feed"} == {"q", "k", "v"}


def test_every_weight_is_above_zero_and_the_score_keeps_its_sign(circuit, grouped):
    """Gephi leaves out edges of weight 0, and does not draw negative ones."""
    for one in (circuit, grouped):
        edges = edges_of(one)
        for edge in edges:
            weight, score = float(edge["weight"]), float(edge["score"])
            assert weight == abs(score) if score else 0 < weight < 1e-6
        scores = [float(edge["score"]) for edge in edges if int(edge["edge_id"]) >= 0]
        assert np.array_equal(np.sort(np.array(scores, dtype=np.float32)), np.sort(one.scores))
        assert min(scores) < 0


def test_no_two_nodes_stand_in_one_place(circuit, grouped):
    for one in (circuit, grouped):
        nodes = json.loads(cytoscape(one))["elements"]["nodes"]
        assert len({tuple(node["position"].values()) for node in nodes}) == len(nodes)
        height = {node["data"]["id"]: node["position"]["y"] for node in nodes}
        assert height["input"] == max(height.values())  # downwards is positive
        assert height["logits"] == min(height.values())


def test_cytoscape_json_is_what_cytoscape_asks_for(circuit):
    """Ids are texts, each is used once, and ends of edges are ids of nodes."""
    content = json.loads(cytoscape(circuit))
    nodes = [node["data"] for node in content["elements"]["nodes"]]
    edges = [edge["data"] for edge in content["elements"]["edges"]]
    known = {node["id"] for node in nodes}
    assert {edge["source"] for edge in edges} | {edge["target"] for edge in edges} <= known
    ids = [one["id"] for one in nodes + edges]
    assert len(set(ids)) == len(ids) == 38 + 179
    assert all(isinstance(name, str) for name in ids)
    assert content["data"]["requested"] == 200


@pytest.mark.parametrize("write", [graphml, gexf, cytoscape, node_link])
def test_the_same_circuit_gives_the_same_bytes_and_an_empty_one_gives_a_file(circuit, published, write):
    assert write(circuit) == write(circuit)
    assert b"logits" in write(top_k(published.wiring, published.scores, 1))


READ = """
const fs = require('fs');
const Graph = require('graphology');
const cytoscape = require('cytoscape');
const [gexf, graphml, cyjs] = process.argv.slice(1).map((file) => fs.readFileSync(file, 'utf8'));
const strict = {addMissingNodes: false, allowUndeclaredAttributes: false};
const graphs = [
  require('graphology-gexf').parse(Graph, gexf, strict),
  require('graphology-graphml').parse(Graph, graphml, {addMissingNodes: false}),
];
const answers = graphs.map((graph) => ({
  type: [graph.type, graph.multi],
  nodes: Object.fromEntries(graph.mapNodes((id, {label, layer, x, y}) => [id, [label, layer, x, y]])),
  edges: graph.mapEdges((id, {name, score, weight}, source, target) => [id, source, target, name, score, weight]),
}));
const {data, elements} = JSON.parse(cyjs);
const cy = cytoscape({headless: true, data, elements, layout: {name: 'preset'}});
answers.push({
  type: ['directed', true],
  nodes: Object.fromEntries(cy.nodes().map((node) =>
    [node.id(), [node.data('name'), node.data('layer'), node.position('x'), 0 - node.position('y')]])),
  edges: cy.edges().map((edge) => ['id', 'source', 'target', 'name', 'score', 'weight'].map((key) => edge.data(key))),
});
console.log(JSON.stringify(answers));
"""
PACKAGES = ("graphology", "graphology-gexf", "graphology-graphml", "cytoscape")


def node(script: str, *files: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", "-e", script, *map(str, files)], capture_output=True, text=True)


@pytest.mark.skipif(
    shutil.which("node") is None or node("".join(f"require('{name}');" for name in PACKAGES)).returncode != 0,
    reason="needs node, and on NODE_PATH " + ", ".join(PACKAGES),
)
@pytest.mark.parametrize("which", ["circuit", "grouped"])
def test_the_readers_of_gephi_lite_and_cytoscape_js_see_the_circuit(which, request, tmp_path):
    circuit = request.getfixturevalue(which)
    files = [tmp_path / name for name in ("c.gexf", "c.graphml", "c.cyjs")]
    for file, write in zip(files, (gexf, graphml, cytoscape), strict=True):
        file.write_bytes(write(circuit))
    done = node(READ, *files)
    assert done.returncode == 0, done.stderr
    first, *others = json.loads(done.stdout)
    assert first["type"] == ["directed", True]
    scores = {edge[0]: edge[4] for edge in first["edges"] if edge[0].startswith("e")}
    assert {edge: np.float32(score) for edge, score in scores.items()} == {
        f"e{edge}": score for edge, score in zip(circuit.edges, circuit.scores, strict=True)
    }
    assert len(first["nodes"]) == len(circuit.nodes)
    assert others == [first, first]
