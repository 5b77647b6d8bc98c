"""Circuits: subgraphs of a wiring, chosen by score.

Four ways to choose: the top k edges, all edges at least so strong, the smallest set that holds a share of
the total strength, and greedy growth from `logits`. Strength is by a ranking: |score|, or by another name of
`RANKINGS`. Ties are broken by edge id, so every choice is unique.

A chosen edge is *kept* only if it lies on a path from `input` to `logits`. A circuit says both how many
edges were requested and how many were kept.
"""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .rankings import Scores, ranking, strengths
from .wiring import SLOTS, Ids, Mask, Wiring


@dataclass(frozen=True, eq=False)
class Circuit:
    """The kept edges of a wiring, ascending by id, with their scores."""

    wiring: Wiring
    edges: Ids
    scores: Scores
    requested: int

    @property
    def kept(self) -> int:
        """How many of the requested edges lie on a path from `input` to `logits`."""
        return len(self.edges)

    @property
    def src(self) -> Ids:
        """Source node of each edge."""
        return self.wiring.edge_src[self.edges]

    @property
    def dst(self) -> Ids:
        """Destination node of each edge."""
        return self.wiring.edge_dst[self.edges]

    @property
    def sources(self) -> Ids:
        """The nodes that a kept edge leaves, ascending."""
        return np.unique(self.src)

    @property
    def nodes(self) -> Ids:
        """The nodes that a kept edge touches, ascending."""
        return np.union1d(self.src, self.dst).astype(np.int32)

    @property
    def heads(self) -> Ids:
        """Its attention heads, ascending."""
        return self.nodes[self.wiring.is_kind("head")[self.nodes]]

    def ranked(self) -> Ids:
        """Positions of its edges, the strongest first."""
        return ranking(self.scores)

    def table(self) -> pa.Table:
        """Its edges as a table, the strongest first; `src` and `dst` are names of nodes."""
        order = self.ranked()
        table = self.wiring.edge_table(self.edges[order])
        nodes = pa.array(self.wiring.node_names)
        for end in ("src", "dst"):
            table = table.set_column(table.column_names.index(end), end, nodes.take(table[end]))
        return table.append_column("score", pa.array(self.scores[order]))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Circuit)
            and self.wiring == other.wiring
            and self.requested == other.requested
            and np.array_equal(self.edges, other.edges)
            and np.array_equal(self.scores, other.scores)
        )

    def __hash__(self) -> int:
        return hash((self.wiring, self.requested, self.edges.tobytes(), self.scores.tobytes()))

    def __repr__(self) -> str:
        return f"Circuit({self.kept} of {self.requested} edges kept, {len(self.nodes)} nodes)"

    def _repr_svg_(self) -> str | None:
        """For notebooks: its wiring diagram."""
        from ..viz import Panel, draw_wiring  # the one look ahead: who shows a circuit does not import viz

        return draw_wiring([Panel(circuit=self, title=repr(self))])._repr_svg_() if self.kept else None


def top_k(wiring: Wiring, scores: ArrayLike, k: int, *, by: str = "task", sign: int = -1) -> Circuit:
    """The k strongest edges.

    >>> from wirescope.graphs import Shape
    >>> tiny = Wiring(Shape(layers=1, heads=1))
    >>> circuit = top_k(tiny, [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3], k=3)
    >>> circuit
    Circuit(2 of 3 edges kept, 3 nodes)
    >>> circuit.table()["name"].to_pylist()
    ['input->a0.h0<v>', 'a0.h0->logits']

    The third, `input->m0`, leads nowhere without `m0->logits`.
    """
    scores = _checked(wiring, scores)
    return _circuit(wiring, scores, ranking(scores, by, sign=sign)[: check_k(wiring, k)])


def at_least(
    wiring: Wiring, scores: ArrayLike, threshold: float, *, by: str = "task", sign: int = -1
) -> Circuit:
    """All edges whose strength is at least a threshold.

    >>> from wirescope.graphs import Shape
    >>> tiny = Wiring(Shape(layers=1, heads=1))
    >>> at_least(tiny, [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3], 0.7)
    Circuit(2 of 3 edges kept, 3 nodes)
    """
    scores = _checked(wiring, scores)
    strong = strengths(scores, by, sign=sign) >= check_threshold(threshold)
    return _circuit(wiring, scores, np.flatnonzero(strong))


def mass(wiring: Wiring, scores: ArrayLike, share: float, *, by: str = "task", sign: int = -1) -> Circuit:
    """The smallest set of edges with at least a share of the total strength, which only positive ones count for.

    >>> from wirescope.graphs import Shape
    >>> tiny = Wiring(Shape(layers=1, heads=1))
    >>> mass(tiny, [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3], 0.8)
    Circuit(4 of 4 edges kept, 4 nodes)
    """
    scores = _checked(wiring, scores)
    order = ranking(scores, by, sign=sign)
    return _circuit(wiring, scores, order[: needed_for(share, strengths(scores, by, sign=sign)[order])])


def greedy(wiring: Wiring, scores: ArrayLike, k: int, *, by: str = "task", sign: int = -1) -> Circuit:
    """k edges grown from `logits`: always the strongest edge that runs into the circuit so far.

    >>> from wirescope.graphs import Shape
    >>> tiny = Wiring(Shape(layers=1, heads=1))
    >>> greedy(tiny, [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3], k=2).table()["name"].to_pylist()
    ['input->a0.h0<v>', 'a0.h0->logits']
    """
    scores = _checked(wiring, scores)
    return _circuit(wiring, scores, grown(wiring, strengths(scores, by, sign=sign), check_k(wiring, k)))


