"""What a circuit looks like as a graph: measures of one circuit, by igraph's algorithms.

Strength of an edge is |score|. Edges into different slots of a head are different edges, so a path is a
sequence of edges, not of nodes. `layer` runs from -1 (`input`) to the number of layers (`logits`).

The edges from a key/value head to its query heads (grouped inputs) lie on paths but are no edges of the
circuit: they cost nothing on a path, cannot be cut, and are not counted.

    >>> from wirescope.graphs import Shape, Wiring, top_k
    >>> circuit = top_k(Wiring(Shape(layers=1, heads=1)), [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3], k=5)
    >>> depth(circuit), path_count(circuit), density(circuit)
    (2, 3, 0.625)
    >>> strongest_paths(circuit, 1)[0].edges
    ('input->a0.h0<v>', 'a0.h0->logits')
    >>> minimum_cut(circuit).edges
    array([5, 6, 7], dtype=int32)
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import igraph
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .circuit import Circuit
from .convert import to_igraph
from .wiring import Ids

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Path:
    """A path from `input` to `logits`."""

    nodes: tuple[str, ...]
    edges: tuple[str, ...]
    strength: float
    """The product of the strengths of its edges, each as a share of the circuit's strongest edge."""


@dataclass(frozen=True)
class Cut:
    """Edges that separate `input` from `logits` when removed, of least total strength."""

    value: float
    edges: Ids


@dataclass(frozen=True)
class Communities:
    """A partition of the circuit's nodes."""

    nodes: tuple[str, ...]
    membership: tuple[int, ...]
    modularity: float


def summary(circuit: Circuit, *, seed: int = 0) -> dict[str, float]:
    """Every measure that is a single number, by name."""
    skips = skip_lengths(circuit)
    cut = minimum_cut(circuit)
    groups = communities(circuit, seed=seed)
    return {
        "requested": circuit.requested,
        "kept": circuit.kept,
        "nodes": len(circuit.nodes),
        "heads": len(circuit.heads),
        "strength": float(np.abs(circuit.scores).sum(dtype=np.float64)),
        "density": density(circuit),
        "depth": depth(circuit),
        "width": width(circuit),
        "mean_skip": float(skips.mean()) if len(skips) else 0.0,
        "paths": path_count(circuit),
        "strongest_path": next((path.strength for path in strongest_paths(circuit, 1)), 0.0),
        "minimum_cut": cut.value,
        "cut_edges": len(cut.edges),
        "largest_betweenness": float(betweenness(circuit).max(initial=0.0)),
        "communities": len(set(groups.membership)),
        "modularity": groups.modularity,
    }


def layer_profile(circuit: Circuit) -> pa.Table:
    """Nodes, degree and strength by layer, in and out, from `input` (-1) to `logits`."""
    layers = circuit.wiring.shape.layers
    layer_of = circuit.wiring.node_layer + 1  # counted from 0
    size = layers + 2

    def count(nodes: Ids, weights: Floats | None = None) -> NDArray[Any]:
        return np.bincount(layer_of[nodes], weights, minlength=size)

    strength = np.abs(circuit.scores).astype(np.float64)
    return pa.table(
        {
            "layer": np.arange(-1, layers + 1, dtype=np.int32),
            "nodes": count(circuit.nodes),
            "in_degree": count(circuit.dst),
            "out_degree": count(circuit.src),
            "in_strength": count(circuit.dst, strength),
            "out_strength": count(circuit.src, strength),
        }
    )


def node_profile(circuit: Circuit, *, seed: int = 0) -> pa.Table:
    """Degree, strength, betweenness and community of each node of the circuit."""
    wiring, nodes = circuit.wiring, circuit.nodes
    strength = np.abs(circuit.scores).astype(np.float64)

    def count(at: Ids, weights: Floats | None = None) -> NDArray[Any]:
        return np.bincount(at, weights, minlength=wiring.n_nodes)[nodes]

    groups = communities(circuit, seed=seed)
    member = dict(zip(groups.nodes, groups.membership, strict=True))
    return pa.table(
        {
            "name": [wiring.node_names[node] for node in nodes],
            "layer": wiring.node_layer[nodes],
            "in_degree": count(circuit.dst),
            "out_degree": count(circuit.src),
            "in_strength": count(circuit.dst, strength),
            "out_strength": count(circuit.src, strength),
            "betweenness": betweenness(circuit),
            "community": [member[wiring.node_names[node]] for node in nodes],
        }
    )


def density(circuit: Circuit) -> float:
    """The share that is kept of all edges that the wiring has between the circuit's nodes."""
    inside = np.zeros(circuit.wiring.n_nodes, dtype=bool)
    inside[circuit.nodes] = True
    possible = int((inside[circuit.wiring.edge_src] & inside[circuit.wiring.edge_dst]).sum())
    return circuit.kept / possible if possible else 0.0


