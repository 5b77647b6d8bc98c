"""Circuits as they are published: the JSON of the MIB benchmark and of EAP-IG, read and written.

    {"cfg":   {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, ...},
     "edges": {"input->a0.h0<q>": {"score": -0.0003, "in_graph": false}, ...}}

Such a file has one score an edge, the mean over prompts that it does not name. In the store it becomes a
run with a single prompt, number 0, that has no text. Inputs are always split into q, k and v.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from ..graphs import Circuit, InputError, Inputs, Shape, Wiring, spelled
from ..graphs.circuit import Scores
from ..graphs.wiring import Mask
from .run import SIGN, Run
from .schema import TABLES
from .store import write_run

EMBEDDED = Path(__file__).parent / "circuits" / "gpt2-small-ioi.json.gz"
"""GPT-2 small on indirect object identification, scored with EAP-IG; published with the MIB benchmark."""

MEMBERSHIP = "1 in the circuit, 0 outside"
"""The sign of scores that are none: the file has a set of edges."""

_WIDTHS = ("d_model", "hidden_size", "n_embd")
_LARGEST = float(np.finfo(np.float32).max)
_MANY = 100_000


@dataclass(frozen=True)
class PublishedCircuit:
    """A score for each edge of a wiring, and the circuit that the file marks."""

    wiring: Wiring
    scores: Scores
    in_graph: Mask
    config: Mapping[str, Any] = field(default_factory=dict)
    listed: int | None = None
    """How many edges the file names; the others have score 0. None: it has all of them by its nature."""
    sign: str = SIGN
    """What the scores are, if anything is known of it."""


def mib_circuit(content: Mapping[str, Any], origin: str) -> PublishedCircuit:
    """The circuit in a parsed JSON document of MIB or EAP-IG; `origin` is for messages."""
    config, edges = content["cfg"], content["edges"]
    shape = shape_of(config, origin)
    lacking = shape.n_edges - len(edges)
    if lacking > len(edges):  # a shape out of proportion to the file is not worth building
        raise InputError(
            f"'{origin}' lacks {lacking:,} of the {shape.n_edges:,} edges of a model of {shape}."
        )
    wiring = Wiring(shape)
    ids = wiring.edge_ids(edges.keys())
    if lacking > 0:
        missing = np.setdiff1d(np.arange(wiring.n_edges), ids)
        raise InputError(
            f"'{origin}' lacks {lacking:,} of the {shape.n_edges:,} edges of a model of {shape}, "
            f"{wiring.edge_names(missing[:1])[0]} among them."
        )
    scores = np.empty(wiring.n_edges, dtype=np.float32)
    in_graph = np.zeros(wiring.n_edges, dtype=bool)
    for edge, (name, entry) in zip(ids, edges.items(), strict=True):
        known = isinstance(entry, dict)
        scores[edge] = check_score(entry.get("score") if known else None, name, origin, entry)
        in_graph[edge] = entry.get("in_graph") is True
    return PublishedCircuit(wiring, scores, in_graph, plain_config(config))


def shape_of(config: Mapping[str, Any], origin: str) -> Shape:
    """The shape that a file's ``cfg`` describes."""
    layers, heads = config.get("n_layers"), config.get("n_heads")
    if not (is_count(layers) and is_count(heads)):
        raise InputError(
            f"'{origin}' does not say its model's shape: n_layers and n_heads in cfg should be whole numbers from "
            f"1 to {_MANY:,}."
        )
    return Shape(layers, heads, parallel=bool(config.get("parallel_attn_mlp", False)))


def width_of(config: Mapping[str, Any]) -> int:
    """The width of the residual stream, by whichever name a config has it; 0 where it does not say.

    >>> width_of({"model_type": "gpt2", "n_embd": 768})
    768
    """
    return next((config[name] for name in _WIDTHS if is_count(config.get(name))), 0)


def check_score(score: Any, name: str, origin: str, entry: Any) -> float:
    """A score, if it is a number; `entry` is what the file has in its place."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise InputError(f"'{origin}' has no score for the edge {name}: it says {entry!r}.")
    if not abs(score) <= _LARGEST:
        raise InputError(f"'{origin}' has the score {score} for the edge {name}: scores must be finite.")
    return float(score)


def plain_config(config: Mapping[Any, Any]) -> dict[str, Any]:
    """What of a ``cfg`` can be kept: its texts, numbers and truths."""
    return {
        key: value
        for key, value in config.items()
        if isinstance(key, str)
        and isinstance(value, str | int | float | None)
        and (not isinstance(value, int | float) or abs(value) < 2**63)
    }


def import_circuit(
    circuit: PublishedCircuit,
    store: Path | str,
    *,
    run: str,
    source: str,
    model: str,
    task: str | None = None,
) -> bool:
    """Write a published circuit into a store as a run; False if this very run is there already."""
    record = Run(
        run=run,
        model=model,
        config=circuit.config,
        shape=circuit.wiring.shape,
        task=task,
        prompts=1,
        levels=("edge",),
        sign=circuit.sign,
        source=source,
        source_hash=hashlib.sha256(circuit.scores.tobytes()).hexdigest(),
    )
    edges = circuit.wiring.n_edges
    with write_run(store, record) as writer:
        if writer.finished:
            return False
        writer.write_wiring(circuit.wiring)
        writer.write("prompts", pa.Table.from_pylist([{"prompt_id": 0}], schema=TABLES["prompts"]))
        writer.write(
            "edge_scores",
            pa.table(
                {
                    "prompt_id": np.zeros(edges, dtype=np.int32),
                    "edge_id": np.arange(edges, dtype=np.int32),
                    "score": circuit.scores,
                }
            ),
        )
    return True


def mib_json(circuit: Circuit, scores: Scores, config: Mapping[str, Any]) -> str:
    """The text of a MIB file: all edges with their scores, those of the circuit marked.

    The benchmark's loader builds its own graph from ``cfg``, which needs all four of its values, and looks up every
    node and edge of the file in it.
    """
    wiring, shape = circuit.wiring, circuit.wiring.shape
    if shape.inputs is not Inputs.SPLIT:
        raise InputError(
            f"The MIB format has q, k and v inputs for each head; this run has {shape.inputs} inputs."
        )
    kept = np.zeros(wiring.n_edges, dtype=bool)
    kept[circuit.edges] = True
    active = np.zeros(wiring.n_nodes, dtype=bool)
    active[circuit.nodes] = True
    names = wiring.edge_names().to_pylist()
    return json.dumps(
        {
            "cfg": {
                **config,
                "n_layers": shape.layers,
                "n_heads": shape.heads,
                "parallel_attn_mlp": shape.parallel,
                "d_model": width_of(config),
            },
            "nodes": {
                name: {"in_graph": bool(inside)}
                for name, inside in zip(wiring.node_names, active, strict=True)
            },
            "edges": {
                name: {"score": score, "in_graph": inside}
                for name, score, inside in zip(
                    names, scores.astype(float).tolist(), kept.tolist(), strict=True
                )
            },
        }
    )


def auto_circuit_json(circuit: Circuit) -> str:
    """Edges and scores by auto-circuit's names, for the ``circuit_prune_scores(edges=...)`` of its models."""
    names = spelled(
        circuit.wiring.edge_names(circuit.edges).to_pylist(), "auto-circuit", circuit.wiring.shape.layers
    )
    return json.dumps(dict(zip(names, circuit.scores.astype(float).tolist(), strict=True)))


def is_count(value: Any) -> TypeGuard[int]:
    """Whether something is a number of layers or heads that a model can have."""
    return type(value) is int and 0 < value <= _MANY
