import gzip
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.data import EMBEDDED
from wirescope.errors import InputError
from wirescope.graphs import KINDS, SLOTS, Inputs, Shape, Wiring

COUNTS = [
    (Shape(12, 12), 32_491),
    (Shape(12, 12, inputs=Inputs.MERGED), 11_611),
    (Shape(24, 16), 231_877),
    (Shape(24, 16, inputs=Inputs.MERGED), 80_965),
    (Shape(48, 25), 2_235_025),
    (Shape(48, 25, inputs=Inputs.MERGED), 766_225),
    (Shape(16, 16), 101_273),
    (Shape(16, 16, inputs=Inputs.MERGED), 35_481),
    (Shape(32, 32), 1_592_881),
    (Shape(32, 32, inputs=Inputs.MERGED), 543_281),
    (Shape(32, 32, kv_heads=8), 1_592_881),
    (Shape(32, 32, kv_heads=8, inputs=Inputs.GROUPED), 805_681),
    (Shape(12, 12, parallel=True), 32_347),
]

shapes = st.builds(
    lambda layers, kv, group, parallel, inputs: Shape(layers, kv * group, kv, parallel, inputs),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(Inputs),
)


def obvious_edges(shape: Shape) -> list[str]:
    """All edges by their definition, one at a time: the stream holds what has been written so far."""
    edges, stream = [], ["input"]
    group = shape.heads // shape.kv_heads
    for layer in range(shape.layers):
        heads = [f"a{layer}.h{head}" for head in range(shape.heads)]
        slots = {
            Inputs.SPLIT: [f"{head}<{letter}>" for head in heads for letter in "qkv"],
            Inputs.MERGED: heads,
            Inputs.GROUPED: [f"{head}<q>" for head in heads]
            + [f"a{layer}.kv{i}<{letter}>" for i in range(shape.heads // group) for letter in "kv"],
        }[shape.inputs]
        if shape.parallel:
            edges += [f"{source}->{slot}" for source in stream for slot in [*slots, f"m{layer}"]]
            stream += heads
        else:
            edges += [f"{source}->{slot}" for source in stream for slot in slots]
            stream += heads
            edges += [f"{source}->m{layer}" for source in stream]
        stream.append(f"m{layer}")
    return edges + [f"{source}->logits" for source in stream]


@pytest.mark.parametrize(("shape", "count"), COUNTS)
def test_the_wiring_has_the_published_number_of_edges(shape, count):
    assert shape.n_edges == count
    assert Wiring(shape).n_edges == count


@given(shapes)
def test_the_wiring_is_the_obvious_one_in_the_obvious_order(shape):
    wiring = Wiring(shape)
    assert wiring.edge_names().to_pylist() == obvious_edges(shape)
    assert wiring.n_edges == shape.n_edges


@given(shapes)
def test_names_and_ids_are_inverse(shape):
    wiring = Wiring(shape)
    assert np.array_equal(wiring.edge_ids(wiring.edge_names()), np.arange(wiring.n_edges))
    assert np.array_equal(wiring.node_ids(wiring.node_names), np.arange(wiring.n_nodes))


@given(shapes)
def test_ids_are_topological(shape):
    wiring = Wiring(shape)
    assert (wiring.edge_src < wiring.edge_dst).all()
    assert (wiring.feeds[:, 0] < wiring.feeds[:, 1]).all()
    assert np.array_equal(np.sort(np.concatenate([np.arange(s.edges.start, s.edges.stop) for s in wiring.stages])),
                          np.arange(wiring.n_edges))  # fmt: skip


def test_names_are_in_the_order_of_the_published_file(published):
    content = json.loads(gzip.decompress(EMBEDDED.read_bytes()))
    assert published.wiring.edge_names().to_pylist() == list(content["edges"])
    assert list(published.wiring.node_names) == list(content["nodes"])


def test_the_tables_say_what_the_names_say():
    wiring = Wiring(Shape(2, 4, kv_heads=2, inputs=Inputs.GROUPED))
    nodes = wiring.node_table().to_pylist()
    for row in wiring.edge_table().to_pylist():
        source, destination = nodes[row["src"]], nodes[row["dst"]]
        suffix = f"<{row['slot']}>" if row["slot"] else ""
        assert row["name"] == f"{source['name']}->{destination['name']}{suffix}"
        assert (row["src_layer"], row["dst_layer"]) == (source["layer"], destination["layer"])
        assert (row["src_kind"], row["dst_kind"]) == (source["kind"], destination["kind"])
    by_name = {row["name"]: row for row in nodes}
    assert by_name["input"] == {"node_id": 0, "name": "input", "kind": "input", "layer": -1, "head": None}
    assert by_name["a1.h3"]["layer"] == 1
    assert by_name["a1.h3"]["head"] == 3
    assert by_name["a1.kv1"]["kind"] == "kv"
    assert by_name["logits"]["layer"] == 2
    assert {row["kind"] for row in nodes} == set(KINDS)
    assert set(SLOTS) == {row["slot"] for row in wiring.edge_table().to_pylist()}


def test_a_key_value_head_feeds_its_own_query_heads():
    wiring = Wiring(Shape(1, 4, kv_heads=2, inputs=Inputs.GROUPED))
    feeds = [tuple(wiring.node_names[node] for node in pair) for pair in wiring.feeds]
    assert feeds == [("a0.kv0", "a0.h0"), ("a0.kv0", "a0.h1"), ("a0.kv1", "a0.h2"), ("a0.kv1", "a0.h3")]


def test_olmo_7b_fits_in_100_mb():
    tracemalloc.start()
    Wiring(Shape(32, 32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nonsense", "'nonsense' is not the name of an edge"),
        ("m0->m1<x>", "is not the name of an edge"),
        ("a0.h0->a12.h0<q>", "has no node 'a12.h0'"),
        ("a0.h0->a1.h12<q>", "has no node 'a1.h12'. Did you mean 'a1.h2'?"),
        ("m4->m2", "m2 does not read what m4 writes"),
        ("a0.h0->a0.h1<q>", "a0.h1 does not read what a0.h0 writes"),
        ("a0.h0->a1.h1", "it would be a0.h0->a1.h1<q> or a0.h0->a1.h1<k> or a0.h0->a1.h1<v>"),
        ("input->m0<q>", "it would be input->m0."),
        ("m0->input", "nothing runs into input"),
        ("logits->m0", "m0 does not read what logits writes"),
    ],
)
def test_a_name_that_is_no_edge_is_refused_with_the_reason(name, reason):
    with pytest.raises(InputError) as error:
        Wiring(Shape(12, 12)).edge_ids(["input->m0", name])
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "wrong", [{"layers": 0, "heads": 2}, {"layers": 2, "heads": -1}, {"layers": 2, "heads": 3, "kv_heads": 2}]
)
def test_an_impossible_shape_is_refused(wrong):
    with pytest.raises(InputError):
        Shape(**wrong)
