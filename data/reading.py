"""A circuit out of a file, whatever wrote it; what it is shows in its content.

    MIB, EAP-IG       {"cfg": {...}, "nodes": {...}, "edges": {"input->m0": {"score": -0.2, "in_graph": true}, ...}}
    by edge name      {"A9.9->Resid End": -0.28, ...}, or true and false, or a list of names; see `graphs.names`
    node-link JSON    {"nodes": [...], "edges": [{"source": "m0", "target": "logits", "score": 0.1}, ...]}, also d3's
                      "links" and Cytoscape's "elements"; our own export says the shape of the model as well
    ACDC's drawings   "<a9.9>" -> "<a11.10_q>" [penwidth=0.6, ...], the .gv beside each picture

What torch saves is read in `extract`. A file that names some edges only is a circuit of a model whose shape must be
said; the edges that it does not name have score 0. A file without scores is a set: 1 for an edge in it, 0 for others.
(The width of a line in a drawing is no score: most effects of ACDC are below the least width.) Scores by the names of
another tool are of a loss, as that tool's are; by our names, of the metric. A file is read up to a bound.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..graphs import CONVENTIONS, Inputs, Renamed, Shape, renamed
from .files import read_bounded
from .published import PublishedCircuit, brief, check_score, is_count, mib_circuit, scored_how, wiring_of
from .run import MEMBERSHIP

_ARROW = re.compile(r'("[^"\n]*"|<[^>\n]*>|[\w.]+)\s*->\s*("[^"\n]*"|<[^>\n]*>|[\w.]+)')
MOST_BYTES = 1 << 29
"""Of a file of a circuit, unpacked: four times the JSON of an 8B model's 1.6 million edges."""
_SHAPE = ("layers", "heads", "kv_heads", "parallel", "inputs")


def read_circuit(file: Path | str, *, shape: Shape | None = None) -> PublishedCircuit:
    """Read a circuit, plain or gzipped; `shape` is the model's, for files that do not say it."""
    path = Path(file)
    try:
        text = read_bounded(path, MOST_BYTES)
        if re.match(rb"\s*(strict\s+)?digraph\b", text):
            return _drawn(text.decode(), str(file), shape)
        content = json.loads(text)
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}'.") from error
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error}.") from error
    except InputError:
        raise
    except ValueError as error:  # not JSON, or not UTF-8
        raise InputError(f"'{file}' is not JSON: {error}.") from error
    except RecursionError as error:
        raise InputError(f"'{file}' is not a circuit: it is nested too deeply.") from error
    except MemoryError as error:
        raise InputError(f"'{file}' is more than fits into the memory of this machine.") from error
    return parse_circuit(content, str(file), shape=shape)


def is_torch(file: Path) -> bool:
    """Whether torch, or pickle, saved a file: by its name, or by its first bytes."""
    if file.suffix in (".pt", ".pth", ".pkl"):
        return True
    try:
        with file.open("rb") as content:
            return content.read(4).startswith((b"PK\x03\x04", b"\x80"))
    except OSError:
        return False


def parse_circuit(content: Any, origin: str, *, shape: Shape | None = None) -> PublishedCircuit:
    """The circuit in a parsed JSON document; `origin` is for messages."""
    if isinstance(content, dict):
        if isinstance(content.get("edges"), dict) and isinstance(content.get("cfg"), dict):
            return mib_circuit(content, origin)
        rows = _rows(content)
        if rows is not None:
            return _linked(content, rows, origin, shape)
        if content and not any(isinstance(value, dict | list) for value in content.values()):
            return named_circuit(_ends(content, origin), list(content.values()), origin, shape=shape)
    if isinstance(content, list) and content and all(isinstance(name, str) for name in content):
        return named_circuit(_ends(content, origin), [True] * len(content), origin, shape=shape)
    raise InputError(
        f"'{origin}' is not a circuit: it needs the objects 'cfg' and 'edges' of MIB and EAP-IG, scores by edge name, "
        "a list of edge names, or the 'nodes' and 'edges' of node-link JSON."
    )


def named_circuit(
    edges: Sequence[tuple[str, str]],
    values: Sequence[Any],
    origin: str,
    *,
    shape: Shape | None = None,
    said: Shape | None = None,
    among: Iterable[str] = CONVENTIONS,
    sign: str | None = None,
) -> PublishedCircuit:
    """A circuit of edges by their two ends, with a score each, or with whether it is in.

    `said` is the shape that the file says; `shape` is the caller's, where it says none. Without a `sign`, the names
    tell whose scores they are.
    """
    found = renamed(edges, [at for at, value in enumerate(values) if value is False], among=among)
    if not found.names:
        raise InputError(f"'{origin}' has no edge between components of a transformer.")
    wiring = wiring_of(said or _settled(found, shape, origin))
    ids = wiring.edge_ids(found.names)
    kept = [values[at] for at in found.at]
    listed = len(np.unique(ids))
    in_graph = np.zeros(wiring.n_edges, dtype=bool)
    if all(isinstance(value, bool) for value in kept):
        open_to = [name.partition("->")[2] not in found.closed for name in found.names]
        in_graph[ids[np.array(kept) & open_to]] = True
        return PublishedCircuit(wiring, in_graph.astype(np.float32), in_graph, listed=listed, sign=MEMBERSHIP)
    if listed < len(ids):
        order = np.sort(ids)
        twice = order[:-1][order[:-1] == order[1:]][0]
        raise InputError(f"'{origin}' has the edge {wiring.edge_names([twice])[0]} more than once.")
    scores = np.zeros(wiring.n_edges, dtype=np.float32)
    scores[ids] = [
        check_score(value, name, origin, value) for value, name in zip(kept, found.names, strict=True)
    ]
    sign = sign or ("metric" if found.convention == "Wirescope" else "loss")
    return PublishedCircuit(wiring, scores, in_graph, listed=listed, sign=sign)


