from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.errors import InputError
from wirescope.graphs import (
    Circuit,
    Shape,
    Wiring,
    against_null,
    auroc,
    comparison,
    jaccard,
    movable,
    rank_biased_overlap,
    rewired,
    shared_heads,
    side_by_side,
    top_k,
    weighted_jaccard,
)

WIRING = Wiring(Shape(2, 2))


def circuit(**scores: float) -> Circuit:
    """A circuit of edges given by number, such as e3=1.0."""
    ids = np.array([int(name[1:]) for name in scores], dtype=np.int32)
    order = np.argsort(ids)
    return Circuit(WIRING, ids[order], np.array(list(scores.values()), dtype=np.float32)[order], len(ids))


def test_overlaps_by_hand():
    a, b = circuit(e0=3, e1=-1, e2=1), circuit(e1=2, e2=-2, e9=4)
    assert jaccard(a, b) == 2 / 4
    # shares .6 .2 .2 and .25 .25 .5: min 0 .2 .2 0, max .6 .25 .25 .5
    assert weighted_jaccard(a, b) == pytest.approx(0.4 / 1.6)
    assert shared_heads(circuit(e0=1), circuit(e1=1)) == 1.0  # q and k of one head
    assert shared_heads(circuit(e0=1), circuit(e3=1)) == 0.0


def obvious_rbo(a: list[int], b: list[int], p: float) -> float:
    """Webber et al. 2010, equation 32, depth by depth."""
    short, long = sorted((a, b), key=len)
    s, n = len(short), len(long)

    def overlap(d: int) -> int:
        return len(set(short[:d]) & set(long[:d]))

    total = sum(overlap(d) / d * p**d for d in range(1, n + 1))
    total += sum(overlap(s) * (d - s) / (s * d) * p**d for d in range(s + 1, n + 1))
    return (1 - p) / p * total + ((overlap(n) - overlap(s)) / n + overlap(s) / s) * p**n


@given(st.permutations(range(20)), st.permutations(range(20)), st.integers(1, 20), st.integers(1, 20))
def test_rank_biased_overlap_is_the_published_formula(first, second, s, n):
    a, b = first[:s], second[:n]

    def ranked(ids: list[int]) -> Circuit:
        return circuit(**{f"e{edge}": float(100 - place) for place, edge in enumerate(ids)})

    assert rank_biased_overlap(ranked(a), ranked(b), p=0.9) == pytest.approx(obvious_rbo(a, b, 0.9))
    assert 0 <= rank_biased_overlap(ranked(a), ranked(b)) <= 1 + 1e-9


def test_a_circuit_is_like_itself_and_unlike_a_stranger(published):
    a = top_k(published.wiring, published.scores, 200)
    assert list(comparison(a, a).values()) == pytest.approx([1, 1, 1, 1])
    assert list(comparison(circuit(e0=1), circuit(e3=1)).values()) == [0, 0, 0, 0]


def test_rewiring_keeps_every_degree_and_stays_in_the_wiring(published):
    a = top_k(published.wiring, published.scores, 500)
    b = rewired(a, seed=1)
    wiring = a.wiring
    slot = wiring.edge_dst.astype(np.int64) * 4 + wiring.edge_letter
    assert np.array_equal(np.bincount(a.src, minlength=158), np.bincount(b.src, minlength=158))
    assert np.array_equal(np.sort(slot[a.edges]), np.sort(slot[b.edges]))
    assert len(np.unique(b.edges)) == a.kept
    assert np.array_equal(np.sort(a.scores), np.sort(b.scores))
    assert not np.array_equal(a.scores, b.scores)  # dealt anew
    assert 0.2 < jaccard(a, b) < 0.9
    assert rewired(a, seed=1) == b
    assert rewired(a, seed=2) != b


def test_the_null_model_tells_chance_from_likeness(published):
    a = top_k(published.wiring, published.scores, 200)
    alike = against_null(lambda c: jaccard(c, a), a, samples=40)
    assert alike.observed == 1
    assert alike.mean < 0.9
    assert alike.p == 1 / 41
    stranger = rewired(a, seed=99)
    by_chance = against_null(lambda c: jaccard(c, a), stranger, samples=40)
    assert by_chance.p > 0.05
    assert abs(by_chance.observed - by_chance.mean) < 4 * by_chance.std


