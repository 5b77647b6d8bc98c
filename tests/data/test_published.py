import copy
import gzip
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wirescope.data import (
    EMBEDDED,
    Run,
    import_circuit,
    mib_json,
    parse_circuit,
    read_catalog,
    read_circuit,
    reading,
)
from wirescope.errors import InputError
from wirescope.graphs import Inputs, Shape, Wiring, top_k


@pytest.fixture(scope="module")
def small() -> dict:
    """A valid file for a model of one layer and one head."""
    wiring = Wiring(Shape(1, 1))
    return {
        "cfg": {"n_layers": 1, "n_heads": 1, "parallel_attn_mlp": False, "d_model": 8},
        "nodes": {name: {"in_graph": True} for name in wiring.node_names},
        "edges": {
            name: {"score": i - 2.5, "in_graph": i > 3}
            for i, name in enumerate(wiring.edge_names().to_pylist())
        },
    }


def run_of(wiring: Wiring, config: dict | None = None, **known: str) -> Run:
    return Run(
        run="a", model="m", config=config or {}, shape=wiring.shape, prompts=1, levels=("edge",), **known
    )


def test_the_embedded_circuit_is_the_published_one(published):
    assert published.wiring.n_nodes == 158
    assert published.wiring.n_edges == 32_491
    scores = published.scores.astype(np.float64)
    assert round(scores.sum(), 6) == -1.130230
    assert round(np.abs(scores).sum(), 6) == 4.824321
    assert round(np.abs(scores).max(), 6) == 0.281538
    assert int((scores == 0).sum()) == 14
    assert published.config["d_model"] == 768
    assert EMBEDDED.stat().st_size < 500_000


def test_edges_are_matched_by_name_not_by_place(small):
    circuit = parse_circuit(small, "f")
    backwards = small | {"edges": dict(reversed(small["edges"].items()))}
    assert np.array_equal(parse_circuit(backwards, "f").scores, circuit.scores)
    assert circuit.scores.tolist() == [i - 2.5 for i in range(8)]
    assert circuit.in_graph.tolist() == [False] * 4 + [True] * 4


def test_import_then_export_then_import_gives_the_same(published, tmp_path):
    circuit = top_k(published.wiring, published.scores, 800)
    file = tmp_path / "again.json"
    file.write_text(mib_json(circuit, published.scores, run_of(published.wiring, published.config)))
    again = read_circuit(file)
    assert again.wiring == published.wiring
    assert again.sign == "loss"
    assert np.array_equal(again.scores, -published.scores)
    assert np.array_equal(again.in_graph, published.in_graph)
    assert again.config == published.config
    # and the file itself is the published one, but for the sign
    original = json.loads(gzip.decompress(EMBEDDED.read_bytes()))
    written = json.loads(file.read_text())
    for name, entry in original["edges"].items():
        assert written["edges"][name] == entry | {"score": 0 - entry["score"]}
    assert written["cfg"] == original["cfg"]
    marked = {name for name, node in written["nodes"].items() if node["in_graph"]}
    assert marked - {"logits"} == {name for name, node in original["nodes"].items() if node["in_graph"]} - {
        "logits"
    }


def test_the_store_holds_what_the_file_says(ioi_store, published):
    run = read_catalog(ioi_store).run("gpt2-small-ioi")
    assert (run.model, run.task, run.prompts, run.levels) == ("gpt2", "ioi", 1, ("edge",))
    table = pq.read_table(ioi_store / "edge_scores")
    assert np.array_equal(table["score"].to_numpy(), published.scores)
    names = pq.read_table(ioi_store / "edges")["name"].to_pylist()
    assert names == published.wiring.edge_names().to_pylist()