def _settled(found: Renamed, shape: Shape | None, origin: str) -> Shape:
    """The shape of the model: the one given, or that of the names if they are all edges of a model."""
    merged = any(re.search(r"->a\d+\.h\d+$", name) for name in found.names)
    inputs = Inputs.MERGED if merged else Inputs.SPLIT
    if shape is not None:
        if found.says_layers and shape.layers != found.layers:
            raise InputError(f"'{origin}' is of a model of {found.layers} layers, not {shape.layers}.")
        return replace(shape, inputs=inputs)
    within = any(re.match(r"a(\d+)\.h\d+->m\1$", name) for name in found.names)
    every = Shape(found.layers, found.heads, parallel=not within, inputs=inputs)
    if len(set(found.names)) == every.n_edges:
        return every
    raise InputError(
        f"'{origin}' has {len(set(found.names)):,} edges and does not say of how large a model: give --layers and "
        f"--heads (its names need {found.layers} and {found.heads} at least)."
    )


def _ends(names: Collection[str], origin: str) -> list[tuple[str, str]]:
    for name in names:
        if "->" not in name:
            raise InputError(
                f"'{origin}' is not a circuit: {name!r} is not the name of an edge, such as a9.h9->a11.h10<q> or "
                "A9.9->A11.10.Q."
            )
    return [(source, destination) for source, _, destination in (name.partition("->") for name in names)]


def _rows(content: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The edges of a node-link or Cytoscape document; None if it is neither."""
    elements = content.get("elements")
    rows: Any = content.get("edges", content.get("links"))
    if isinstance(elements, dict) and isinstance(elements.get("edges"), list):
        rows = [edge.get("data") if isinstance(edge, dict) else None for edge in elements["edges"]]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    return rows


def _linked(
    content: dict[str, Any], rows: list[dict[str, Any]], origin: str, shape: Shape | None
) -> PublishedCircuit:
    rows = [row for row in rows if row.get("slot") != "feed"]
    edges = []
    for row in rows:
        named = next((row[key] for key in ("name", "key") if "->" in str(row.get(key))), None)
        slot = f"<{row['slot']}>" if row.get("slot") in ("q", "k", "v") else ""
        source, target = row.get("source"), row.get("target")
        if not isinstance(named, str) and not (isinstance(source, str) and isinstance(target, str)):
            raise InputError(f"'{origin}' has an edge without the names of its ends: {brief(row)}.")
        edges.append(named if isinstance(named, str) else f"{source}->{target}{slot}")
    of = next((key for key in ("score", "weight") if any(key in row for row in rows)), None)
    values = [True if of is None else row.get(of) for row in rows]
    about = content.get("graph", content.get("data"))
    said = _said(about, origin) if isinstance(about, dict) and "layers" in about else None
    circuit = named_circuit(_ends(edges, origin), values, origin, shape=shape, said=said)
    method, metric = scored_how(about if isinstance(about, dict) else {})
    return replace(circuit, method=method, metric=metric)


def _said(about: dict[str, Any], origin: str) -> Shape:
    """The shape that our own export writes."""
    known = {key: about[key] for key in _SHAPE if key in about}
    counts = [known.get(key) for key in ("layers", "heads", "kv_heads")]
    try:
        if all(map(is_count, counts)) and isinstance(known.get("parallel"), bool):
            return Shape(**known)
    except ValueError:
        pass
    raise InputError(f"'{origin}' does not say its model's shape, but {brief(known)}.")


def _drawn(text: str, origin: str, shape: Shape | None) -> PublishedCircuit:
    edges = [(_bracketed(source), _bracketed(target)) for source, target in _ARROW.findall(text)]
    if not edges:
        raise InputError(f"'{origin}' is not a circuit: the drawing has no edges.")
    return named_circuit(edges, [True] * len(edges), origin, shape=shape, among=["ACDC drawing"])


def _bracketed(name: str) -> str:
    """A node of a drawing as ACDC calls it, without quotes and without the index that may follow."""
    bare = re.sub(r"_\[[^\]]*\]$", "", name.strip('"').removeprefix("<").removesuffix(">"))
    return f"<{bare}>"
