import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.errors import InputError
from wirescope.graphs import CONVENTIONS, Inputs, Shape, Wiring, renamed, spelled

TABLE = [
    ("input->a9.h3<q>", "Resid Start->A9.3.Q", "blocks.0.hook_resid_pre[:]->blocks.9.hook_q_input[:, :, 3]"),
    ("a9.h3->m9", "A9.3->MLP 9", "blocks.9.attn.hook_result[:, :, 3]->blocks.9.hook_mlp_in[:]"),
    ("m9->logits", "MLP 9->Resid End", "blocks.9.hook_mlp_out[:]->blocks.11.hook_resid_post[:]"),
]


def ends(names):
    return [tuple(name.split("->")) for name in names]


def test_the_names_are_those_of_the_table():
    ours, auto_circuit, acdc = map(list, zip(*TABLE, strict=True))
    assert spelled(ours, "auto-circuit", layers=12) == auto_circuit
    assert spelled(ours, "ACDC", layers=12) == acdc
    for names in (ours, auto_circuit, acdc):
        assert renamed(ends(names)).names == ours


@given(
    st.builds(
        Shape,
        st.integers(1, 12),
        st.integers(1, 12),
        parallel=st.booleans(),
        inputs=st.sampled_from([Inputs.SPLIT, Inputs.MERGED]),
    ),
    st.sampled_from(list(CONVENTIONS)),
)
def test_every_edge_comes_back_from_the_names_of_others(shape, convention):
    if convention == "ACDC":
        shape = Shape(shape.layers, shape.heads, parallel=shape.parallel)  # it has no other inputs
    names = Wiring(shape).edge_names().to_pylist()
    theirs = spelled(names, convention, shape.layers)
    assert len(set(theirs)) == len(names)
    again = renamed(ends(theirs))
    assert again.names == names
    assert (again.layers, again.heads) == (shape.layers, shape.heads)
    assert again.says_layers is (convention == "ACDC")


def test_edges_inside_a_component_are_left_out_and_say_which_inputs_are_cut_off():
    q_input, q, result = (
        f"blocks.1.{hook}[:, :, 0]" for hook in ("hook_q_input", "attn.hook_q", "attn.hook_result")
    )
    edges = [
        ("blocks.0.hook_resid_pre[:]", q_input),
        (q_input, q),
        (q, result),
        ("blocks.1.hook_mlp_in[:]", "blocks.1.hook_mlp_out[:]"),
        (result, "blocks.1.hook_resid_mid[:]"),
    ]
    found = renamed(edges)
    assert found.names == ["input->a1.h0<q>", "a1.h0->m1"]
    assert found.at == [0, 4]
    assert found.closed == set()
    assert renamed(edges, absent=[1, 3]).closed == {"a1.h0<q>", "m1"}
    drawing = [("<embed>", "<a1.0_q>"), ("<a1.0_q>", "<a1.0>"), ("<a1.0>", "<resid_post>")]
    assert renamed(drawing).names == ["input->a1.h0<q>", "a1.h0->logits"]


def test_a_name_that_is_none_is_named_with_what_was_meant():
    with pytest.raises(InputError, match=r"'MPL 0' is not a component.* A9.3.Q. Did you mean 'MLP 0'\?"):
        renamed(ends(["Resid Start->MLP 0", "A0.0->MPL 0"]))
    with pytest.raises(InputError, match=r"'hook_embed\[:\]' is not a component"):
        renamed([("blocks.0.hook_mlp_out[:]", "blocks.1.hook_mlp_in[:]"), ("hook_embed[:]", "x")])
    with pytest.raises(InputError, match=r"auto-circuit has no name for 'a0\.kv0<k>'"):
        spelled(["input->a0.kv0<k>"], "auto-circuit", layers=1)
