"""Circuits as igraph and networkx graphs, and back without loss.

A vertex carries ``name, kind, layer`` and, for heads, ``head``; an edge carries ``edge_id, name, slot,
score``. Heads have several slots, so both graphs are multigraphs. `input` and `logits` are always there.
What makes the way back possible is on the graph itself: ``requested`` and the fields of the shape.

With grouped inputs, the edges from a key/value head to its query heads are in the graph too, marked by
``edge_id`` -1: they are needed for paths, and are no part of the circuit.
"""

from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from ..errors import InputError
from .circuit import Circuit
from .wiring import KINDS, SLOTS, Shape, Wiring

if TYPE_CHECKING:
    import igraph


def to_igraph(circuit: Circuit) -> "igraph.Graph":
    """The circuit as a directed igraph multigraph."""
    import igraph

    nodes = _nodes(circuit)
    position = np.zeros(circuit.wiring.n_nodes, dtype=np.int64)
    position[nodes] = np.arange(len(nodes))
    src, dst, edges = _edges(circuit, nodes)
    # igraph reads pairs of Python ints faster than it reads an array
    pairs = zip(position[src].tolist(), position[dst].tolist(), strict=True)
    graph = igraph.Graph(len(nodes), edges=pairs, directed=True, graph_attrs=_graph_attributes(circuit))
    for key, values in _columns(_node_attributes(circuit.wiring, nodes)).items():
        graph.vs[key] = values
    for key, values in edges.items():
        graph.es[key] = values
    return graph


def from_igraph(graph: "igraph.Graph") -> Circuit:
    """The circuit that `to_igraph` made this graph from."""
    return _restore(
        {key: graph[key] for key in graph.attributes()}, graph.es["edge_id"], graph.es["score"], "igraph"
    )


def to_networkx(circuit: Circuit, **about: str) -> "nx.MultiDiGraph[str]":
    """The circuit as a networkx graph; a node is its name, and the key of an edge is the edge's name.

    What else is known `about` it, such as its metric, is said of the graph as a whole.
    """
    nodes = _nodes(circuit)
    names = circuit.wiring.node_names
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(**(_graph_attributes(circuit) | about))
    for node, attributes in zip(nodes, _node_attributes(circuit.wiring, nodes), strict=True):
        graph.add_node(names[node], **{k: v for k, v in attributes.items() if k != "name" and v is not None})
    src, dst, edges = _edges(circuit, nodes)
    for i, (source, destination) in enumerate(zip(src, dst, strict=True)):
        attributes = {key: values[i] for key, values in edges.items()}
        graph.add_edge(names[source], names[destination], key=attributes["name"], **attributes)
    return graph


def from_networkx(graph: "nx.MultiDiGraph[str]") -> Circuit:
    """The circuit that `to_networkx` made this graph from, also after a trip through GraphML."""
    edges = [attributes for _, _, attributes in graph.edges(data=True)]
    return _restore(
        graph.graph, [e.get("edge_id") for e in edges], [e.get("score") for e in edges], "networkx"
    )


def _restore(attributes: dict[str, Any], edges: list[Any], scores: list[Any], library: str) -> Circuit:
    try:
        shape = Shape(
            **{key: attributes[key] for key in ("layers", "heads", "kv_heads", "parallel", "inputs")}
        )
        ids = np.array(edges, dtype=np.int32)
        values = np.array(scores, dtype=np.float32)
        requested = int(attributes["requested"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"This {library} graph is not a circuit of Wirescope: {error} is missing or wrong."
        ) from error
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    return Circuit(Wiring(shape), ids[order], values[order], requested)


def _nodes(circuit: Circuit) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.union1d(circuit.nodes, [circuit.wiring.input, circuit.wiring.logits]).astype(np.int32)


def _graph_attributes(circuit: Circuit) -> dict[str, Any]:
    return circuit.wiring.shape.asdict() | {"requested": circuit.requested, "kept": circuit.kept}


def _node_attributes(wiring: Wiring, nodes: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": wiring.node_names[node],
            "kind": KINDS[wiring.node_kind[node]],
            "layer": int(wiring.node_layer[node]),
            "head": int(wiring.node_head[node]) if wiring.node_head[node] >= 0 else None,
        }
        for node in nodes
    ]


def _edges(circuit: Circuit, nodes: np.ndarray[Any, Any]) -> tuple[Any, Any, dict[str, list[Any]]]:
    """Sources, destinations and attribute columns of the kept edges and then of the feeds among the nodes."""
    wiring = circuit.wiring
    feeds = wiring.feeds[np.isin(wiring.feeds, nodes).all(axis=1)]
    names = wiring.edge_names(circuit.edges).to_pylist()
    names += [f"{wiring.node_names[shared]}->{wiring.node_names[head]}" for shared, head in feeds]
    columns = {
        "edge_id": circuit.edges.tolist() + [-1] * len(feeds),
        "name": names,
        "slot": [SLOTS[letter] for letter in wiring.edge_letter[circuit.edges]] + ["feed"] * len(feeds),
        "score": circuit.scores.astype(float).tolist() + [0.0] * len(feeds),
    }
    return np.append(circuit.src, feeds[:, 0]), np.append(circuit.dst, feeds[:, 1]), columns


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]}
