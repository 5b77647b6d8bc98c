"""The wiring of a transformer: every component and every residual edge, from the model's shape alone.

A node writes to the residual stream and reads from it: ``input`` (the embeddings), ``a{layer}.h{head}``,
``m{layer}`` and ``logits``. Reading happens in *slots*: a head has three (``q``, ``k``, ``v``) or one,
an MLP and the logits have one each. An edge runs from a node to a slot that comes after it.

All slots that read the same state of the stream form a *stage*, and a stage is connected to all nodes
that wrote before it. So the edges of a stage are a full block, sources x slots, and the edge ids are its
cells in row-major order, stage after stage:

    edge_id = stage.first + (rank of the source) * (slots of the stage) + (column of the slot)

This is also the order in which published circuits list their edges. Ids of nodes and edges are
topological: an edge's source has a smaller node id than its destination.

Where a model shares keys and values between heads, `Inputs.GROUPED` gives each key/value head a node
``a{layer}.kv{index}`` of its own that reads ``k`` and ``v`` once and feeds its query heads. These feeds are
part of the model, not edges of the wiring: they carry no score and cannot be cut.

Nothing here knows about weights, scores or prompts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]

KINDS = ("input", "head", "kv", "mlp", "logits")
SLOTS = ("", "q", "k", "v")


class Inputs(StrEnum):
    """How the inputs of an attention layer are told apart."""

    SPLIT = "split"
    """q, k and v of each query head, also where heads share keys and values: the published convention."""
    MERGED = "merged"
    """One input a head."""
    GROUPED = "grouped"
    """q of each query head, k and v of each key/value head."""


@dataclass(frozen=True)
class Shape:
    """All that the wiring depends on. `kv_heads` is the number of heads unless the model shares them."""

    layers: int
    heads: int
    kv_heads: int = 0
    parallel: bool = False
    inputs: Inputs = Inputs.SPLIT

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "inputs", Inputs(self.inputs))
        for name in ("layers", "heads", "kv_heads"):
            if getattr(self, name) < 1:
                raise InputError(f"A model needs at least one of its {name}, not {getattr(self, name)}.")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly.")

    def __str__(self) -> str:
        return f"{self.layers} layers x {self.heads} heads"

    @property
    def n_edges(self) -> int:
        """The number of edges of its wiring, without building it."""
        slots = {
            Inputs.SPLIT: 3 * self.heads,
            Inputs.MERGED: self.heads,
            Inputs.GROUPED: self.heads + 2 * self.kv_heads,
        }[self.inputs]
        before = self.layers + (self.heads + 1) * self.layers * (self.layers - 1) // 2  # sum over layers
        within = 0 if self.parallel else self.layers * self.heads  # heads to their own layer's MLP
        return before * (slots + 1) + within + 1 + self.layers * (self.heads + 1)

    def asdict(self) -> dict[str, Any]:
        """As plain JSON values; ``Shape(**shape.asdict()) == shape``."""
        return asdict(self) | {"inputs": str(self.inputs)}


@dataclass(frozen=True)
class Stage:
    """The slots that read one state of the residual stream: a full block of edges, [source, slot]."""

    first: int
    """The id of its first edge."""
    sources: int
    """It reads from the first so many sources of the wiring."""
    slots: slice
    """Its slots, as a slice of the wiring's."""

    @property
    def width(self) -> int:
        """The number of its slots."""
        return int(self.slots.stop - self.slots.start)

    @property
    def edges(self) -> slice:
        """Its edges, as a slice of the wiring's; reshape to [sources, width]."""
        return slice(self.first, self.first + self.sources * self.width)