def depth(circuit: Circuit) -> int:
    """The number of edges on the longest path from `input` to `logits`; 0 where there is none."""
    graph = to_igraph(circuit)
    lengths = [-1.0 if edge >= 0 else 0.0 for edge in graph.es["edge_id"]]
    # a wiring has no cycles, so the shortest path with all lengths negated is the longest one
    (distance,) = graph.distances("input", ["logits"], weights=lengths, algorithm="bellman_ford")
    return int(-distance[0]) if np.isfinite(distance[0]) else 0


def width(circuit: Circuit) -> int:
    """The largest number of its nodes in one layer."""
    return int(np.bincount(circuit.wiring.node_layer[circuit.nodes] + 1).max(initial=0))


def skip_lengths(circuit: Circuit) -> Ids:
    """Destination layer - source layer of each edge: 0 for a head that writes to its own layer's MLP."""
    layer = circuit.wiring.node_layer
    return layer[circuit.dst] - layer[circuit.src]


def path_count(circuit: Circuit) -> int:
    """The number of paths from `input` to `logits`, exactly, however many."""
    paths = dict.fromkeys(range(circuit.wiring.n_nodes), 0)
    paths[circuit.wiring.input] = 1
    pairs = np.concatenate([np.stack([circuit.src, circuit.dst], axis=1), circuit.wiring.feeds])
    # node ids are topological, so all paths into a source are counted before its edges are followed
    for source, destination in pairs[np.argsort(pairs[:, 0], kind="stable")].tolist():
        paths[destination] += paths[source]
    return paths[circuit.wiring.logits]


def strongest_paths(circuit: Circuit, k: int) -> list[Path]:
    """The k paths from `input` to `logits` with the largest product of strengths, the strongest first."""
    graph = to_igraph(circuit)
    graph.delete_edges([e.index for e in graph.es if e["edge_id"] >= 0 and e["score"] == 0])
    strongest = float(np.abs(circuit.scores).max(initial=0.0))
    share = np.array([abs(e["score"]) / strongest if e["edge_id"] >= 0 else 1.0 for e in graph.es])
    if graph.vcount() - 1 not in graph.subcomponent(0, mode="out"):
        return []  # every path has an edge of score 0
    lengths = -np.log(share)  # the product of strengths is largest where the sum of lengths is least
    found = graph.get_k_shortest_paths("input", "logits", k=k, weights=lengths.tolist(), output="epath")
    names = graph.vs["name"]
    return [
        Path(
            nodes=(names[graph.es[path[0]].source], *(names[graph.es[edge].target] for edge in path)),
            edges=tuple(graph.es[edge]["name"] for edge in path if graph.es[edge]["edge_id"] >= 0),
            strength=float(np.exp(-lengths[path].sum())),
        )
        for path in found
        if path
    ]


def minimum_cut(circuit: Circuit) -> Cut:
    """The weakest set of edges, by total |score|, that separates `input` from `logits`."""
    if not circuit.kept:
        return Cut(0.0, np.empty(0, dtype=np.int32))
    graph = to_igraph(circuit)
    uncuttable = 1.0 + sum(abs(score) for score in graph.es["score"])
    capacity = [abs(e["score"]) if e["edge_id"] >= 0 else uncuttable for e in graph.es]
    cut = graph.st_mincut(0, graph.vcount() - 1, capacity)
    edges = np.sort(np.array([graph.es[edge]["edge_id"] for edge in cut.cut], dtype=np.int32))
    return Cut(float(cut.value), edges)


def betweenness(circuit: Circuit) -> Floats:
    """For each node of the circuit, the share of shortest paths between two others that lead through it, summed.

    Shortest in edges, whatever their scores; the step from a key/value head to a query head counts as one.
    """
    graph = to_igraph(circuit)
    by_name = dict(zip(graph.vs["name"], graph.betweenness(directed=True), strict=True))
    return np.array([by_name[circuit.wiring.node_names[node]] for node in circuit.nodes])


def communities(circuit: Circuit, *, seed: int = 0) -> Communities:
    """Leiden communities of the circuit without directions, weighted by strength, and their modularity."""
    if not circuit.kept:
        return Communities((), (), 0.0)
    graph = to_igraph(circuit)
    graph.delete_edges(edge_id_lt=0)
    weights = np.abs(graph.es["score"]).tolist()
    if not sum(weights):
        return Communities(tuple(graph.vs["name"]), tuple(range(graph.vcount())), 0.0)
    graph = graph.as_undirected(mode="each")
    with igraph_seed(seed):
        found = graph.community_leiden(objective_function="modularity", weights=weights, n_iterations=-1)
    modularity = graph.modularity(found.membership, weights=weights)
    return Communities(tuple(graph.vs["name"]), tuple(found.membership), float(modularity))


@contextmanager
def igraph_seed(seed: int) -> Iterator[None]:
    """igraph's random numbers from a seed; afterwards from Python's generator again, igraph's default."""
    igraph.set_random_number_generator(random.Random(seed))  # noqa: S311
    try:
        yield
    finally:
        igraph.set_random_number_generator(random)
