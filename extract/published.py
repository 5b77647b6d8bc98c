"""Circuits saved by torch: the counterpart of the JSON that `wirescope.data` reads.

    EAP-IG         a matrix ``edges_scores[source, destination]`` and the names of its rows and columns; cells that are
                   no edge of the wiring (a later node to an earlier one) are filled and ignored; also written
    auto-circuit   prune scores: a tensor for each input, ``{"blocks.1.hook_q_input": [head, source], ...}``, its
                   sources in the order of the model; also inside the dictionaries by task and algorithm of its cache
    ACDC           a subgraph: ``{(receiver, index, sender, index): present, ...}``, by hooks

Scores are of a loss, in all of them: positive for an edge that helps.
"""

import io
import re
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import (
    MOST_BYTES,
    SIGNS,
    PublishedCircuit,
    Run,
    brief,
    how_scored,
    mib_config,
    named_circuit,
    of_loss,
    plain_config,
    scored_how,
    shape_of,
    wiring_of,
)
from ..errors import InputError
from ..graphs import SLOTS, Circuit, Inputs, Shape, Wiring, spelled
from ..graphs.rankings import Scores
from .models import reason_of
from .saved import is_plain, load_saved

_NOT_PLAIN = "save it as a plain tensor of real numbers, not a sparse, expanded, quantised or empty one"
_INPUT = re.compile(r"blocks\.(\d{1,5})\.hook_(q_input|k_input|v_input|attn_in|mlp_in|resid_post)")


def read_pt(file: Path | str, *, shape: Shape | None = None) -> PublishedCircuit:
    """Read a circuit that torch saved; `shape` is the model's, for files that do not say it."""
    content = _loaded(file)
    if (
        isinstance(content, dict)
        and content
        and all(isinstance(key, tuple) and len(key) == 4 for key in content)
    ):
        edges = [(_hook(sender, at), _hook(receiver, to)) for receiver, to, sender, at in content]
        return named_circuit(edges, list(content.values()), str(file), shape=shape, among=["ACDC"])
    found = list(_prune_scores(content))
    if len(found) > 1:
        kinds = "; ".join(", ".join(path) for path, _ in found[:3]) + ("; ..." if len(found) > 3 else "")
        raise InputError(f"'{file}' has {len(found)} sets of prune scores ({kinds}): save one of them alone.")
    if found:
        return _pruned(found[0][1], str(file), shape)
    return _matrix(content, file)


def mib_pt(circuit: Circuit, scores: Scores, run: Run) -> bytes:
    """What `mib_json` writes, as EAP-IG's ``Graph.from_pt`` takes it: a fifteenth of the size.

    The loader takes the matrix as it is: rows are all but the logits, the columns of a layer q, then k, then v of its
    heads, then its MLP. What is no edge has -inf.
    """
    wiring, config = circuit.wiring, mib_config(run)
    layers, heads = range(run.shape.layers), range(run.shape.heads)
    columns = [
        name
        for layer in layers
        for name in (*(f"a{layer}.h{head}<{letter}>" for letter in "qkv" for head in heads), f"m{layer}")
    ]
    sources, destinations = list(wiring.node_names[:-1]), [*columns, "logits"]
    rows, columns_of = _cells(wiring, sources, destinations, "")
    every = np.full((len(sources), len(destinations)), -np.inf, dtype=np.float32)
    every[rows, columns_of] = of_loss(scores, run)
    inside = np.zeros(every.shape, dtype=bool)
    inside[rows[circuit.edges], columns_of[circuit.edges]] = True
    active = np.zeros(wiring.n_nodes, dtype=bool)
    active[circuit.nodes] = True
    content = io.BytesIO()
    torch.save(
        {
            "cfg": config,
            "src_nodes": sources,
            "dst_nodes": destinations,
            "edges_scores": torch.from_numpy(every),
            "edges_in_graph": torch.from_numpy(inside),
            "nodes_in_graph": torch.from_numpy(active[:-1].copy()),
            "sign": "loss",
            **how_scored(run),
        },
        content,
    )
    return content.getvalue()


