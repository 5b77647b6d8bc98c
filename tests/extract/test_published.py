import io
import json
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wirescope.data import MEMBERSHIP, parse_circuit
from wirescope.extract import acdc_subgraph, read_pt
from wirescope.graphs import InputError, Inputs, Shape, Wiring, spelled, top_k

AUTO_CIRCUIT = json.loads((Path(__file__).parents[1] / "data" / "auto-circuit.json").read_text())
"""What auto-circuit 1.0.1 itself calls the edges of a small model, by name and by module; see test_reading."""


@pytest.fixture
def content(published) -> dict:
    """The embedded circuit in the layout of EAP-IG: a matrix of sources x destinations, q, k, v by letter."""
    heads, layers = range(12), range(12)
    sources = list(published.wiring.node_names[:-1])
    destinations = []
    for layer in layers:
        destinations += [f"a{layer}.h{head}<{letter}>" for letter in "qkv" for head in heads]
        destinations.append(f"m{layer}")
    destinations.append("logits")
    scores = torch.full((157, 445), 99.0)  # what is no edge must not be read
    marked = torch.ones(157, 445, dtype=torch.bool)
    for name, score, inside in zip(
        published.wiring.edge_names().to_pylist(), published.scores, published.in_graph, strict=True
    ):
        source, destination = name.split("->")
        at = sources.index(source), destinations.index(destination)
        scores[at], marked[at] = float(score), bool(inside)
    return {
        "cfg": dict(published.config),
        "src_nodes": sources,
        "dst_nodes": destinations,
        "edges_scores": scores,
        "edges_in_graph": marked,
        "nodes_in_graph": torch.ones(157, dtype=torch.bool),
    }


def test_a_pt_file_is_the_same_circuit_as_its_json(tmp_path, published, content, cli):
    torch.save(content, tmp_path / "c.pt")
    circuit = read_pt(tmp_path / "c.pt")
    assert circuit.wiring == published.wiring
    assert np.array_equal(circuit.scores, published.scores)
    assert np.array_equal(circuit.in_graph, published.in_graph)
    assert cli("import", tmp_path / "c.pt", "--store", tmp_path / "s").status == 0
    assert "45 kept" in cli("top", "-s", tmp_path / "s", "-r", "c", "-k", 64, "-f", "csv").err


def test_scores_of_any_kind_of_number_are_read(tmp_path, content):
    content["cfg"]["dtype"] = torch.bfloat16
    for scores in (content["edges_scores"].bfloat16(), content["edges_scores"].to_sparse()):
        torch.save(content | {"edges_scores": scores}, tmp_path / "c.pt")
        circuit = read_pt(tmp_path / "c.pt")
        assert circuit.scores[36] == pytest.approx(-0.208455, rel=0.01)
        assert "dtype" not in circuit.config


def drop(content, key):
    del content[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: drop(c, "edges_scores"), "it has no edges_scores, or not of its kind"),
        (lambda c: drop(c, "edges_in_graph"), "edges_in_graph is not a matrix of 157 x 445"),
        (lambda c: c.update(cfg=[1]), "it has no cfg, or not of its kind"),
        (lambda c: c.update(src_nodes=5), "it has no src_nodes, or not of its kind"),
        (lambda c: c.update(edges_scores=torch.zeros(3, 3)), "edges_scores is not a matrix of 157 x 445"),
        (
            lambda c: c.update(edges_scores=c["edges_scores"] * 1j),
            "edges_scores is not a matrix of 157 x 445",
        ),
        (lambda c: c["src_nodes"].__setitem__(5, [1]), "lacks the node 'a0.h4'"),
        (lambda c: c["src_nodes"].__setitem__(5, "x"), "lacks the node 'a0.h4'"),
        (
            lambda c: c["edges_scores"].__setitem__((0, 36), float("nan")),
            "the score nan for the edge input->m0",
        ),
        (lambda c: c["cfg"].update(n_layers=10**5), "has room for 69,865 edges; a model of 100000 layers"),
    ],
)
def test_a_pt_file_that_is_no_circuit_is_refused(tmp_path, content, change, message):
    change(content)
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(InputError, match=message):
        read_pt(tmp_path / "c.pt")


