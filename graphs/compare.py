"""Two circuits side by side, and whether their likeness means anything.

Each measure is 0 for circuits that share nothing and 1 for a circuit and itself. Circuits of one size in
one wiring overlap by chance, all the more where a few layers hold most edges; `against_null` says how much
by comparing with circuits that were rewired at random within their layers, every degree kept.

    >>> from wirescope.graphs import Shape, Wiring, top_k
    >>> wiring, scores = Wiring(Shape(layers=1, heads=1)), [0.1, 0, -0.9, 0.8, 0, 0.2, -0.7, 0.3]
    >>> small, large = (top_k(wiring, scores, k) for k in (3, 5))
    >>> jaccard(small, large), shared_heads(small, large)
    (0.4, 1.0)
    >>> round(rank_biased_overlap(small, large), 3)
    0.706
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import igraph
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .circuit import Circuit
from .measures import igraph_seed, summary
from .wiring import Ids, Stage


@dataclass(frozen=True)
class Null:
    """A statistic beside its distribution under the null model."""

    observed: float
    movable: int
    """How many edges of the circuit can be rewired at all, every degree kept."""
    moved: float
    """How many of them are elsewhere in a sample, on average."""
    mean: float | None
    std: float | None
    p: float | None
    """The share of samples, the circuit itself among them, with a value at least as large; None where none moved."""


def comparison(a: Circuit, b: Circuit) -> dict[str, float]:
    """Every measure of likeness, by name."""
    return {name: measure(a, b) for name, measure in COMPARISONS.items()}


def jaccard(a: Circuit, b: Circuit) -> float:
    """Edges in both / edges in either."""
    _same_wiring(a, b)
    return _jaccard(a.edges, b.edges)


def weighted_jaccard(a: Circuit, b: Circuit) -> float:
    """Sum of min / sum of max of the edges' shares of their circuit's total |score|.

    Shares, because two models' scores need not have the same scale.
    """
    _same_wiring(a, b)
    shares = np.zeros((2, a.wiring.n_edges))
    for row, circuit in zip(shares, (a, b), strict=True):
        total = np.abs(circuit.scores).sum(dtype=np.float64)
        row[circuit.edges] = np.abs(circuit.scores) / total if total else 0.0
    largest = shares.max(axis=0).sum()
    return float(shares.min(axis=0).sum() / largest) if largest else 1.0


def rank_biased_overlap(a: Circuit, b: Circuit, *, p: float = 0.98) -> float:
    """Agreement of the two rankings at every depth, deeper ones weighing less (Webber et al. 2010, eq. 32).

    With persistence p, the first 1 / (1 - p) ranks carry most of the weight: 50 for 0.98. Extrapolated
    from the ranks that there are, so that circuits of unequal size can be compared.
    """
    _same_wiring(a, b)
    if not 0 < p < 1:
        raise InputError(f"The persistence of a rank-biased overlap must lie between 0 and 1, not {p}.")
    short, long = sorted((a.edges[a.ranked()], b.edges[b.ranked()]), key=len)
    s, n = len(short), len(long)
    if s == 0:
        return float(n == 0)
    depth = np.arange(1, n + 1)
    # an edge is shared from the depth on at which it has occurred in both rankings
    where = np.full(a.wiring.n_edges, n, dtype=np.int64)
    where[short] = np.arange(s)
    shared_from = np.maximum(where[long], np.arange(n))
    shared = np.cumsum(np.bincount(shared_from[shared_from < n], minlength=n))
    weight = p**depth
    total = float((shared / depth * weight).sum())
    beyond = depth > s
    total += float((shared[s - 1] * (depth - s) / (s * depth) * weight)[beyond].sum())
    tail = ((shared[-1] - shared[s - 1]) / n + shared[s - 1] / s) * p**n
    return (1 - p) / p * total + float(tail)


def shared_heads(a: Circuit, b: Circuit) -> float:
    """Heads in both / heads in either."""
    _same_wiring(a, b)
    return _jaccard(a.heads, b.heads)


COMPARISONS: dict[str, Callable[[Circuit, Circuit], float]] = {
    "jaccard": jaccard,
    "weighted_jaccard": weighted_jaccard,
    "rank_biased_overlap": rank_biased_overlap,
    "shared_heads": shared_heads,
}


def side_by_side(circuits: Mapping[str, Circuit], *, samples: int = 100, seed: int = 0) -> pa.Table:
    """Measures of each circuit in a column of its own, and the likeness of all to the first.

    With samples of the null model, each likeness is followed by what is expected of rewired circuits and by
    the share of them that is at least as alike. Shared heads are not: rewiring does not change the heads.
    How many edges rewiring can move, and how many it moved on average, is said first: of few, there are few
    circuits to compare with, and where none moved, nothing is expected. Circuits of another wiring than the
    first one's are measured and not compared.
    """
    rows: dict[str, dict[str, float | None]] = {
        name: dict(summary(circuit, seed=seed)) for name, circuit in circuits.items()
    }
    first, *others = circuits
    for name in others:
        if circuits[name].wiring == circuits[first].wiring:
            rows[name] |= _likeness(circuits[name], circuits[first], first, samples, seed)
    measures = list(dict.fromkeys(measure for row in rows.values() for measure in row))
    columns = [pa.array([row.get(measure) for measure in measures], pa.float64()) for row in rows.values()]
    return pa.table([pa.array(measures), *columns], names=["measure", *rows])


def _likeness(
    circuit: Circuit, other: Circuit, name: str, samples: int, seed: int
) -> dict[str, float | None]:
    nulls = _judged(circuit, lambda c: comparison(c, other), samples, seed) if samples else {}
    rows: dict[str, float | None] = {}
    for null in list(nulls.values())[:1]:
        rows = {"edges that rewiring can move": null.movable, "edges that it moved": null.moved}
    for measure, value in comparison(circuit, other).items():
        label = f"{measure} with {name}"
        rows[label] = value
        if measure in nulls and measure != "shared_heads":
            rows |= {f"{label}, expected": nulls[measure].mean, f"{label}, p": nulls[measure].p}
    return rows


def auroc(strength: ArrayLike, members: ArrayLike) -> float:
    """How well a strength tells members from others: the chance that a member is the stronger of two.

    >>> auroc([3.0, 2.0, 1.0], [True, False, False])
    1.0
    """
    values, inside = np.asarray(strength, dtype=np.float64), np.asarray(members, dtype=bool)
    if inside.all() or not inside.any():
        raise InputError("AUROC needs both members and others.")
    difference = values[inside][:, None] - values[~inside][None, :]
    return float(((difference > 0) + (difference == 0) / 2).mean())


def rewired(circuit: Circuit, *, seed: int) -> Circuit:
    """The circuit with its edges rewired at random, as the null model has it.

    Among the edges into one stage (the heads of a layer, or its MLP), pairs swap their sources many times:
    igraph's degree-preserving rewiring. So every node keeps its out-degree, every slot its in-degree and
    every edge its destination layer, and each new edge exists in the wiring. The scores of a stage are
    dealt anew. A stage with a single slot has only one wiring of its degrees and stays as it is.
    """
    wiring = circuit.wiring
    rng = np.random.default_rng(seed)
    with igraph_seed(seed):
        edges = [np.sort(_swapped(stage, ids)) for stage, ids in _by_stage(circuit, circuit.edges)]
    scores = [rng.permutation(values) for _, values in _by_stage(circuit, circuit.scores)]
    return Circuit(wiring, np.concatenate(edges), np.concatenate(scores), circuit.requested)


def against_null(
    statistic: Callable[[Circuit], float], circuit: Circuit, *, samples: int = 100, seed: int = 0
) -> Null:
    """A statistic of a circuit against the same statistic of rewired circuits.

    To judge a likeness, fix the other circuit: ``against_null(lambda c: jaccard(c, other), circuit)``. Whatever
    depends on degrees alone, such as the heads that two circuits share, is the same in every sample.
    """
    if samples < 1:
        raise InputError(f"A null model needs at least one sample, not {samples}.")
    if not circuit.kept:
        raise InputError("An empty circuit cannot be rewired; ask for more edges.")
    return _judged(circuit, lambda c: {"": statistic(c)}, samples, seed)[""]


def movable(circuit: Circuit) -> int:
    """How many edges of a circuit are not in every circuit that `rewired` can make of it.

    Within a stage, let an edge lead from its source to its slot, and every pair that is no edge back from slot to
    source. Rewirings that keep all degrees exchange edges and other pairs along the cycles of this graph: an edge can
    move if it lies on one, which is to say in a strongly connected component.
    """
    count = 0
    for stage, ids in _by_stage(circuit, circuit.edges):
        (sources, source), (slots, slot) = _ends(stage, ids)
        first_slot = len(sources)  # nodes are sources, then slots
        free = np.ones((len(sources), len(slots)), dtype=bool)
        free[source, slot] = False
        back_to, back_from = np.nonzero(free)
        arcs = np.stack(
            [np.append(source, back_from + first_slot), np.append(slot + first_slot, back_to)], axis=1
        )
        graph = igraph.Graph(first_slot + len(slots), edges=arcs.tolist(), directed=True)
        component = np.array(graph.connected_components(mode="strong").membership, dtype=np.int64)
        count += int((component[source] == component[slot + first_slot]).sum())
    return count


def _judged(
    circuit: Circuit, statistics: Callable[[Circuit], dict[str, float]], samples: int, seed: int
) -> dict[str, Null]:
    """Statistics of a circuit against those of rewired ones, which say nothing if all are the circuit itself."""
    moved, drawn = [], []
    for i in range(samples):
        sample = rewired(circuit, seed=seed + i)
        moved.append(len(np.setdiff1d(sample.edges, circuit.edges)))
        drawn.append(statistics(sample))
    can, did = movable(circuit), float(np.mean(moved))
    nulls = {}
    for name, observed in statistics(circuit).items():
        values = np.array([one[name] for one in drawn])
        p = (1 + int((values >= observed).sum())) / (1 + samples)
        known = (float(values.mean()), float(values.std()), p) if did else (None, None, None)
        nulls[name] = Null(observed, can, did, *known)
    return nulls


def _by_stage(circuit: Circuit, values: NDArray[Any]) -> Iterator[tuple[Stage, NDArray[Any]]]:
    """Stages, each with what belongs to its edges of the circuit."""
    bounds = np.searchsorted(circuit.edges, [stage.first for stage in circuit.wiring.stages[1:]])
    return zip(circuit.wiring.stages, np.split(values, bounds), strict=True)


def _ends(stage: Stage, edges: Ids) -> tuple[tuple[Ids, NDArray[Any]], tuple[Ids, NDArray[Any]]]:
    """The sources of a stage's edges and the slots, each with which of them it is for every edge."""
    rank, column = np.divmod(edges - stage.first, stage.width)
    return np.unique(rank, return_inverse=True), np.unique(column, return_inverse=True)


def _swapped(stage: Stage, edges: Ids) -> Ids:
    """Edges of a stage after rewiring."""
    (sources, source), (slots, slot) = _ends(stage, edges)
    if len(sources) < 2 or len(slots) < 2:
        return edges  # nothing to swap
    pairs = zip(source.tolist(), (slot + len(sources)).tolist(), strict=True)
    graph = igraph.Graph(len(sources) + len(slots), edges=pairs, directed=True)
    graph.rewire(n=10 * len(edges))
    new_source, new_slot = np.array(graph.get_edgelist()).T
    ids = stage.first + sources[new_source] * stage.width + slots[new_slot - len(sources)]
    return np.asarray(ids, dtype=np.int32)


def _jaccard(a: Ids, b: Ids) -> float:
    either = len(np.union1d(a, b))
    return len(np.intersect1d(a, b)) / either if either else 1.0


def _same_wiring(a: Circuit, b: Circuit) -> None:
    if a.wiring != b.wiring:
        raise InputError(
            f"Circuits of different wirings cannot be compared edge by edge: {a.wiring.shape} with "
            f"{a.wiring.shape.inputs} inputs and {b.wiring.shape} with {b.wiring.shape.inputs} inputs."
        )
