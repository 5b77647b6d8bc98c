"""Circuits saved by torch: the counterpart of the JSON that `wirescope.data` reads.

    EAP-IG         a matrix ``edges_scores[source, destination]`` and the names of its rows and columns; cells that are
                   no edge of the wiring (a later node to an earlier one) are filled and ignored
    auto-circuit   prune scores: a tensor for each input, ``{"blocks.1.hook_q_input": [head, source], ...}``, its
                   sources in the order of the model; also inside the dictionaries by task and algorithm of its cache
    ACDC           a subgraph: ``{(receiver, index, sender, index): present, ...}``, by hooks

A file is read with ``weights_only=True``: tensors and plain containers, nothing that could run.
"""

import io
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from ..data import PublishedCircuit, named_circuit, plain_config, shape_of
from ..graphs import Circuit, InputError, Inputs, Shape, Wiring, spelled
from .models import reason_of

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
        with warnings.catch_warnings(
            action="ignore"
        ):  # of a plain pickle, which is refused here in our words
            return torch.load(file, map_location=torch.get_default_device(), weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}'.") from error
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
    content: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Prune scores in a dictionary, or in those inside it, with the keys that lead there."""
    if not isinstance(content, dict) or not content or len(path) > 3:
        return
    if all(isinstance(key, str) and key.startswith("blocks.") for key in content):
        yield path, content
        return
    for key, value in content.items():
        yield from _prune_scores(value, (*path, str(key)))


def _pruned(modules: dict[str, Any], file: str, shape: Shape | None) -> PublishedCircuit:
    inputs, heads = {}, 0
    for module, scores in modules.items():
        match = _INPUT.fullmatch(module)
        if not match or not isinstance(scores, torch.Tensor) or scores.is_meta:
            raise InputError(f"'{file}' has prune scores for '{module}', which is no input of a transformer.")
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
        inputs[layer, kind] = scores.to_dense()
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
    circuit = named_circuit(edges, values, file, shape=shape, said=said, among=["Wirescope"])
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
    wiring = Wiring(shape)
    scores = _by_edge(wiring, content, "edges_scores", str(file)).astype(np.float32)
    if not np.isfinite(scores).all():
        edge = int(np.argmin(np.isfinite(scores)))
        name = wiring.edge_names([edge])[0]
        raise InputError(f"'{file}' has the score {scores[edge]} for the edge {name}: scores must be finite.")
    in_graph = _by_edge(wiring, content, "edges_in_graph", str(file)).astype(bool)
    return PublishedCircuit(wiring, scores, in_graph, plain_config(content["cfg"]))


def _by_edge(wiring: Wiring, content: dict[str, Any], key: str, file: str) -> np.ndarray[Any, Any]:
    """The values of the wiring's edges, in its order, out of a matrix with named rows and columns."""
    rows, columns, matrix = content["src_nodes"], content["dst_nodes"], content.get(key)
    if (
        not isinstance(matrix, torch.Tensor)
        or matrix.is_complex()
        or matrix.is_meta  # which has a shape, and no numbers
        or matrix.shape != (len(rows), len(columns))
    ):
        raise InputError(
            f"'{file}' is not a circuit of EAP-IG: {key} is not a matrix of {len(rows)} x {len(columns)}."
        )
    source_of = {str(name): row for row, name in enumerate(rows)}
    destination_of = {str(name): column for column, name in enumerate(columns)}
    names = wiring.edge_names()
    split = pc.split_pattern(names, "->")
    try:
        source = [source_of[name] for name in pc.list_element(split, 0).to_pylist()]
        destination = [destination_of[name] for name in pc.list_element(split, 1).to_pylist()]
    except KeyError as error:
        raise InputError(f"'{file}' lacks the node {error} of a model of {wiring.shape}.") from error
    return np.asarray(matrix.to_dense().float().numpy(force=True)[source, destination])