class Wiring:
    """Nodes, slots and edges of a shape as arrays; an id is an index into them.

    >>> wiring = Wiring(Shape(layers=12, heads=12))
    >>> wiring.n_nodes, wiring.n_edges
    (158, 32491)
    >>> wiring.edge_ids(["input->m0", "a9.h9->a11.h10<q>"])
    array([   36, 31596], dtype=int32)
    >>> wiring.edge_names([36, 31596]).to_pylist()
    ['input->m0', 'a9.h9->a11.h10<q>']
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        rows, slots, blocks = _lay_out(shape)

        kinds, layers, heads = zip(*rows, strict=True)
        self.node_names: tuple[str, ...] = tuple(_name(*row) for row in rows)
        self.node_kind: NDArray[np.int8] = np.array([KINDS.index(kind) for kind in kinds], dtype=np.int8)
        self.node_layer: Ids = np.array(layers, dtype=np.int32)
        """-1 for `input`, the number of layers for `logits`."""
        self.node_head: Ids = np.array(heads, dtype=np.int32)
        """-1 where there is none."""

        is_kv = self.is_kind("kv")
        self.sources: Ids = np.flatnonzero(~is_kv)[:-1].astype(np.int32)
        """Node ids of all that write to the stream, in order: all but `logits` and key/value heads."""
        self.slot_node: Ids = np.array([node for node, _ in slots], dtype=np.int32)
        self.slot_letter: NDArray[np.int8] = np.array(
            [SLOTS.index(letter) for _, letter in slots], dtype=np.int8
        )
        self.feeds: Ids = _feeds(shape, self.is_kind("kv"), self.is_kind("head"))
        """[feed, 2]: key/value head and the query head that it feeds; empty unless inputs are grouped."""

        stages, first = [], 0
        for sources, block in blocks:
            stages.append(Stage(first, sources, block))
            first = stages[-1].edges.stop
        self.stages: tuple[Stage, ...] = tuple(stages)

        self.edge_src: Ids = np.concatenate([np.repeat(self.sources[: s.sources], s.width) for s in stages])
        edge_slot = np.concatenate(
            [np.tile(np.arange(s.slots.start, s.slots.stop, dtype=np.int32), s.sources) for s in stages]
        )
        self.edge_dst: Ids = self.slot_node[edge_slot]
        self.edge_letter: NDArray[np.int8] = self.slot_letter[edge_slot]
        """Index into `SLOTS`."""

    @property
    def n_nodes(self) -> int:
        """The number of nodes."""
        return len(self.node_names)

    @property
    def n_edges(self) -> int:
        """The number of edges."""
        return len(self.edge_src)

    @property
    def input(self) -> int:
        """The node id of `input`."""
        return 0

    @property
    def logits(self) -> int:
        """The node id of `logits`."""
        return self.n_nodes - 1

    def is_kind(self, kind: str) -> Mask:
        """Which nodes are of a kind."""
        return np.asarray(self.node_kind == KINDS.index(kind))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wiring) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash(self.shape)

    def __repr__(self) -> str:
        return f"Wiring({self.shape!r})"

    def edge_names(self, ids: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> pa.StringArray:
        """The names of these edges, or of all."""
        at = slice(None) if ids is None else np.asarray(ids, dtype=np.int64)
        nodes = pa.array(self.node_names)
        suffixes = pa.array([f"<{letter}>" if letter else "" for letter in SLOTS])
        source = pc.binary_join_element_wise(
            nodes.take(pa.array(self.edge_src[at])), nodes.take(pa.array(self.edge_dst[at])), "->"
        )
        return pc.binary_join_element_wise(source, suffixes.take(pa.array(self.edge_letter[at])), "")

    def node_table(self) -> pa.Table:
        """All nodes: node_id, name, kind, layer, head."""
        return pa.table(
            {
                "node_id": np.arange(self.n_nodes, dtype=np.int32),
                "name": self.node_names,
                "kind": pa.array(KINDS).take(pa.array(self.node_kind)),
                "layer": self.node_layer,
                "head": pa.array(self.node_head, mask=self.node_head < 0),
            }
        )

    def edge_table(self, ids: Ids | None = None) -> pa.Table:
        """These edges, or all: edge_id, name, src and dst as node ids, slot, and layer and kind of both."""
        ids = np.arange(self.n_edges, dtype=np.int32) if ids is None else ids
        src, dst = self.edge_src[ids], self.edge_dst[ids]
        kinds = pa.array(KINDS)
        return pa.table(
            {
                "edge_id": ids,
                "name": self.edge_names(ids),
                "src": src,
                "dst": dst,
                "slot": pa.array(SLOTS).take(pa.array(self.edge_letter[ids])),
                "src_layer": self.node_layer[src],
                "dst_layer": self.node_layer[dst],
                "src_kind": kinds.take(pa.array(self.node_kind[src])),
                "dst_kind": kinds.take(pa.array(self.node_kind[dst])),
            }
        )

    def node_ids(self, names: Iterable[str]) -> Ids:
        """The ids of these nodes; a name that is not a node of this wiring is an error."""
        array = pa.array(names, type=pa.string())
        found = pc.index_in(array, value_set=pa.array(self.node_names))
        if found.null_count:
            name = array[pc.index(pc.is_null(found), True).as_py()].as_py()
            raise InputError(
                f"The model of {self.shape} has no node '{name}'.{did_you_mean(str(name), self.node_names)}"
            )
        return np.asarray(found.to_numpy(), dtype=np.int32)

    def edge_ids(self, names: Iterable[str] | pa.StringArray) -> Ids:
        """The ids of these edges; a name that is not an edge of this wiring is an error that says why."""
        try:
            array = names if isinstance(names, pa.StringArray) else pa.array(names, type=pa.string())
        except UnicodeEncodeError as error:
            raise InputError(f"{error.object!r} is not the name of an edge.") from error
        parts = pc.extract_regex(array, r"^(?P<src>[^<>]*)->(?P<dst>[^<>]*)(?P<slot>(?:<[qkv]>)?)$")
        if parts.null_count:
            name = array[pc.index(pc.is_null(parts), True).as_py()].as_py()
            raise InputError(
                f"'{name}' is not the name of an edge; names look like a9.h9->a11.h10<q> or m0->logits."
            )
        source = self.node_ids(parts.field("src"))
        destination = self.node_ids(parts.field("dst"))
        letters = pc.index_in(parts.field("slot"), value_set=pa.array(["", "<q>", "<k>", "<v>"]))
        ids = self._lookup(source, destination, letters.to_numpy())
        if (ids < 0).any():
            raise InputError(self._why_not(array[int(np.argmax(ids < 0))].as_py()))
        return ids

    def _lookup(self, src: Ids, dst: Ids, letter: NDArray[np.integer[Any]]) -> Ids:
        """Edge ids by source node, destination node and slot letter; -1 where there is no such edge."""
        slot = self._slot_of[dst, letter]  # -1 picks some stage here, and is masked below
        rank = self._rank_of[src]
        first, sources, width, column = self._slot_stage[slot].T
        valid = (slot >= 0) & (rank >= 0) & (rank < sources)
        return np.where(valid, first + rank * width + column, -1).astype(np.int32)

    @cached_property
    def _slot_of(self) -> Ids:
        """[node, letter]: the slot, or -1."""
        table = np.full((self.n_nodes, len(SLOTS)), -1, dtype=np.int32)
        table[self.slot_node, self.slot_letter] = np.arange(len(self.slot_node))
        return table

    @cached_property
    def _rank_of(self) -> Ids:
        """[node]: its rank among the sources, or -1."""
        table = np.full(self.n_nodes, -1, dtype=np.int32)
        table[self.sources] = np.arange(len(self.sources))
        return table

    @cached_property
    def _slot_stage(self) -> NDArray[np.int64]:
        """[slot]: first edge, sources and width of its stage, and its column there."""
        return np.array(
            [(s.first, s.sources, s.width, column) for s in self.stages for column in range(s.width)]
        )

    def _why_not(self, name: str) -> str:
        source, _, rest = name.partition("->")
        destination, _, letter = rest.partition("<")
        (dst,) = self.node_ids([destination])
        expected = [SLOTS[letter] for letter in np.flatnonzero(self._slot_of[dst] >= 0)]
        if letter.rstrip(">") not in expected:
            ways = " or ".join(f"{source}->{destination}" + (f"<{s}>" if s else "") for s in expected)
            return f"'{name}' is not an edge of this wiring ({self.shape.inputs} inputs)" + (
                f"; it would be {ways}." if ways else f": nothing runs into {destination}."
            )
        return f"'{name}' is not an edge: {destination} does not read what {source} writes."


def _lay_out(
    shape: Shape,
) -> tuple[list[tuple[str, int, int]], list[tuple[int, str]], list[tuple[int, slice]]]:
    """Nodes as (kind, layer, head), slots as (node, letter), stages as (sources, slots)."""
    grouped = shape.inputs is Inputs.GROUPED
    nodes: list[tuple[str, int, int]] = [("input", -1, -1)]
    slots: list[tuple[int, str]] = []
    stages: list[tuple[int, slice]] = []
    written = 1

    def close_stage(begin: int) -> None:
        stages.append((written, slice(begin, len(slots))))

    for layer in range(shape.layers):
        begin = len(slots)
        kv = len(nodes)
        if grouped:
            nodes += [("kv", layer, head) for head in range(shape.kv_heads)]
        first_head = len(nodes)
        nodes += [("head", layer, head) for head in range(shape.heads)]
        letters = {Inputs.SPLIT: "qkv", Inputs.MERGED: ("",), Inputs.GROUPED: "q"}[shape.inputs]
        slots += [(head, letter) for head in range(first_head, len(nodes)) for letter in letters]
        if grouped:
            slots += [(head, letter) for head in range(kv, first_head) for letter in "kv"]
        mlp = len(nodes)
        nodes.append(("mlp", layer, -1))
        if not shape.parallel:
            close_stage(begin)
            written += shape.heads
            begin = len(slots)
        slots.append((mlp, ""))
        close_stage(begin)
        written += 1 + (shape.heads if shape.parallel else 0)

    slots.append((len(nodes), ""))
    nodes.append(("logits", shape.layers, -1))
    close_stage(len(slots) - 1)
    return nodes, slots, stages


def _feeds(shape: Shape, is_kv: Mask, is_head: Mask) -> Ids:
    if shape.inputs is not Inputs.GROUPED:
        return np.empty((0, 2), dtype=np.int32)
    shared = np.repeat(np.flatnonzero(is_kv), shape.heads // shape.kv_heads)
    return np.stack([shared, np.flatnonzero(is_head)], axis=1).astype(np.int32)


def _name(kind: str, layer: int, head: int) -> str:
    return {"head": f"a{layer}.h{head}", "kv": f"a{layer}.kv{head}", "mlp": f"m{layer}"}.get(kind, kind)
