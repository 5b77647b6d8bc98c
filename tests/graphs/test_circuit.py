import igraph
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.errors import InputError
from wirescope.graphs import (
    Inputs,
    Shape,
    Wiring,
    at_least,
    greedy,
    mass,
    needed_everywhere,
    on_a_path,
    ranking,
    top_k,
)

TINY = Wiring(
    Shape(1, 1)
)  # input->a0.h0<q,k,v>, input->m0, a0.h0->m0, input->logits, a0.h0->logits, m0->logits


@pytest.mark.parametrize(
    ("requested", "kept", "sources"),
    [
        (32, 21, 12),
        (64, 45, 17),
        (162, 145, 34),
        (324, 276, 46),
        (649, 608, 72),
        (1624, 1573, 113),
        (3249, 3212, 145),
        (6498, 6498, 157),
        (16245, 16245, 157),
    ],
)
def test_top_k_keeps_the_published_number_of_edges_and_sources(published, requested, kept, sources):
    circuit = top_k(published.wiring, published.scores, requested)
    assert (circuit.requested, circuit.kept, len(circuit.sources)) == (requested, kept, sources)


@pytest.mark.parametrize(
    ("requested", "kept"), [(100, 80), (200, 190), (250, 225), (300, 273), (500, 486), (1000, 967)]
)
def test_greedy_keeps_the_published_number_of_edges(published, requested, kept):
    circuit = greedy(published.wiring, published.scores, requested)
    assert (circuit.requested, circuit.kept) == (requested, kept)


def test_the_published_circuit_is_the_top_800(published):
    circuit = top_k(published.wiring, published.scores, 800)
    assert np.array_equal(circuit.edges, np.flatnonzero(published.in_graph))


def test_the_published_file_has_the_known_strongest_edges(published):
    order = ranking(published.scores)
    assert published.wiring.edge_names(order[:7]).to_pylist() == [
        "a9.h9->logits",
        "input->m0",
        "a10.h7->logits",
        "a9.h6->logits",
        "a11.h10->logits",
        "a9.h9->a11.h10<q>",
        "a5.h5->a8.h6<v>",
    ]


def test_ties_are_broken_by_edge_id():
    scores = [1, -1, 1, 1, -1, 1, 1, 1]
    assert ranking(np.array(scores, dtype=np.float32)).tolist() == list(range(8))
    many = np.random.default_rng(0).integers(-3, 4, 5000).astype(np.float32)
    assert ranking(many).tolist() == sorted(range(5000), key=lambda edge: (-abs(many[edge]), edge))
    circuit = top_k(TINY, scores, 6)  # the edges 0 to 5, of which only input->logits leads anywhere
    assert (circuit.requested, circuit.edges.tolist()) == (6, [5])


@given(
    st.builds(Shape, st.integers(1, 3), st.just(4), st.just(2), st.booleans(), st.sampled_from(Inputs)),
    st.integers(0, 2**32 - 1),
    st.floats(0, 0.6),
)
def test_an_edge_is_kept_if_it_lies_on_a_path(shape, seed, share):
    """Against igraph: reachable from `input`, and from there to `logits`."""
    wiring = Wiring(shape)
    keep = np.random.default_rng(seed).random(wiring.n_edges) < share
    graph = igraph.Graph(wiring.n_nodes, directed=True)
    graph.add_edges(zip(wiring.edge_src[keep].tolist(), wiring.edge_dst[keep].tolist(), strict=True))
    graph.add_edges(wiring.feeds.tolist())
    reached = set(graph.subcomponent(wiring.input, mode="out"))
    useful = set(graph.subcomponent(wiring.logits, mode="in"))
    expected = [
        keep[e] and wiring.edge_src[e] in reached and wiring.edge_dst[e] in useful
        for e in range(wiring.n_edges)
    ]
    assert on_a_path(wiring, keep).tolist() == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.booleans(), st.sampled_from(Inputs))
def test_greedy_takes_the_strongest_edge_that_reaches_the_circuit(seed, k, signed, inputs):
    """Against a search of all edges at every step."""
    wiring = Wiring(Shape(2, 4, kv_heads=2, inputs=inputs))
    scores = np.round(np.random.default_rng(seed).normal(size=wiring.n_edges), 1).astype(np.float32)
    strength = -scores if signed else np.abs(scores)
    inside, taken = {wiring.logits}, []
    while len(taken) < k:
        inside |= {shared for shared, head in wiring.feeds.tolist() if head in inside}
        open_edges = [e for e in range(wiring.n_edges) if wiring.edge_dst[e] in inside and e not in taken]
        best = min(open_edges, key=lambda e: (-strength[e], e))
        taken.append(best)
        inside.add(int(wiring.edge_src[best]))
    keep = np.zeros(wiring.n_edges, dtype=bool)
    keep[taken] = True
    assert (
        greedy(wiring, scores, k, by="signed" if signed else "task").edges.tolist()
        == np.flatnonzero(on_a_path(wiring, keep)).tolist()
    )