class Payload:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_pt_file_cannot_run_code(tmp_path, capsys):
    torch.save({"cfg": Payload()}, tmp_path / "evil.pt")
    (tmp_path / "evil2.pt").write_bytes(pickle.dumps(Payload(), protocol=2))
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("evil.pt", "evil2.pt", "empty.pt"):
        with pytest.raises(InputError, match="not a circuit that torch can read safely"):
            read_pt(tmp_path / name)
    assert "this must not run" not in capsys.readouterr().out


def prune_scores(variant: str) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(scores) for name, scores in AUTO_CIRCUIT[variant]["modules"].items()}


@pytest.mark.parametrize("variant", AUTO_CIRCUIT)
def test_prune_scores_are_the_same_circuit_as_the_names_of_auto_circuit(tmp_path, variant, cli):
    torch.save(prune_scores(variant), tmp_path / "c.pt")
    circuit = read_pt(tmp_path / "c.pt")
    other = parse_circuit(
        AUTO_CIRCUIT[variant]["edges"], "f", shape=Shape(2, 2, parallel=variant == "parallel")
    )
    assert circuit.wiring == other.wiring
    assert np.array_equal(circuit.scores, other.scores)
    torch.save({"IOI": {"EAP": prune_scores(variant)}}, tmp_path / "cache.pkl")
    assert np.array_equal(read_pt(tmp_path / "cache.pkl").scores, circuit.scores)
    said = cli("import", tmp_path / "cache.pkl", "--store", tmp_path / "s").err
    assert (
        f"Run 'cache' in '{tmp_path}/s': {len(AUTO_CIRCUIT[variant]['edges'])} edges of a model of 2 layers"
        in said
    )
    assert ("the other 17 have score 0" in said) is (variant == "attention only")


def test_true_and_false_prune_scores_are_a_circuit_without_scores(tmp_path):
    torch.save({name: scores > 0 for name, scores in prune_scores("split").items()}, tmp_path / "c.pt")
    circuit = read_pt(tmp_path / "c.pt")
    above = {name for name, score in AUTO_CIRCUIT["split"]["edges"].items() if score > 0}
    kept = circuit.wiring.edge_names(np.flatnonzero(circuit.scores)).to_pylist()
    assert set(spelled(kept, "auto-circuit", 2)) == above
    assert circuit.sign == MEMBERSHIP


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {k: v.unsqueeze(0) for k, v in s.items()}, "for each token position in 'blocks.0.hook_k_input'"),
        (lambda s: {"a": s, "b": {"c": s}}, r"has 2 sets of prune scores \(a; b, c\): save one of them"),
        (lambda s: s | {"blocks.0.hook_z": torch.ones(2)}, "'blocks.0.hook_z', which is no input of a transf"),
        (lambda s: s | {"blocks.0.hook_q_input": [1.0]}, "'blocks.0.hook_q_input', which is no input of a transf"),
        (lambda s: s | {"blocks.0.hook_q_input": torch.tensor(1.0)}, r"of the shape \(\) for 'blocks.0.hook_q_input'"),
        (lambda s: s | {"blocks.1.hook_k_input": torch.ones(3, 4)}, r"of the shape \(3, 4\) for 'blocks.1.hook_k"),
        (lambda s: s | {"blocks.1.hook_mlp_in": torch.ones(99)}, "from 99 sources; a model of 2 layers x 2 hea"),
        (lambda s: s | {"blocks.1.hook_mlp_in": torch.ones(7)}, "m1 does not read what m1 writes"),
        (lambda s: s | {"blocks.1.hook_mlp_in": torch.ones(5)}, "has 45 of the 46 edges of a model of 2 layers"),
        (lambda s: s | {"blocks.1.hook_mlp_in": torch.full((6,), torch.nan)}, "the score nan for the edge input->m1"),
        (lambda s: {k: v for k, v in s.items() if "hook_resid" not in k}, "has 39 of the 46 edges"),
        (lambda s: {k: v for k, v in s.items() if "input" not in k}, "has prune scores for no attention head"),
    ],
)  # fmt: skip
def test_prune_scores_of_no_wiring_are_refused(tmp_path, change, message):
    torch.save(change(prune_scores("split")), tmp_path / "c.pt")
    with pytest.raises(InputError, match=message):
        read_pt(tmp_path / "c.pt")