def test_a_parallel_model_is_read_with_its_own_wiring():
    shape = Shape(2, 2, parallel=True)
    edges = {name: {"score": 1.0} for name in Wiring(shape).edge_names().to_pylist()}
    content = {"cfg": {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": True}, "nodes": {}, "edges": edges}
    assert parse_circuit(content, "f").wiring.shape == shape


def without(small, name):
    small["edges"].pop(name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.pop("edges"), "is not a circuit: it needs the objects 'cfg' and 'edges'"),
        (lambda c: c.update(cfg=[]), "is not a circuit"),
        (lambda c: c["cfg"].pop("n_heads"), "n_layers and n_heads in cfg should be whole numbers"),
        (lambda c: c["cfg"].update(n_layers=0), "n_layers and n_heads in cfg should be whole numbers"),
        (lambda c: c["cfg"].update(n_layers="2"), "n_layers and n_heads in cfg should be whole numbers"),
        (lambda c: c["cfg"].update(n_layers=True), "n_layers and n_heads in cfg should be whole numbers"),
        (lambda c: c["cfg"].update(n_layers=10**4000), "n_layers and n_heads in cfg should be whole numbers"),
        (lambda c: c["edges"].update({"\ud800->m0": {"score": 1}}), "is not the name of an edge"),
        (
            lambda c: c["cfg"].update(n_layers=10**5, n_heads=10**5),
            "lacks .* edges of a model of 100000 layers",
        ),
        (lambda c: without(c, "input->m0"), "lacks 1 of the 8 edges .* input->m0 among them"),
        (lambda c: c["edges"].update({"m0->m9": {"score": 1}}), "has no node 'm9'"),
        (lambda c: c["edges"].update({"rubbish": {"score": 1}}), "'rubbish' is not the name of an edge"),
        (
            lambda c: c["edges"].update({"input->m0": {"score": float("nan")}}),
            "the score nan for the edge input->m0",
        ),
        (lambda c: c["edges"].update({"input->m0": {"score": 1e300}}), "the score 1e\\+300"),
        (lambda c: c["edges"].update({"input->m0": {"score": None}}), "has no score for the edge input->m0"),
        (lambda c: c["edges"].update({"input->m0": {"score": True}}), "has no score for the edge input->m0"),
        (lambda c: c.update(sign="up"), "has scores of the sign 'up': it should be loss or metric"),
        (lambda c: c.update(sign=[1]), r"has scores of the sign \[1\]"),
        (lambda c: c["edges"].update({"input->m0": 3}), "has no score for the edge input->m0: it says 3"),
    ],
)
def test_a_file_that_is_no_circuit_is_refused_with_the_reason(small, change, reason):
    content = copy.deepcopy(small)
    change(content)
    with pytest.raises(InputError, match=reason):
        parse_circuit(content, "f.json")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"", "is not JSON"),
        ("a.json", b"{", "is not JSON"),
        ("a.json", b"\xff\xfe\x00", "is not JSON"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json.gz", b"bomb", "has more than 1 MB, the most that is read"),
        ("a.json.gz", gzip.compress(b'{"a":' * 100_000), "nested too deeply"),
        ("a.json", b"[1, 2]", "is not a circuit"),
        ("a.json.gz", b"not gzip", "cannot be read"),
        ("a.json.gz", gzip.compress(b"{}")[:-4], "cannot be read"),
    ],
)
def test_a_file_that_is_no_json_is_refused(tmp_path, monkeypatch, name, content, reason):
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 20)
    (tmp_path / name).write_bytes(gzip.compress(b" " * (1 << 24)) if content == b"bomb" else content)
    with pytest.raises(InputError, match=reason):
        read_circuit(tmp_path / name)


def test_memory_that_runs_out_is_a_sentence(tmp_path, monkeypatch, small):
    def full(_):
        raise MemoryError

    monkeypatch.setattr(reading.json, "loads", full)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match="is more than fits into the memory of this machine"):
        read_circuit(tmp_path / "a.json")


def test_what_is_wrong_is_not_repeated_at_length(small):
    content = copy.deepcopy(small)
    deep: list = []
    for _ in range(900):
        deep = [deep]
    for odd in (deep, "x" * 10**6, {str(i): i for i in range(10**5)}, 10**4000):
        content["edges"]["input->m0"] = {"score": odd}
        with pytest.raises(InputError) as refused:
            parse_circuit(content, "f.json")
        assert len(str(refused.value)) < 300


oddities = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
places = st.sampled_from(
    [
        tuple(path.split())
        for path in (
            *("", "cfg", "cfg n_layers", "cfg n_heads", "cfg other", "nodes", "edges"),
            *("edges odd", "edges input->m0", "edges input->m0 score", "edges input->m0 in_graph"),
        )
    ]
)


@given(places, oddities)
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_json_makes_the_reader_crash(small, tmp_path_factory, place, oddity):
    """A valid file with something odd in one place is refused, or read and written again."""
    content = copy.deepcopy(small)
    at = content
    for key in place[:-1]:
        at = at[key]
    if place:
        at[place[-1]] = oddity
    else:
        content = oddity
    try:
        circuit = parse_circuit(content, "f")
    except InputError:
        return
    assert np.isfinite(circuit.scores).all()
    store = tmp_path_factory.mktemp("odd") / "s"
    assert import_circuit(circuit, store, run="a", source="f", model="m")
    assert read_catalog(store).run("a").config == circuit.config


