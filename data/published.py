"""Circuits as they are published: the JSON of the MIB benchmark and of EAP-IG, read and written.

    {"cfg":   {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, ...},
     "edges": {"input->a0.h0<q>": {"score": -0.0003, "in_graph": false}, ...},
     "sign": "loss", "metric": "logit_diff", "method": "eap-ig"}

Such a file has one score an edge, the mean over prompts that it does not name. In the store it becomes a
run with a single prompt, number 0, that has no text. Inputs are always split into q, k and v.

The last three are ours; other readers pass over them, and other writers leave them out. The *sign* says which edges
help. Scores of a `loss`, which grows without an edge that helps, are positive for it: so are those of MIB, EAP-IG,
auto-circuit and ACDC. Scores of a `metric` are as in the store, metric(ablated) - metric(clean): negative for an edge
that helps, but for `kl`. What is written for another tool has that tool's sign.
"""

import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from ..errors import InputError, one_of
from ..graphs import Circuit, Inputs, Shape, Wiring, spelled
from ..graphs.rankings import Scores
from ..graphs.wiring import Mask
from .run import MEMBERSHIP, METRICS, SIGN, Run
from .schema import TABLES
from .store import write_run

EMBEDDED = Path(__file__).parent / "circuits" / "gpt2-small-ioi.json.gz"
"""GPT-2 small on indirect object identification, scored with EAP-IG; published with the MIB benchmark."""

SIGNS = ("loss", "metric")
"""What the scores of a file are of."""

_WIDTHS = ("d_model", "hidden_size", "n_embd")
_LARGEST = float(np.finfo(np.float32).max)
_MANY = 100_000
_MOST = 1 << 26


@dataclass(frozen=True)
class PublishedCircuit:
    """A score for each edge of a wiring, and the circuit that the file marks."""

    wiring: Wiring
    scores: Scores
    in_graph: Mask
    config: Mapping[str, Any] = field(default_factory=dict)
    listed: int | None = None
    """How many edges the file names; the others have score 0. None: it has all of them by its nature."""
    sign: str = "metric"
    """One of `SIGNS`, as the file says or by the rule of its format; or `MEMBERSHIP`, where it has no scores."""
    method: str | None = None
    metric: str | None = None
    """Where the file says how it was scored."""


def mib_circuit(content: Mapping[str, Any], origin: str) -> PublishedCircuit:
    """The circuit in a parsed JSON document of MIB or EAP-IG; `origin` is for messages."""
    config, edges = content["cfg"], content["edges"]
    sign = content.get("sign", "loss")
    if sign not in SIGNS:
        raise InputError(
            f"'{origin}' has scores of the sign {brief(sign)}: it should be {' or '.join(SIGNS)}."
        )
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
    method, metric = scored_how(content)
    kept = plain_config(config)
    return PublishedCircuit(wiring, scores, in_graph, kept, sign=sign, method=method, metric=metric)