@given(st.sets(st.integers(0, 45), min_size=1, max_size=12))
def test_movable_edges_are_those_that_some_wiring_of_the_same_degrees_has_not(edges):
    """By trying all of them, stage by stage."""
    kept = circuit(**{f"e{edge}": 1.0 for edge in edges})
    fixed = 0
    for stage in WIRING.stages:
        own = [edge for edge in edges if stage.first <= edge < stage.first + stage.sources * stage.width]
        pairs = [divmod(edge - stage.first, stage.width) for edge in own]
        sources, slots = ([pair[end] for pair in pairs] for end in (0, 1))
        block = list(product(sorted(set(sources)), sorted(set(slots))))
        alike = [
            set(some)
            for some in combinations(block, len(own))
            if sorted(source for source, _ in some) == sorted(sources)
            and sorted(slot for _, slot in some) == sorted(slots)
        ]
        fixed += sum(all(pair in other for other in alike) for pair in pairs)
    assert movable(kept) == len(edges) - fixed


def test_a_circuit_that_cannot_be_rewired_is_judged_by_nothing(published):
    """Each edge of a path is alone in its stage."""
    a = circuit(e0=1, e45=2)
    assert movable(a) == 0
    null = against_null(lambda c: jaccard(c, a), a, samples=5)
    assert (null.movable, null.moved, null.mean, null.std, null.p) == (0, 0, None, None, None)
    rows = {row["measure"]: row for row in side_by_side({"A": a, "B": a}, samples=5).to_pylist()}
    assert rows["edges that rewiring can move"]["B"] == 0
    assert rows["jaccard with A"]["B"] == 1
    for what in ("expected", "p"):
        assert rows[f"jaccard with A, {what}"]["B"] is None
        assert rows[f"weighted_jaccard with A, {what}"]["B"] is None
    b = top_k(published.wiring, published.scores, 200)
    rows = {row["measure"]: row for row in side_by_side({"A": b, "B": b}, samples=5).to_pylist()}
    assert (
        0
        < rows["edges that it moved"]["B"]
        <= rows["edges that rewiring can move"]["B"]
        == movable(b)
        < b.kept
    )
    assert rows["jaccard with A, p"]["B"] == 1 / 6


def test_side_by_side_has_a_column_a_run_and_compares_with_the_first(published):
    a, b = (top_k(published.wiring, published.scores, k) for k in (200, 300))
    table = side_by_side({"A": a, "B": b}, samples=5)
    rows = {row["measure"]: row for row in table.to_pylist()}
    assert rows["requested"] == {"measure": "requested", "A": 200.0, "B": 300.0}
    assert rows["jaccard with A"]["A"] is None
    assert rows["jaccard with A"]["B"] == pytest.approx(jaccard(a, b))
    assert 0 < rows["jaccard with A, expected"]["B"] < rows["jaccard with A"]["B"]
    assert 0 < rows["weighted_jaccard with A, p"]["B"] < 0.5
    assert rows["shared_heads with A"]["B"] == pytest.approx(shared_heads(a, b))
    assert "shared_heads with A, p" not in rows  # the null model keeps the heads
    assert "jaccard with A, p" not in side_by_side({"A": a, "B": b}, samples=0)["measure"].to_pylist()


def test_circuits_of_different_wirings_are_measured_and_not_compared(published):
    a = top_k(published.wiring, published.scores, 200)
    table = side_by_side({"A": a, "B": circuit(e0=1)}, samples=5)
    assert table["B"][0].as_py() == 1
    assert not any("with A" in measure for measure in table["measure"].to_pylist())


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    strength, members = rng.integers(0, 5, 30), rng.random(30) < 0.4
    pairs = [(x > y) + (x == y) / 2 for x in strength[members] for y in strength[~members]]
    assert auroc(strength, members) == pytest.approx(np.mean(pairs))


def test_what_cannot_be_compared_is_refused(published):
    a = top_k(published.wiring, published.scores, 200)
    with pytest.raises(InputError, match="different wirings"):
        jaccard(a, circuit(e0=1))
    with pytest.raises(InputError, match="persistence"):
        rank_biased_overlap(a, a, p=1)
    with pytest.raises(InputError, match="both members and others"):
        auroc([1, 2], [True, True])
    with pytest.raises(InputError, match="at least one sample"):
        against_null(lambda c: 0.0, a, samples=0)
    with pytest.raises(InputError, match="empty circuit"):
        against_null(lambda c: 0.0, circuit(), samples=5)
