import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wirescope.extract import read_pt
from wirescope.graphs import InputError


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


def test_a_pickle_that_ends_too_early_is_refused(tmp_path):
    """Found by fuzzing: torch's unpickler looks for the top of an empty stack."""
    (tmp_path / "c.pt").write_bytes(b"\x80\x02q}X")
    with pytest.raises(InputError, match="not a circuit that torch can read safely"):
        read_pt(tmp_path / "c.pt")