@pytest.mark.parametrize(
    ("k", "share"), [(10, 26.1), (32, 39.6), (100, 56.0), (324, 73.1), (1000, 85.8), (3249, 94.0)]
)
def test_mass_is_the_inverse_of_the_share_of_the_top_k(published, k, share):
    strength = np.abs(published.scores).astype(np.float64)[ranking(published.scores)]
    exact = strength[:k].sum() / strength.sum()
    assert round(100 * exact, 1) == share
    assert mass(published.wiring, published.scores, exact - 1e-9).requested == k
    assert mass(published.wiring, published.scores, exact + 1e-7).requested == k + 1
    assert (
        mass(published.wiring, published.scores, 1.0).requested == published.wiring.n_edges - 14
    )  # 14 are zero


def test_a_threshold_takes_all_edges_at_least_so_strong(published):
    circuit = at_least(published.wiring, published.scores, 0.05)
    assert circuit.requested == int((np.abs(published.scores) >= 0.05).sum())
    assert circuit == top_k(published.wiring, published.scores, circuit.requested)


def test_signed_takes_the_edges_that_help_the_behaviour(published):
    """Their scores are negative, because ablating them lowers the metric."""
    circuit = top_k(published.wiring, published.scores, 162, by="signed")
    names = circuit.table()["name"].to_pylist()
    assert circuit.kept > 0
    assert (circuit.scores < 0).all()
    assert "a9.h9->logits" in names
    assert "a10.h7->logits" not in names  # strong, but it works against the behaviour


@pytest.mark.parametrize(
    "shape", [Shape(3, 2), Shape(3, 2, inputs=Inputs.MERGED), Shape(3, 2, parallel=True)]
)
def test_a_node_is_needed_everywhere_if_a_key_or_value_is_made_of_it(shape):
    wiring = Wiring(shape)
    names = wiring.edge_names().to_pylist()
    some = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        keep = on_a_path(wiring, rng.random(wiring.n_edges) < rng.uniform(0.1, 0.6))
        edges = [name.split("->") for name, kept in zip(names, keep, strict=True) if kept]

        def needed(node, edges=edges):
            """Followed edge by edge: into a key or value, or into something that is needed everywhere itself."""
            slots = [slot for source, slot in edges if source == node]
            return any(
                slot.endswith(("<k>", "<v>"))
                or (slot[0] == "a" and "<" not in slot)
                or needed(slot.partition("<")[0])
                for slot in slots
            )

        expected = [needed(node) for node in wiring.node_names]
        assert needed_everywhere(wiring, keep).tolist() == expected
        some += expected
    assert 0.1 < np.mean(some) < 0.9


def test_a_circuit_knows_its_nodes_and_heads(published):
    circuit = top_k(published.wiring, published.scores, 64)
    table = circuit.table()
    ends = set(table["src"].to_pylist()) | set(table["dst"].to_pylist())
    assert {published.wiring.node_names[node] for node in circuit.nodes} == ends
    assert {published.wiring.node_names[node] for node in circuit.heads} == {n for n in ends if n[0] == "a"}
    assert np.abs(table["score"].to_numpy()).tolist() == sorted(np.abs(circuit.scores), reverse=True)


@pytest.mark.parametrize("k", [0, -3, 32_492])
@pytest.mark.parametrize("choose", [top_k, greedy])
def test_a_k_beyond_the_wiring_is_refused_with_its_size(published, choose, k):
    with pytest.raises(InputError, match=f"k is {k}, but the wiring .* has 32,491 edges"):
        choose(published.wiring, published.scores, k)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(InputError, match="share"):
        mass(TINY, np.ones(8), share)


@pytest.mark.parametrize("threshold", [-1, float("nan")])
def test_an_impossible_threshold_is_refused(threshold):
    with pytest.raises(InputError, match="threshold"):
        at_least(TINY, np.ones(8), threshold)


def test_scores_that_are_no_numbers_are_refused_by_name():
    with pytest.raises(InputError, match=r"The score of input->m0 is nan"):
        top_k(TINY, [0, 0, 0, np.nan, 0, 0, 0, 0], 2)
    with pytest.raises(InputError, match="7 scores do not fit a wiring of 8 edges"):
        top_k(TINY, np.ones(7), 2)
