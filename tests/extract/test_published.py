import copy
import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wirescope.data import (
    MEMBERSHIP,
    PublishedCircuit,
    Run,
    import_circuit,
    parse_circuit,
    read_catalog,
)
from wirescope.errors import InputError
from wirescope.extract import acdc_subgraph, mib_pt, read_pt
from wirescope.graphs import Inputs, Shape, Wiring, spelled, top_k

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
    torch.save(content | {"edges_scores": content["edges_scores"].bfloat16()}, tmp_path / "c.pt")
    circuit = read_pt(tmp_path / "c.pt")
    assert circuit.scores[36] == pytest.approx(-0.208455, rel=0.01)
    assert "dtype" not in circuit.config


def quantised(matrix: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(matrix, 0.1, 0, torch.qint8)


HOLLOW = {
    "sparse": lambda m: m.to_sparse(),
    "sparse by rows": lambda m: m.to_sparse_csr(),
    "expanded": lambda m: torch.zeros(1).expand(m.shape),
    "a row again and again": lambda m: m[:1].clone().expand(m.shape),
    "overlapping": lambda m: m.flatten()[: m.shape[1] + m.shape[0]].clone().as_strided(m.shape, (1, 1)),
    "without numbers": lambda m: m.to("meta"),
    "quantised": quantised,
    "complex": lambda m: m * 1j,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hollow", HOLLOW)
@pytest.mark.parametrize("key", ["edges_scores", "edges_in_graph"])
def test_a_matrix_whose_numbers_are_not_all_in_the_file_is_refused(tmp_path, content, hollow, key):
    torch.save(content | {key: HOLLOW[hollow](content[key].float())}, tmp_path / "c.pt")
    with pytest.raises(InputError, match=f"{key} is not a matrix of 157 x 445|cannot|safely"):
        read_pt(tmp_path / "c.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hollow", HOLLOW)
def test_prune_scores_whose_numbers_are_not_all_in_the_file_are_refused(tmp_path, hollow):
    scores = prune_scores("split")
    scores["blocks.1.hook_q_input"] = HOLLOW[hollow](scores["blocks.1.hook_q_input"])
    torch.save(scores, tmp_path / "c.pt")
    with pytest.raises(InputError, match=r"no numbers for 'blocks.1.hook_q_input' that can be read|safely"):
        read_pt(tmp_path / "c.pt")


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_a_matrix_far_larger_than_its_file_is_refused_at_once(tmp_path, cli):
    """Read, the first would take 160 GB, the second 20 GB."""
    at = torch.arange(200_000)
    sparse = torch.sparse_coo_tensor(torch.stack([at, at]), torch.ones(len(at)), (200_003, 200_005))
    expanded = torch.zeros(1).expand(70_003, 70_005)
    for scores in (sparse, expanded):
        torch.save(
            {
                "cfg": {"n_layers": 1, "n_heads": 1},
                "src_nodes": [f"n{i}" for i in range(len(scores))],
                "dst_nodes": [f"n{i}" for i in range(scores.shape[1])],
                "edges_scores": scores,
                "edges_in_graph": scores,
            },
            tmp_path / "c.pt",
        )
        result = cli("import", tmp_path / "c.pt", "--store", tmp_path / "s")
        assert result.status == 2
        assert len(result.err.splitlines()) == 1
        assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("form", ["packed", "overlapping"])
def test_an_archive_that_is_larger_inside_than_outside_is_refused(tmp_path, form):
    """What torch saves is not compressed, and no part of it is there twice."""
    torch.save(small() | {"zeros": torch.zeros(1 << 20)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "c.pt", "w") as other:
        for part in plain.infolist():
            kind = zipfile.ZIP_DEFLATED if form == "packed" else zipfile.ZIP_STORED
            other.writestr(part.filename, plain.read(part), compress_type=kind)
        if form == "overlapping":
            largest = max(other.infolist(), key=lambda part: part.file_size)
            for number in range(9):
                again = copy.copy(largest)
                again.filename = f"{largest.filename}{number}"
                other.filelist.append(again)
                other.NameToInfo[again.filename] = again
    assert read_pt(tmp_path / "plain.pt").listed is None
    with pytest.raises(InputError, match="is larger inside than outside, which nothing is that torch saves"):
        read_pt(tmp_path / "c.pt")


def test_a_file_without_an_end_is_not_read_to_it(tmp_path, cli):
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "zero.pt").symlink_to("/dev/zero")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    with (tmp_path / "holes.pt").open("wb") as file:
        file.truncate(1 << 40)
    for name, reason in (
        ("pipe.pt", "is not a file"),
        ("zero.pt", "is not a file"),
        ("zero.json", "is not a file"),
        ("holes.pt", "has more than 512 MB, the most that is read"),
    ):
        result = cli("import", tmp_path / name, "--store", tmp_path / "s")
        assert (result.status, len(result.err.splitlines())) == (2, 1)
        assert reason in result.err


def test_dictionaries_inside_one_another_are_looked_into_once(tmp_path):
    """Shared, they are few in the file and 10^12 on the way."""
    content: dict = {"end": 1}
    for _ in range(4):
        content = {f"k{i}": content for i in range(1000)}
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(InputError, match="is not a circuit of EAP-IG, prune scores"):
        read_pt(tmp_path / "c.pt")


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
        (lambda s: {"a": s, "b": {"c": {**s}}}, r"has 2 sets of prune scores \(a; b, c\): save one of them"),
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
    with pytest.raises(InputError, match=r"has no numbers for 'blocks.0.hook_q_input' that can be read"):
        read_pt(tmp_path / "c.pt")


def test_a_pickle_that_ends_too_early_is_refused(tmp_path):
    """Found by fuzzing: torch's unpickler looks for the top of an empty stack."""
    (tmp_path / "c.pt").write_bytes(b"\x80\x02q}X")
    with pytest.raises(InputError, match="not a circuit that torch can read safely"):
        read_pt(tmp_path / "c.pt")


def as_the_benchmark_chooses(file: Path, share: float, *, absolute: bool) -> tuple[int, set[str]]:
    """The edges that the benchmark keeps of a file: int(share n) by score, the largest first, then those on paths.

    Its loader takes the matrix as it is, by place: rows are sources, columns q, k, v of a layer's heads, its MLP, and
    last the logits; what is no edge of its own graph comes last whatever it scores.
    """
    content = torch.load(file, weights_only=True)
    assert {"cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph", "nodes_in_graph"} <= set(
        content
    )
    layers, heads, parallel = (content["cfg"][key] for key in ("n_layers", "n_heads", "parallel_attn_mlp"))
    rows, columns = ["input"], []
    written, read = {"input": -1.0}, {}
    for layer in range(layers):
        for head in range(heads):
            rows.append(f"a{layer}.h{head}")
            written[rows[-1]] = layer + (0.5 if parallel else 0.0)
        columns += [f"a{layer}.h{head}<{letter}>" for letter in "qkv" for head in range(heads)]
        read |= dict.fromkeys(columns[-3 * heads :], layer)
        rows.append(f"m{layer}")
        columns.append(f"m{layer}")
        written[f"m{layer}"], read[f"m{layer}"] = layer + 0.5, layer + 0.4
    columns.append("logits")
    read["logits"] = layers
    scores = content["edges_scores"].clone()
    assert scores.shape == (len(rows), len(columns))
    assert content["nodes_in_graph"].shape == (len(rows),)
    real = torch.tensor([[written[u] < read[v] for v in columns] for u in rows])
    assert torch.equal(real, scores != -torch.inf)
    scores = scores.abs() if absolute else scores
    scores[~real] = -torch.inf
    wanted = int(share * int(real.sum()))
    chosen = torch.argsort(scores.flatten(), descending=True, stable=True)[:wanted].tolist()
    edges = {(rows[at // len(columns)], columns[at % len(columns)]) for at in chosen}
    while True:
        fed = {"input"} | {v.partition("<")[0] for _, v in edges}
        used = {"logits"} | {u for u, _ in edges}
        kept = {(u, v) for u, v in edges if u in fed and v.partition("<")[0] in used}
        if kept == edges:
            return wanted, {f"{u}->{v}" for u, v in kept}
        edges = kept


@pytest.mark.parametrize("metric", ["logit_diff", "kl"])
@pytest.mark.parametrize("shape", [Shape(3, 4), Shape(2, 3, parallel=True)])
def test_the_benchmark_chooses_from_an_exported_file_the_circuit_that_we_choose(tmp_path, metric, shape):
    """By how much an edge helps, its measure CPR, and by strength, CMD; at all of its ten sizes."""
    wiring = Wiring(shape)
    run = Run(run="a", model="m", shape=shape, prompts=1, levels=("edge",), metric=metric)
    scores = np.random.default_rng(0).normal(size=wiring.n_edges).astype(np.float32)
    (tmp_path / "c.pt").write_bytes(mib_pt(top_k(wiring, scores, 9), scores, run))
    for share in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1):
        for absolute in (True, False):
            wanted, kept = as_the_benchmark_chooses(tmp_path / "c.pt", share, absolute=absolute)
            if not wanted:
                continue
            by = "task" if absolute else "signed"
            circuit = top_k(wiring, scores, wanted, by=by, sign=run.helpful_sign)
            assert kept == set(circuit.table()["name"].to_pylist())


@pytest.mark.parametrize("metric", [None, "logit_diff", "kl"])
@pytest.mark.parametrize(
    "form", ["mib c.json", "mib c.pt", "auto-circuit c.json", "node-link c.json", "cytoscape c.cyjs"]
)
def test_what_is_exported_and_imported_again_is_the_same(tmp_path, cli, metric, form):
    wiring = Wiring(Shape(2, 2))
    scores = np.random.default_rng(1).normal(size=wiring.n_edges).astype(np.float32)
    circuit = PublishedCircuit(wiring, scores, scores > 0, {"d_model": 8})
    first, again = tmp_path / "first", tmp_path / "again"
    import_circuit(circuit, first, run="c", source="f", model="m", method="eap", metric=metric)
    to, name = form.split()
    every = ("export", "-s", first, "-r", "c", "-k", wiring.n_edges, "--to", to, "-o", tmp_path / name)
    assert cli(*every).status == 0
    known = ("--metric", metric) if to == "auto-circuit" and metric else ()  # which has no place to say it
    assert cli("import", tmp_path / name, "-s", again, *known).status == 0
    table = pq.read_table(again / "edge_scores")
    assert np.array_equal(table["score"].to_numpy(), scores)
    run = read_catalog(again).run("c")
    assert (run.metric, run.method) == (metric, None if to == "auto-circuit" else "eap")
    assert run.helpful_sign == (1 if metric == "kl" else -1)


def test_a_file_is_of_a_loss_by_rule_and_of_the_metric_where_that_is_said(tmp_path, content, cli, published):
    torch.save(content, tmp_path / "c.pt")
    torch.save(content | {"sign": "metric"}, tmp_path / "ours.pt")
    torch.save(content | {"sign": "up"}, tmp_path / "bad.pt")
    for file, call, turned in (
        ("c", (), True),
        ("c", ("--sign", "metric", "-r", "c2"), False),
        ("ours", (), False),
        ("ours", ("--sign", "loss", "-r", "ours2"), True),
        ("c", ("--metric", "kl", "-r", "kl"), False),  # a divergence is a loss
    ):
        result = cli("import", tmp_path / f"{file}.pt", "-s", tmp_path / "s", *call)
        assert result.status == 0
        assert ("taken for those of a loss" in result.err) is (file == "c" and "--sign" not in call)
        run = call[-1] if call else file
        scores = pq.read_table(tmp_path / "s" / "edge_scores" / f"run={run}")["score"].to_numpy()
        assert np.array_equal(scores, 0 - published.scores if turned else published.scores)
    for wrong, said in (
        (("bad.pt",), "has scores of the sign 'up': it should be loss or metric."),
        (("c.pt", "--sign", "los"), "'los' is not a sign: choose from loss, metric. Did you mean 'loss'?"),
        (("c.pt", "--metric", "acc"), "'acc' is not a metric: choose from logit_diff, prob_diff, kl."),
    ):
        result = cli("import", tmp_path / wrong[0], *wrong[1:], "-s", tmp_path / "s", "-r", "x")
        assert result.status == 2
        assert said in result.err


def test_a_circuit_without_scores_has_no_sign_to_say(tmp_path, cli):
    torch.save(subgraph(2, 2, set(PATH)), tmp_path / "circuit.pth")
    result = cli("import", tmp_path / "circuit.pth", "-s", tmp_path / "s", "--sign", "loss")
    assert result.status == 2
    assert "has no scores that could be of the sign loss: leave it out" in result.err
    assert cli("import", tmp_path / "circuit.pth", "-s", tmp_path / "s").status == 0
    assert read_catalog(tmp_path / "s").run("circuit").helpful_sign == 1