def test_what_else_the_configuration_says_is_kept(small):
    content = copy.deepcopy(small)
    content["cfg"] |= {"n_kv_heads": 1, "name": "toy", "nested": {"a": 1}, "big": 10**30, "d": float("nan")}
    circuit = parse_circuit(content, "f")
    run = run_of(circuit.wiring, circuit.config)
    again = json.loads(mib_json(top_k(circuit.wiring, circuit.scores, 3), circuit.scores, run))
    assert again["cfg"] == small["cfg"] | {"n_kv_heads": 1, "name": "toy"}


def test_a_refused_file_leaves_no_store_behind(tmp_path, small):
    content = copy.deepcopy(small)
    content["edges"]["input->m0"]["score"] = float("inf")
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InputError):
        import_circuit(read_circuit(tmp_path / "bad.json"), tmp_path / "s", run="a", source="bad", model="m")
    assert not (tmp_path / "s").exists()


def as_the_benchmark_loads(text: str) -> tuple[dict[str, float], set[str], set[str]]:
    """Scores by edge, marked edges and marked nodes, with all that the benchmark's own loader insists on.

    It makes a graph from ``cfg`` alone (a missing number is an error, d_model as well: it makes room for neurons), then
    looks up by name what the file lists: an unknown name is an error, and so is an entry without its values. What
    the file does not list stays at 0, out of the graph.
    """
    content = json.loads(text)
    config = content["cfg"]
    layers, heads, width = config["n_layers"], config["n_heads"], config["d_model"]
    assert all(type(number) is int and number >= 0 for number in (layers, heads, width))
    assert type(config["parallel_attn_mlp"]) is bool
    written, nodes, edges = ["input"], ["input"], []
    for layer in range(layers):
        attention = [f"a{layer}.h{head}" for head in range(heads)]
        slots = [f"{head}<{letter}>" for head in attention for letter in "qkv"]
        if config["parallel_attn_mlp"]:
            edges += [f"{u}->{slot}" for u in written for slot in (*slots, f"m{layer}")]
            written += attention
        else:
            edges += [f"{u}->{slot}" for u in written for slot in slots]
            written += attention
            edges += [f"{u}->m{layer}" for u in written]
        written.append(f"m{layer}")
        nodes += [*attention, f"m{layer}"]
    edges += [f"{u}->logits" for u in written]
    scores, marked, active = dict.fromkeys(edges, 0.0), set(), set()
    for name, entry in content["nodes"].items():
        assert name in (*nodes, "logits")
        assert type(entry["in_graph"]) is bool
        active |= {name} if entry["in_graph"] else set()
    for name, entry in content["edges"].items():
        assert name in scores
        assert type(entry["score"]) is float
        assert type(entry["in_graph"]) is bool
        scores[name] = entry["score"]
        marked |= {name} if entry["in_graph"] else set()
    return scores, marked, active


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"d_model": 64, "hidden_size": 1}, 64),
        ({"model_type": "gpt2", "n_embd": 32, "n_layer": 9, "nested": {"a": [1]}}, 32),
        ({"model_type": "llama", "hidden_size": 16, "num_key_value_heads": 1, "n_embd": None}, 16),
        ({}, 0),
    ],
)
@pytest.mark.parametrize("shape", [Shape(2, 2), Shape(3, 4, 2), Shape(2, 3, parallel=True)])
def test_the_benchmarks_own_loader_takes_what_is_exported(config, width, shape):
    """Whatever the run knows of its model: a run of MIB has its cfg, an extracted one the config of transformers."""
    wiring = Wiring(shape)
    scores = np.random.default_rng(0).normal(size=wiring.n_edges).astype(np.float32)
    circuit = top_k(wiring, scores, wiring.n_edges // 3)
    text = mib_json(circuit, scores, run_of(wiring, config))
    loaded, marked, active = as_the_benchmark_loads(text)
    names = wiring.edge_names().to_pylist()
    assert list(loaded) == names  # and in the loader's order
    assert np.array_equal(np.array(list(loaded.values()), dtype=np.float32), -scores)
    assert marked == set(circuit.table()["name"].to_pylist())
    assert active == {wiring.node_names[node] for node in circuit.nodes}
    assert json.loads(text)["cfg"]["d_model"] == width


def test_only_split_inputs_fit_the_published_format():
    wiring = Wiring(Shape(1, 2, inputs=Inputs.MERGED))
    scores = np.ones(wiring.n_edges, dtype=np.float32)
    with pytest.raises(InputError, match="this run has merged inputs"):
        mib_json(top_k(wiring, scores, 3), scores, run_of(wiring))