def subgraph(layers: int, heads: int, kept: set[str]) -> OrderedDict:
    """What ACDC's ``save_subgraph`` has of a model: its residual edges, and those inside its heads and MLPs."""
    edges = OrderedDict()
    names = Wiring(Shape(layers, heads)).edge_names().to_pylist()
    for name, hooks in zip(names, spelled(names, "ACDC", layers), strict=True):
        (sender, at), (receiver, to) = (part.rstrip("]").split("[") for part in hooks.split("->"))
        numbers = [tuple(None if one == ":" else int(one) for one in index.split(", ")) for index in (at, to)]
        edges[receiver, numbers[1], sender, numbers[0]] = name in kept
    for layer in range(layers):
        for head in range(heads):
            for letter in "qkv":
                place = (None, None, head)
                inner = f"blocks.{layer}.attn.hook_{letter}"
                edges[inner, place, f"blocks.{layer}.hook_{letter}_input", place] = True
                edges[f"blocks.{layer}.attn.hook_result", place, inner, place] = True
        edges[f"blocks.{layer}.hook_mlp_out", (None,), f"blocks.{layer}.hook_mlp_in", (None,)] = True
    return edges


PATH = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]


def test_a_subgraph_of_acdc_is_a_circuit_without_scores(tmp_path, cli):
    edges = subgraph(2, 2, set(PATH))
    torch.save(edges, tmp_path / "circuit.pth")
    circuit = read_pt(tmp_path / "circuit.pth")  # all edges are there, so that they say the shape
    assert circuit.wiring.shape == Shape(2, 2)
    assert circuit.wiring.edge_names(np.flatnonzero(circuit.scores)).to_pylist() == PATH
    # ACDC takes edges out as it goes: what is left is a part
    torch.save({edge: True for edge, present in edges.items() if present}, tmp_path / "circuit.pth")
    with pytest.raises(InputError, match="has 3 edges and does not say of how large a model"):
        read_pt(tmp_path / "circuit.pth")
    again = read_pt(tmp_path / "circuit.pth", shape=Shape(2, 2))
    assert np.array_equal(again.scores, circuit.scores)
    with pytest.raises(InputError, match="is of a model of 2 layers, not 3"):
        read_pt(tmp_path / "circuit.pth", shape=Shape(3, 2))
    call = ("import", tmp_path / "circuit.pth", "-s", tmp_path / "s", "--layers", 2, "--heads", 2)
    assert (
        "a circuit of 3 edges of a model of 2 layers x 2 heads without scores; these have 1" in cli(*call).err
    )
    assert "3 units requested at the level edge, 3 kept" in cli(
        "top", "-s", tmp_path / "s", "-r", "circuit", "--threshold", 1
    ).err  # fmt: skip


def test_a_circuit_is_written_with_every_edge_that_acdc_asks_for(tmp_path):
    """Its loader wants exactly the edges of its own graph."""
    wiring = Wiring(Shape(2, 2))
    scores = np.zeros(wiring.n_edges, dtype=np.float32)
    scores[wiring.edge_ids(PATH)] = 1
    (tmp_path / "c.pth").write_bytes(acdc_subgraph(top_k(wiring, scores, 3)))
    assert torch.load(tmp_path / "c.pth", weights_only=True) == subgraph(2, 2, set(PATH))
    assert np.array_equal(read_pt(tmp_path / "c.pth").scores, scores)
    for shape, reason in (
        (Shape(2, 2, inputs=Inputs.MERGED), "has merged inputs."),
        (Shape(2, 2, parallel=True), "both at once"),
    ):
        other = Wiring(shape)
        with pytest.raises(InputError, match=reason):
            acdc_subgraph(top_k(other, np.ones(other.n_edges), 3))


def test_an_input_that_is_cut_off_inside_its_head_takes_no_edge(tmp_path):
    edges = subgraph(2, 2, set(PATH))
    edges["blocks.0.attn.hook_v", (None, None, 1), "blocks.0.hook_v_input", (None, None, 1)] = False
    torch.save(edges, tmp_path / "c.pth")
    circuit = read_pt(tmp_path / "c.pth")
    assert circuit.wiring.edge_names(np.flatnonzero(circuit.scores)).to_pylist() == PATH[1:]


class TorchIndex:
    """Stands for the class of ACDC that its pickles are full of."""


