"""EAP-IG circuits saved by torch: the ``.pt`` counterpart of the JSON that `wirescope.data` reads.

The file holds a matrix of scores, ``edges_scores[source, destination]``, and the names of its rows and
columns. Cells that are no edge of the wiring (a later node to an earlier one) are filled and ignored.
It is read with ``weights_only=True``: tensors and plain containers, nothing that could run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from ..data import PublishedCircuit, plain_config, shape_of
from ..graphs import InputError, Wiring
from .models import reason_of


def read_pt(file: Path | str) -> PublishedCircuit:
    """Read an EAP-IG ``.pt``."""
    try:
        content = torch.load(file, map_location=torch.get_default_device(), weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}'.") from error
    except Exception as error:  # a broken file can make it fail in any way
        raise InputError(
            f"'{file}' is not a circuit that torch can read safely: {reason_of(error)}."
        ) from error
    wanted = {"cfg": dict, "src_nodes": list, "dst_nodes": list, "edges_scores": torch.Tensor}
    for key, kind in wanted.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise InputError(f"'{file}' is not a circuit of EAP-IG: it has no {key}, or not of its kind.")
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
