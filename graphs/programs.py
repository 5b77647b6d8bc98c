"""Circuits as files that graph programs open: GraphML, GEXF (Gephi), Cytoscape and node-link JSON (networkx, d3).

All have every kept edge with its score; but for node-link JSON they also have nodes where a wiring diagram has them
(heads in columns, MLPs on their right, a row a layer, upwards) and what the programs ask for:

- ``weight`` is |score|: Gephi drops an edge of weight 0 and does not draw a negative one, so that an edge without a
  strength (score 0, or a feed from a key/value head) has a weight next to nothing.
- An edge has an id of its own, ``e`` and its edge id; GraphML allows letters, digits and ``.-_:`` in one.
- Gephi adds up parallel edges unless they differ in *kind*: in GEXF that is the slot, q, k or v.
- GraphML's keys are named after their attributes: Gephi takes the keys ``d3`` and ``d7`` for yEd's labels.

What else is known `about` a circuit, its method and metric, the three that can say it say it of the graph as a whole.
GraphML and node-link JSON keep the circuit whole: `from_networkx` has it back. GEXF has but a sentence for what is
said of the circuit as a whole.
"""

import io
import json
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import numpy as np

from .circuit import Circuit
from .convert import to_networkx
from .wiring import Wiring

_LEAST = 1e-9
_COLUMN, _ROW = 100.0, 150.0
_GEXF = "http://gexf.net/1.3"
_TYPES = {str: "string", int: "integer", float: "double"}


def graphml(circuit: Circuit, **about: str) -> bytes:
    """The circuit as GraphML, which keeps all of it."""
    content = io.BytesIO()
    nx.write_graphml_xml(_laid_out(circuit, **about), content, named_key_ids=True)
    return content.getvalue()


def gexf(circuit: Circuit) -> bytes:
    """The circuit as GEXF 1.3, for Gephi."""
    graph = _laid_out(circuit)
    root = ElementTree.Element("gexf", {"xmlns": _GEXF, "xmlns:viz": f"{_GEXF}/viz", "version": "1.3"})
    meta = _inside(root, "meta")
    _inside(meta, "creator").text = "Wirescope"
    _inside(meta, "description").text = _sentence(circuit)
    body = _inside(root, "graph", defaultedgetype="directed", mode="static")
    columns = {
        "node": _columns(body, "node", [row for _, row in graph.nodes(data=True)], {"label", "x", "y"}),
        "edge": _columns(body, "edge", [row for _, _, row in graph.edges(data=True)], {"weight"}),
    }
    nodes = _inside(body, "nodes")
    for name, row in graph.nodes(data=True):
        node = _inside(nodes, "node", id=name, label=name)
        _values(node, row, columns["node"])
        _inside(node, "viz:position", x=str(row["x"]), y=str(row["y"]), z="0.0")
    edges = _inside(body, "edges")
    for source, target, key, row in graph.edges(keys=True, data=True):
        ends = {"id": key, "source": source, "target": target, "weight": str(row["weight"])}
        edge = _inside(edges, "edge", **ends, **({"kind": row["slot"]} if "slot" in row else {}))
        _values(edge, row, columns["edge"])
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def cytoscape(circuit: Circuit, **about: str) -> bytes:
    """The circuit as Cytoscape's JSON (``.cyjs``), which Cytoscape and Cytoscape.js open."""
    graph = _laid_out(circuit, **about)
    nodes = [
        {
            "data": {
                "id": name,
                "name": name,
                **{k: v for k, v in row.items() if k not in ("label", "x", "y")},
            },
            "position": {"x": row["x"], "y": -row["y"]},  # downwards is positive there
        }
        for name, row in graph.nodes(data=True)
    ]
    edges = [
        {"data": {"id": key, "source": source, "target": target, "interaction": row.get("slot", ""), **row}}
        for source, target, key, row in graph.edges(keys=True, data=True)
    ]
    whole = {"name": _sentence(circuit), **graph.graph}
    return json.dumps({"data": whole, "elements": {"nodes": nodes, "edges": edges}}).encode()


def node_link(circuit: Circuit, **about: str) -> bytes:
    """The circuit as networkx's node-link JSON, which keeps all of it."""
    return json.dumps(nx.node_link_data(to_networkx(circuit, **about), edges="edges")).encode()


def _laid_out(circuit: Circuit, **about: str) -> "nx.MultiDiGraph[str]":
    """The circuit's graph with labels, places and weights; the key of an edge is its id. Empty values are left out."""
    plain = to_networkx(circuit, **about)
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(**plain.graph)
    places = _places(circuit.wiring)
    for name, row in plain.nodes(data=True):
        x, y = places[name]
        graph.add_node(name, label=name, **row, x=x, y=y)
    for number, (source, target, row) in enumerate(plain.edges(data=True)):
        key = f"e{row['edge_id']}" if row["edge_id"] >= 0 else f"feed{number}"
        known = {name: value for name, value in row.items() if value != ""}
        graph.add_edge(source, target, key=key, **known, weight=abs(row["score"]) or _LEAST)
    return graph


def _places(wiring: Wiring) -> dict[str, tuple[float, float]]:
    """Where each node stands, as in a wiring diagram: shared heads half a row before those that they feed."""
    shape = wiring.shape
    column = np.where(wiring.node_head >= 0, wiring.node_head, shape.heads).astype(float)
    row = wiring.node_layer.astype(float)
    shared, group = wiring.is_kind("kv"), shape.heads // shape.kv_heads
    row[shared] -= 0.5
    column[shared] = wiring.node_head[shared] * group + (group - 1) / 2
    column[wiring.is_kind("input") | wiring.is_kind("logits")] = shape.heads / 2
    places = zip((_COLUMN * column).tolist(), (_ROW * row).tolist(), strict=True)
    return dict(zip(wiring.node_names, places, strict=True))


def _sentence(circuit: Circuit) -> str:
    shape = circuit.wiring.shape
    return (
        f"A circuit of {circuit.kept} edges ({circuit.requested} requested) in a model of {shape}, "
        f"{shape.inputs} inputs"
    )


def _inside(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _columns(
    body: ElementTree.Element, of: str, rows: list[dict[str, Any]], elsewhere: set[str]
) -> dict[str, str]:
    """Declare the attributes of nodes or edges that have no place of their own; their ids by name."""
    types = {
        name: _TYPES[type(value)] for row in rows for name, value in row.items() if name not in elsewhere
    }
    attributes = _inside(body, "attributes", **{"class": of})
    for number, (name, kind) in enumerate(types.items()):
        _inside(attributes, "attribute", id=str(number), title=name, type=kind)
    return {name: str(number) for number, name in enumerate(types)}


def _values(parent: ElementTree.Element, row: dict[str, Any], columns: dict[str, str]) -> None:
    values = _inside(parent, "attvalues")
    for name, column in columns.items():
        if name in row:
            _inside(values, "attvalue", **{"for": column, "value": str(row[name])})