def acdc_subgraph(circuit: Circuit) -> bytes:
    """The circuit for ACDC's ``load_subgraph(torch.load(...))``: each edge of its graph, in or out.

    It has to have every one, those inside heads and MLPs as well; these are all in.
    """
    wiring, shape = circuit.wiring, circuit.wiring.shape
    if shape.parallel or shape.inputs is not Inputs.SPLIT:
        raise InputError(
            "ACDC knows models whose heads have q, k and v inputs and whose MLPs come after the heads of their layer; "
            f"this one has {shape.inputs} inputs{' and both at once' if shape.parallel else ''}."
        )
    kept = np.zeros(wiring.n_edges, dtype=bool)
    kept[circuit.edges] = True
    edges = OrderedDict()
    names = spelled(wiring.edge_names().to_pylist(), "ACDC", shape.layers)
    for name, present in zip(names, kept.tolist(), strict=True):
        sender, receiver = map(_node, name.split("->"))
        edges[*receiver, *sender] = present
    for layer in range(shape.layers):
        for place in ((None, None, head) for head in range(shape.heads)):
            for letter in "qkv":
                inside = f"blocks.{layer}.attn.hook_{letter}"
                edges[inside, place, f"blocks.{layer}.hook_{letter}_input", place] = True
                edges[f"blocks.{layer}.attn.hook_result", place, inside, place] = True
        edges[f"blocks.{layer}.hook_mlp_out", (None,), f"blocks.{layer}.hook_mlp_in", (None,)] = True
    content = io.BytesIO()
    torch.save(edges, content)
    return content.getvalue()


def _loaded(file: Path | str) -> Any:
    try:
        return load_saved(file, MOST_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}'.") from error
    except InputError:
        raise
    except Exception as error:  # a broken file can make it fail in any way
        if Path(file).is_file() and b"TorchIndex" in Path(file).read_bytes():
            raise InputError(
                f"'{file}' is a pickle of ACDC's save_edges, which cannot be read safely: save the circuit with "
                "exp.save_subgraph('circuit.pth')."
            ) from error
        raise InputError(
            f"'{file}' is not a circuit that torch can read safely: {reason_of(error)}."
        ) from error


def _hook(name: Any, index: Any) -> str:
    """A node of ACDC as it prints it: ``blocks.9.attn.hook_result[:, :, 3]``."""
    parts = index if isinstance(index, tuple) else (index,)
    return f"{name}[{', '.join(':' if part is None else str(part) for part in parts)}]"


def _node(name: str) -> tuple[str, tuple[int | None, ...]]:
    """What `_hook` made a name of."""
    hook, _, index = name.removesuffix("]").partition("[")
    return hook, tuple(None if part == ":" else int(part) for part in index.split(", "))