def scored_how(about: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The method and the metric, where our own export says them."""
    method, metric = about.get("method"), about.get("metric")
    named = isinstance(method, str) and 0 < len(method) < 100 and method.isprintable()
    return method if named else None, metric if isinstance(metric, str) and metric in METRICS else None


def wiring_of(shape: Shape) -> Wiring:
    """The wiring of a shape that a file says, if it is not out of all proportion."""
    if shape.n_edges > _MOST:
        raise InputError(f"A model of {shape} has {shape.n_edges:,} edges, which is more than can be kept.")
    return Wiring(shape)


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
        raise InputError(f"'{origin}' has no score for the edge {name}: it says {brief(entry)}.")
    if not abs(score) <= _LARGEST:
        raise InputError(
            f"'{origin}' has the score {brief(score)} for the edge {name}: scores must be finite."
        )
    return float(score)


def brief(value: Any) -> str:
    """A value of a file for a message, however long or deep it is."""
    return reprlib.repr(value)


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
    sign: str | None = None,
    method: str | None = None,
    metric: str | None = None,
    file: Path | str | None = None,
) -> bool:
    """Write a published circuit into a store as a run; False if this very run is there already.

    `source` is what it was read from, and `file` where that was. `sign`, `method` and `metric` are for files that do
    not say them, or not as they are. Scores of a loss are turned to those of the metric.
    """
    if sign is not None and circuit.sign == MEMBERSHIP:
        raise InputError(f"'{source}' has no scores that could be of the sign {sign}: leave it out.")
    sign = one_of("sign", sign, SIGNS) if sign is not None else circuit.sign
    if metric is not None:
        one_of("metric", metric, METRICS)
    record = Run(
        run=run,
        model=model,
        config=circuit.config,
        shape=circuit.wiring.shape,
        task=task,
        prompts=1,
        levels=("edge",),
        method=method or circuit.method,
        metric=metric or circuit.metric,
        sign=MEMBERSHIP if sign == MEMBERSHIP else SIGN,
        source=source,
        source_sign=None if sign == MEMBERSHIP else sign,
        file=None if file is None else str(file),
        shard_size=1,
    )
    scores = of_loss(circuit.scores, record) if sign == "loss" else circuit.scores
    record = replace(record, source_hash=hashlib.sha256(scores.tobytes()).hexdigest())
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
                    "score": scores,
                }
            ),
        )
    return True


def of_loss(scores: Scores, run: Run) -> Scores:
    """Scores of a run as scores of a loss, positive for what helps; or such scores as the run has them."""
    return scores if run.helpful_sign > 0 else 0 - scores  # and not -scores: a score of 0 has no sign


def mib_config(run: Run) -> dict[str, Any]:
    """The ``cfg`` of a MIB file, of which the benchmark's loader needs the last four to build its own graph."""
    shape = run.shape
    if shape.inputs is not Inputs.SPLIT:
        raise InputError(
            f"The MIB format has q, k and v inputs for each head; this run has {shape.inputs} inputs."
        )
    return {
        **run.config,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "parallel_attn_mlp": shape.parallel,
        "d_model": width_of(run.config),
    }


def how_scored(run: Run) -> dict[str, str]:
    """The method and the metric of a run, as far as it knows them."""
    known = {"method": run.method, "metric": run.metric}
    return {name: value for name, value in known.items() if value is not None}


def mib_json(circuit: Circuit, scores: Scores, run: Run) -> str:
    """The text of a MIB file: all edges of a run with their scores, of a loss, and those of a circuit marked.

    The benchmark's loader looks up every node and edge of the file in a graph of its own.
    """
    wiring, config = circuit.wiring, mib_config(run)
    kept = np.zeros(wiring.n_edges, dtype=bool)
    kept[circuit.edges] = True
    active = np.zeros(wiring.n_nodes, dtype=bool)
    active[circuit.nodes] = True
    names = wiring.edge_names().to_pylist()
    return json.dumps(
        {
            "cfg": config,
            "nodes": {
                name: {"in_graph": bool(inside)}
                for name, inside in zip(wiring.node_names, active, strict=True)
            },
            "edges": {
                name: {"score": score, "in_graph": inside}
                for name, score, inside in zip(
                    names, of_loss(scores, run).astype(float).tolist(), kept.tolist(), strict=True
                )
            },
            "sign": "loss",
            **how_scored(run),
        }
    )


def auto_circuit_json(circuit: Circuit, run: Run) -> str:
    """Edges and scores of a loss by auto-circuit's names, for the ``circuit_prune_scores(edges=...)`` of its models."""
    names = spelled(
        circuit.wiring.edge_names(circuit.edges).to_pylist(), "auto-circuit", circuit.wiring.shape.layers
    )
    return json.dumps(dict(zip(names, of_loss(circuit.scores, run).astype(float).tolist(), strict=True)))


def is_count(value: Any) -> TypeGuard[int]:
    """Whether something is a number of layers or heads that a model can have."""
    return type(value) is int and 0 < value <= _MANY