def test_a_pickle_of_acdc_is_not_loaded_but_explained(tmp_path):
    (tmp_path / "edges.pkl").write_bytes(pickle.dumps([(("a", TorchIndex(), "b", TorchIndex()), 0.1)]))
    with pytest.raises(
        InputError, match=r"a pickle of ACDC's save_edges.* save the circuit with exp\.save_subgraph"
    ):
        read_pt(tmp_path / "edges.pkl")


@pytest.mark.parametrize("key", [(1, 2, 3, 4), ("a", None, "b", [1]), ("hook_embed", (None,), "x", (None,))])
def test_other_dictionaries_of_four_are_refused(tmp_path, key):
    torch.save({tuple(str(k) if isinstance(k, list) else k for k in key): True}, tmp_path / "c.pt")
    with pytest.raises(InputError, match="is not a component of a transformer"):
        read_pt(tmp_path / "c.pt")


def small() -> dict:
    """A circuit of a model of one layer and one head."""
    sources, destinations = ["input", "a0.h0", "m0"], ["a0.h0<q>", "a0.h0<k>", "a0.h0<v>", "m0", "logits"]
    scores = torch.ones(len(sources), len(destinations))
    return {
        "cfg": {"n_layers": 1, "n_heads": 1},
        "src_nodes": sources,
        "dst_nodes": destinations,
        "edges_scores": scores,
        "edges_in_graph": scores > 0,
    }


def saved(content, **options) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


WHOLE = [saved(small()), saved(small(), _use_new_zipfile_serialization=False), pickle.dumps({"cfg": 1}, 2)]


def read_or_refused(folder, content: bytes) -> None:
    (folder / "c.pt").write_bytes(content)
    try:
        circuit = read_pt(folder / "c.pt")
    except InputError as error:
        assert str(error).startswith(f"'{folder / 'c.pt'}' ")
    else:
        assert np.isfinite(circuit.scores).all()


@given(
    st.sampled_from(WHOLE),
    st.lists(st.tuples(st.integers(0), st.binary(max_size=4), st.integers(0, 4)), max_size=4),
)
@settings(max_examples=300)
@pytest.mark.filterwarnings("ignore")  # torch warns of the protocol of a pickle that is none
def test_any_bytes_are_a_pt_file_or_refused(tmp_path_factory, content, changes):
    """Whole files, of which some bytes are replaced by others, or more, or fewer."""
    for place, some, length in changes:
        at = place % len(content) if content else 0
        content = content[:at] + some + content[at + length :]
    read_or_refused(tmp_path_factory.mktemp("pt"), content)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
tensors = st.sampled_from(
    [
        torch.zeros(3, 5),
        torch.full((3, 5), float("nan")),
        torch.zeros(0),
        torch.zeros(3, 5, dtype=torch.complex64),
        torch.zeros(3, 5).to_sparse(),
        torch.tensor(5),
        torch.zeros(3, 5, device="meta"),
    ]
)
odd = plain | tensors | st.lists(plain, max_size=5) | st.dictionaries(plain, plain, max_size=3)


@given(
    st.sampled_from([*small(), "cfg n_layers", "cfg n_heads", "cfg other", "src_nodes 0", "dst_nodes 4"]), odd
)
@settings(max_examples=300)
@pytest.mark.filterwarnings("ignore")
def test_no_content_of_a_pt_file_makes_the_reader_crash(tmp_path_factory, place, oddity):
    content = small()
    key, _, inner = place.partition(" ")
    if inner:
        content[key][int(inner) if inner.isdigit() else inner] = oddity
    else:
        content[key] = oddity
    read_or_refused(tmp_path_factory.mktemp("pt"), saved(content))


def test_prune_scores_without_numbers_are_refused(tmp_path):
    torch.save({"blocks.0.hook_q_input": torch.empty(2, 1, device="meta")}, tmp_path / "c.pt")
    with pytest.raises(InputError, match="which is no input of a transformer"):
        read_pt(tmp_path / "c.pt")


def test_a_pickle_that_ends_too_early_is_refused(tmp_path):
    """Found by fuzzing: torch's unpickler looks for the top of an empty stack."""
    (tmp_path / "c.pt").write_bytes(b"\x80\x02q}X")
    with pytest.raises(InputError, match="not a circuit that torch can read safely"):
        read_pt(tmp_path / "c.pt")