def _prune_scores(
    content: Any, path: tuple[str, ...] = (), seen: set[int] | None = None
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Prune scores in a dictionary, or in those inside it, with the keys that lead there; each dictionary once."""
    seen = set() if seen is None else seen
    if not isinstance(content, dict) or not content or len(path) > 3 or id(content) in seen:
        return
    seen.add(id(content))
    if all(isinstance(key, str) and key.startswith("blocks.") for key in content):
        yield path, content
        return
    for key, value in content.items():
        yield from _prune_scores(value, (*path, str(key)), seen)


def _pruned(modules: dict[str, Any], file: str, shape: Shape | None) -> PublishedCircuit:
    inputs, heads = {}, 0
    for module, scores in modules.items():
        match = _INPUT.fullmatch(module)
        if not match or not isinstance(scores, torch.Tensor):
            raise InputError(
                f"'{file}' has prune scores for {brief(module)}, which is no input of a transformer."
            )
        if not is_plain(scores):
            raise InputError(f"'{file}' has no numbers for '{module}' that can be read: {_NOT_PLAIN}.")
        layer, kind = int(match[1]), match[2]
        per_head = kind.endswith("_input") or kind == "attn_in"
        if scores.ndim == 2 + per_head:
            raise InputError(
                f"'{file}' has prune scores for each token position in '{module}', which a wiring does not have: sum "
                "them over the first dimension."
            )
        heads = heads or (len(scores) if per_head and scores.ndim else 0)
        if scores.ndim != 1 + per_head or (per_head and len(scores) != heads):
            raise InputError(f"'{file}' has prune scores of the shape {tuple(scores.shape)} for '{module}'.")
        inputs[layer, kind] = scores
    if not heads:
        raise InputError(f"'{file}' has prune scores for no attention head.")
    kinds = {kind for _, kind in inputs}
    first_mlp = inputs.get((0, "mlp_in"))
    said = Shape(
        layers=1 + max(layer for layer, _ in inputs),
        heads=heads,
        parallel=first_mlp is not None and len(first_mlp) == 1,
        inputs=Inputs.MERGED if "attn_in" in kinds else Inputs.SPLIT,
    )
    wiring_of(said)
    width = max(scores.shape[-1] for scores in inputs.values())
    sources = list(islice(_sources(said, mlps="mlp_in" in kinds), width))
    edges: list[tuple[str, str]] = []
    values: list[Any] = []
    for (layer, kind), scores in inputs.items():
        ends = {"mlp_in": [f"m{layer}"], "resid_post": ["logits"]}.get(kind) or [
            f"a{layer}.h{head}" + (f"<{kind[0]}>" if kind != "attn_in" else "") for head in range(heads)
        ]
        if scores.shape[-1] > len(sources):
            raise InputError(
                f"'{file}' has prune scores from {scores.shape[-1]:,} sources; a model of {said} has {len(sources):,}."
            )
        edges += [(source, end) for end in ends for source in sources[: scores.shape[-1]]]
        values += scores.flatten().tolist()
    circuit = named_circuit(edges, values, file, shape=shape, said=said, among=["Wirescope"], sign="loss")
    if "mlp_in" in kinds and circuit.listed != said.n_edges:
        raise InputError(
            f"'{file}' has {circuit.listed:,} of the {said.n_edges:,} edges of a model of {said}."
        )
    return circuit


def _sources(shape: Shape, *, mlps: bool) -> Iterator[str]:
    """What writes to the residual stream, in auto-circuit's order; an attention-only model has no MLPs."""
    yield "input"
    for layer in range(shape.layers):
        yield from (f"a{layer}.h{head}" for head in range(shape.heads))
        if mlps:
            yield f"m{layer}"


def _matrix(content: Any, file: Path | str) -> PublishedCircuit:
    wanted = {"cfg": dict, "src_nodes": list, "dst_nodes": list, "edges_scores": torch.Tensor}
    for key, kind in wanted.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise InputError(
                f"'{file}' is not a circuit of EAP-IG, prune scores of auto-circuit or a subgraph of ACDC: it has no "
                f"{key}, or not of its kind."
            )
    shape = shape_of(content["cfg"], str(file))
    cells = len(content["src_nodes"]) * len(content["dst_nodes"])
    if cells < shape.n_edges:
        raise InputError(f"'{file}' has room for {cells:,} edges; a model of {shape} has {shape.n_edges:,}.")
    wiring = wiring_of(shape)
    rows, columns = content["src_nodes"], content["dst_nodes"]
    cells_of = _cells(wiring, rows, columns, str(file))
    scores, in_graph = (
        _numbers(content.get(key), (len(rows), len(columns)), key, str(file))[cells_of]
        for key in ("edges_scores", "edges_in_graph")
    )
    scores = scores.astype(np.float32)
    if not np.isfinite(scores).all():
        edge = int(np.argmin(np.isfinite(scores)))
        name = wiring.edge_names([edge])[0]
        raise InputError(f"'{file}' has the score {scores[edge]} for the edge {name}: scores must be finite.")
    sign = content.get("sign", "loss")
    if sign not in SIGNS:
        raise InputError(f"'{file}' has scores of the sign {brief(sign)}: it should be {' or '.join(SIGNS)}.")
    method, metric = scored_how(content)
    known = plain_config(content["cfg"])
    return PublishedCircuit(
        wiring, scores, in_graph.astype(bool), known, sign=sign, method=method, metric=metric
    )


def _cells(
    wiring: Wiring, rows: list[Any], columns: list[Any], file: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the wiring's edges are, in its order, in a matrix with named rows and columns."""
    row_of = {str(name): row for row, name in enumerate(rows)}
    column_of = {str(name): column for column, name in enumerate(columns)}
    row = np.zeros(wiring.n_nodes, dtype=np.int64)
    column = np.zeros((wiring.n_nodes, len(SLOTS)), dtype=np.int64)  # [node, letter]
    try:
        for node in wiring.sources:
            row[node] = row_of[wiring.node_names[node]]
        for node, letter in zip(wiring.slot_node, wiring.slot_letter, strict=True):
            column[node, letter] = column_of[
                wiring.node_names[node] + (f"<{SLOTS[letter]}>" if letter else "")
            ]
    except KeyError as error:
        raise InputError(f"'{file}' lacks the node {error} of a model of {wiring.shape}.") from error
    return row[wiring.edge_src], column[wiring.edge_dst, wiring.edge_letter]


def _numbers(matrix: Any, shape: tuple[int, int], key: str, file: str) -> NDArray[Any]:
    if not is_plain(matrix) or matrix.shape != shape:
        raise InputError(
            f"'{file}' is not a circuit of EAP-IG: {key} is not a matrix of {shape[0]} x {shape[1]} ({_NOT_PLAIN})."
        )
    numbers: NDArray[Any] = matrix.float().numpy(force=True)
    return numbers