def grown(wiring: Wiring, strength: Scores, k: int) -> Ids:
    """The edges that `greedy` takes, by their strengths, in the order in which it takes them.

    Each node in the circuit offers its strongest incoming edge that is not taken yet; a heap picks among
    the offers, so it never holds more than one entry a node.
    """
    incoming = np.lexsort((-strength, wiring.edge_dst))  # by destination, the strongest first
    bounds = np.searchsorted(wiring.edge_dst, np.arange(wiring.n_nodes + 1), sorter=incoming)
    next_offer = bounds[:-1].tolist()
    shared_by = {head: shared for shared, head in wiring.feeds.tolist()}
    offers: list[tuple[float, int]] = []
    inside: set[int] = set()

    def offer(node: int) -> None:
        if next_offer[node] < bounds[node + 1]:
            edge = incoming[next_offer[node]]
            next_offer[node] += 1
            heapq.heappush(offers, (-float(strength[edge]), int(edge)))

    def admit(node: int) -> None:
        if node not in inside:
            inside.add(node)
            offer(node)
            if node in shared_by:
                admit(shared_by[node])

    admit(wiring.logits)
    taken: list[int] = []
    while len(taken) < k:
        _, edge = heapq.heappop(offers)
        taken.append(edge)
        offer(int(wiring.edge_dst[edge]))
        admit(int(wiring.edge_src[edge]))
    return np.array(taken, dtype=np.int32)


def on_a_path(wiring: Wiring, keep: Mask) -> Mask:
    """Of the edges in a mask, those on a path of such edges from `input` to `logits`.

    One sweep forward and one backward over the stages. A stage's edges are a full block, so a step is an
    `any` over a boolean matrix: at OLMo-7B's size this takes milliseconds where building a graph object of
    the same edges takes most of a second.
    """
    shared, head = wiring.feeds.T
    reached = np.zeros(wiring.n_nodes, dtype=bool)  # from input
    reached[wiring.input] = True
    for stage in wiring.stages:
        block = keep[stage.edges].reshape(stage.sources, stage.width)  # [source, slot]
        readers = wiring.slot_node[stage.slots]
        np.logical_or.at(
            reached, readers, (block & reached[wiring.sources[: stage.sources], None]).any(axis=0)
        )
        reached[head] |= reached[shared]

    useful = np.zeros(wiring.n_nodes, dtype=bool)  # for logits
    useful[wiring.logits] = True
    for stage in reversed(wiring.stages):
        np.logical_or.at(useful, shared, useful[head])
        block = keep[stage.edges].reshape(stage.sources, stage.width)
        readers = wiring.slot_node[stage.slots]
        useful[wiring.sources[: stage.sources]] |= (block & useful[readers]).any(axis=1)

    return keep & reached[wiring.edge_src] & useful[wiring.edge_dst]


def needed_everywhere(wiring: Wiring, keep: Mask) -> Mask:
    """Of the nodes that kept edges leave, those whose output matters at more positions than the last, by node.

    The logits are read at the last position, and so is what runs into them through MLPs and queries alone. Keys and
    values are read at every position, and with them all that they are made of. Kept edges lie on paths to `logits`.
    """
    everywhere = np.zeros(wiring.n_nodes, dtype=bool)
    moves = np.isin(wiring.slot_letter, [SLOTS.index("k"), SLOTS.index("v")]) | (
        wiring.is_kind("head")[wiring.slot_node] & (wiring.slot_letter == SLOTS.index(""))
    )  # [slot]
    for stage in reversed(wiring.stages):
        block = keep[stage.edges].reshape(stage.sources, stage.width)
        read = moves[stage.slots] | everywhere[wiring.slot_node[stage.slots]]
        everywhere[wiring.sources[: stage.sources]] |= (block & read).any(axis=1)
    return everywhere


def needed_for(share: float, strengths: Scores) -> int:
    """How many of some descending strengths hold at least a share of their total; negative ones do not count.

    >>> needed_for(0.8, np.array([5.0, 3.0, 1.0, 1.0]))
    2
    """
    if not 0 < share <= 1:
        raise InputError(f"The share of the total |score| must lie above 0 and at most at 1, not {share}.")
    cumulated = np.cumsum(np.maximum(strengths, 0), dtype=np.float64)
    if not len(cumulated) or not cumulated[-1]:
        raise InputError("No unit has a score to take a share of.")
    return int(np.searchsorted(cumulated, share * cumulated[-1])) + 1


def check_threshold(threshold: float) -> float:
    """A threshold on the strength of units, if it can be one."""
    if not 0 <= threshold < np.inf:
        raise InputError(f"The threshold on the strength of a unit must be 0 or more, not {threshold}.")
    return threshold


def check_k(wiring: Wiring, k: int) -> int:
    """k, if a circuit of k edges can be asked for."""
    if not 1 <= k <= wiring.n_edges:
        raise InputError(
            f"k is {k}, but the wiring of {wiring.shape} has {wiring.n_edges:,} edges: "
            f"choose from 1 to {wiring.n_edges}."
        )
    return k


def _circuit(wiring: Wiring, scores: Scores, chosen: NDArray[np.integer[Any]]) -> Circuit:
    keep = np.zeros(wiring.n_edges, dtype=bool)
    keep[chosen] = True
    edges = np.flatnonzero(on_a_path(wiring, keep)).astype(np.int32)
    return Circuit(wiring, edges, scores[edges], requested=len(chosen))


def _checked(wiring: Wiring, scores: ArrayLike) -> Scores:
    array = np.asarray(scores, dtype=np.float32)
    if array.shape != (wiring.n_edges,):
        raise InputError(f"{array.size} scores do not fit a wiring of {wiring.n_edges} edges: one each.")
    if not np.isfinite(array).all():
        edge = int(np.argmin(np.isfinite(array)))
        raise InputError(f"The score of {wiring.edge_names([edge])[0]} is {array[edge]}, not a number.")
    return array
