"""Every question on a toy store: against golden files, and against slow and obvious numpy.

A golden file is the answer that a diff shows. After a wanted change: ``UPDATE_GOLDEN=1 pytest tests/queries``.
"""

import os
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from wirescope.data import TABLES, Run, write_run
from wirescope.errors import InputError
from wirescope.graphs import Shape, Wiring, auroc
from wirescope.queries import (
    QUESTIONS,
    VIEWS,
    answer,
    ask,
    engine,
    open_store,
    parameters,
    questions,
    select,
    text,
)

GOLDEN = Path(__file__).parent / "golden"
WIRING = Wiring(Shape(2, 2))
# the 26 heads of the published IOI circuit
IOI_HEADS = {
    *("9.9", "10.0", "9.6"),  # name movers
    *("10.10", "10.6", "10.2", "10.1", "11.2", "9.7", "9.0", "11.9"),  # backup name movers
    *("10.7", "11.10"),  # negative name movers
    *("7.3", "7.9", "8.6", "8.10"),  # S-inhibition
    *("5.5", "5.8", "5.9", "6.9"),  # induction
    *("0.1", "0.10", "3.0"),  # duplicate token
    *("2.2", "4.11"),  # previous token
}


TYPES = [pa.bool_(), pa.int32(), pa.float32(), pa.string(), pa.list_(pa.list_(pa.int32()))]


@pytest.fixture
def connection(toy):
    return open_store(toy.path)


@pytest.fixture
def ioi(ioi_store):
    return open_store(ioi_store)


def rounded(table: pa.Table) -> str:
    """As CSV, floats to six digits, without what changes from run to run."""

    def cell(value):
        return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)

    names = [name for name in table.column_names if name not in ("started", "finished")]
    lines = [",".join(cell(row[name]) for name in names) for row in table.to_pylist()]
    return "\n".join([",".join(names), *lines]) + "\n"


@pytest.mark.parametrize("question", [*QUESTIONS, *VIEWS])
def test_the_answer_is_the_golden_one(store_of, question, given):
    connection = open_store(store_of(question))
    if question in VIEWS:
        found = select(connection, f"select * from {question} order by all")
    else:
        found = ask(connection, question, **given[question])
    file = GOLDEN / f"{question}.csv"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(rounded(found))
    assert rounded(found) == file.read_text()
    assert found.num_rows or question == "run_attributed"  # for which no prompts are chosen


def test_every_file_is_a_question_and_says_which():
    names = {file.stem for file in (Path(__file__).parents[2] / "queries").glob("*.sql")}
    assert names == {*QUESTIONS, *VIEWS}
    for name in names:
        first = text(name).splitlines()[0]
        assert first.startswith("-- ")
        assert first.endswith("?")


@pytest.mark.parametrize("question", [*QUESTIONS, *VIEWS])
def test_the_text_is_portable(question):
    words = text(question).lower()
    for refused in (
        "qualify",
        "group by all",
        "order by all",
        "read_parquet",
        "::",
        "select *",
        " limit ",
        "exclude",
    ):
        assert refused not in words


def test_means_agree_with_numpy(connection, toy):
    table = select(connection, "select * from edge_means where run = 'sparse-ioi' order by edge_id")
    scores = toy.scores["sparse-ioi"].astype(np.float64)
    np.testing.assert_allclose(table["score"].to_numpy(), scores.mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(table["mean_abs"].to_numpy(), np.abs(scores).mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(table["std"].to_numpy(), scores.std(axis=0, ddof=1), atol=1e-7)
    assert set(table["prompts"].to_pylist()) == {4}
    assert table["name"].to_pylist() == WIRING.edge_names().to_pylist()
    check_errors(table, scores)


def test_means_of_heads_agree_with_numpy(connection, toy):
    table = select(connection, "select * from head_means where run = 'sparse-ioi' order by node_id")
    heads = np.flatnonzero(WIRING.is_kind("head"))
    scores = toy.head_scores["sparse-ioi"].astype(np.float64)[:, heads]
    assert table["node_id"].to_pylist() == heads.tolist()
    assert table["name"].to_pylist() == [WIRING.node_names[node] for node in heads]
    assert table["layer"].to_pylist() == WIRING.node_layer[heads].tolist()
    assert table["head"].to_pylist() == WIRING.node_head[heads].tolist()
    np.testing.assert_allclose(table["score"].to_numpy(), scores.mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(table["mean_abs"].to_numpy(), np.abs(scores).mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(table["std"].to_numpy(), scores.std(axis=0, ddof=1), atol=1e-7)
    check_errors(table, scores)


def check_errors(table: pa.Table, scores: np.ndarray) -> None:
    stderr = scores.std(axis=0, ddof=1) / np.sqrt(len(scores))
    np.testing.assert_allclose(table["stderr"].to_numpy(), stderr, atol=1e-7)
    np.testing.assert_allclose(table["t"].to_numpy(), scores.mean(axis=0) / stderr, rtol=1e-5)


@pytest.mark.parametrize("prompts", [1, 7, 300])
def test_what_does_not_vary_has_no_error_and_no_t(tmp_path, prompts):
    """Neither 0 nor NaN, which any threshold would let through; in however many parts the sums are taken."""
    scores = np.random.default_rng(0).normal(size=(prompts, 8)).astype(np.float32)
    scores[:, :3] = np.float32([0.0, 0.1, -1e-8])
    record = Run(run="r", model="m", shape=Shape(1, 1), prompts=prompts, levels=("edge",))
    with write_run(tmp_path / "s", record) as writer:
        writer.write_wiring(Wiring(record.shape))
        for shard, own in enumerate(np.array_split(np.arange(prompts), 3)):
            ids = np.repeat(own, 8)
            rows = {
                "prompt_id": ids,
                "edge_id": np.tile(np.arange(8), len(own)),
                "score": scores[own].ravel(),
            }
            writer.write("edge_scores", pa.table(rows), shard)
    found = select(
        open_store(tmp_path / "s"), "select std, stderr, t from edge_means order by edge_id"
    ).to_pylist()
    fixed = {"std": None if prompts == 1 else 0.0, "stderr": None, "t": None}
    assert found[:3] == [fixed] * 3
    for row in found[3:]:
        assert (row["t"] is None) == (row["stderr"] is None) == (prompts == 1)
        assert row["t"] is None or np.isfinite(row["t"])


@pytest.mark.parametrize("prompt", [None, 2])
def test_top_edges_agree_with_numpy(connection, toy, prompt):
    scores = toy.scores["dense-ioi"].astype(np.float64)
    values = (scores.mean(axis=0) if prompt is None else scores[prompt]).astype(np.float32)
    table = ask(connection, "top_edges", run="dense-ioi", k=30, prompt=prompt)
    order = np.argsort(-np.abs(values), kind="stable")
    assert table["edge_id"].to_pylist() == order[:30].tolist()
    np.testing.assert_allclose(table["score"].to_numpy(), values[order[:30]], atol=1e-7)


def test_top_heads_agree_with_numpy(connection, toy):
    heads = np.flatnonzero(WIRING.is_kind("head"))
    means = toy.head_scores["sparse-ioi"].mean(axis=0)[heads]
    table = ask(connection, "top_heads", run="sparse-ioi", k=4, prompt=None)
    order = heads[np.argsort(-np.abs(means), kind="stable")]
    assert table["name"].to_pylist() == [WIRING.node_names[node] for node in order]


def test_the_attributed_curve_is_the_share_of_the_top_k(ioi):
    share = ask(ioi, "attributed_curve", run="gpt2-small-ioi")["share"].to_numpy()
    expected = {10: 26.1, 32: 39.6, 100: 56.0, 324: 73.1, 1000: 85.8, 3249: 94.0, 32491: 100.0}
    assert {k: round(100 * share[k - 1], 1) for k in expected} == expected


def test_head_strength_finds_the_published_heads(ioi):
    table = ask(ioi, "head_strength", run="gpt2-small-ioi")
    members = [f"{row['layer']}.{row['head']}" in IOI_HEADS for row in table.to_pylist()]
    assert len(members) == 144
    assert sum(members) == 26
    assert all(members[:10])
    assert round(auroc(table["out_strength"].to_numpy(), members), 4) == 0.9156


def test_head_strength_and_layer_mass_agree_with_numpy(connection, toy):
    strength = np.abs(toy.scores["dense-ioi"].astype(np.float64).mean(axis=0))
    for row in ask(connection, "head_strength", run="dense-ioi").to_pylist():
        node = WIRING.node_names.index(row["name"])
        assert row["in_strength"] == pytest.approx(strength[WIRING.edge_dst == node].sum())
        assert row["out_strength"] == pytest.approx(strength[WIRING.edge_src == node].sum())
    mass = ask(connection, "layer_mass", run="dense-ioi").to_pylist()
    assert sum(row["edges"] for row in mass) == WIRING.n_edges
    assert sum(row["share"] for row in mass) == pytest.approx(1)
    for row in mass:
        between = (WIRING.node_layer[WIRING.edge_src] == row["src_layer"]) & (
            WIRING.node_layer[WIRING.edge_dst] == row["dst_layer"]
        )
        assert row["mass"] == pytest.approx(strength[between].sum())


def test_overlap_is_the_jaccard_index_of_the_top_k(connection, toy):
    tops = [
        set(np.argsort(-np.abs(scores.mean(axis=0)), kind="stable")[:20]) for scores in toy.scores.values()
    ]
    (row,) = ask(connection, "overlap", run="dense-ioi", other="sparse-ioi", k=20).to_pylist()
    assert row["shared"] == len(tops[0] & tops[1])
    assert row["jaccard"] == pytest.approx(len(tops[0] & tops[1]) / len(tops[0] | tops[1]))


@pytest.mark.parametrize("k", [1, 2, 20])  # a 32nd of the 46 edges is two
def test_stability_is_the_mean_jaccard_index_of_two_prompts(connection, toy, k):
    tops = [set(np.argsort(-np.abs(scores), kind="stable")[:k]) for scores in toy.scores["dense-ioi"]]
    pairs = [len(a & b) / len(a | b) for a, b in combinations(tops, 2)]
    (row,) = ask(connection, "stability", run="dense-ioi", k=k).to_pylist()
    assert row == {"prompts": 4, "mean_jaccard": pytest.approx(np.mean(pairs))}


@pytest.mark.parametrize("k", [1, 2, 3, 20])
def test_stability_sees_the_edges_that_it_bounds_the_others_by(tmp_path, k):
    """Edges 0 and 32 are among the strongest, and as strong as others."""
    rng = np.random.default_rng(3)
    scores = rng.integers(-4, 5, size=(6, WIRING.n_edges)).astype(np.float32)
    scores[::2, 0], scores[1::3, 32] = 4, -4
    record = Run(run="a", model="m", shape=WIRING.shape, prompts=len(scores), levels=("edge",))
    with write_run(tmp_path / "s", record) as writer:
        ids = np.arange(WIRING.n_edges)
        rows = {
            "prompt_id": np.repeat(range(6), len(ids)),
            "edge_id": np.tile(ids, 6),
            "score": scores.ravel(),
        }
        writer.write_wiring(WIRING)
        writer.write("edge_scores", pa.table(rows))
    tops = [set(np.argsort(-np.abs(row), kind="stable")[:k]) for row in scores]
    pairs = [len(a & b) / len(a | b) for a, b in combinations(tops, 2)]
    (row,) = ask(open_store(tmp_path / "s"), "stability", run="a", k=k).to_pylist()
    assert row["mean_jaccard"] == pytest.approx(np.mean(pairs))


def test_stability_of_a_single_prompt_is_undefined(ioi):
    assert ask(ioi, "stability", run="gpt2-small-ioi", k=20).to_pylist() == [
        {"prompts": 1, "mean_jaccard": None}
    ]


def test_pairs_that_share_nothing_count_as_zero(connection):
    (row,) = ask(connection, "stability", run="dense-ioi", k=1).to_pylist()
    tops = ask(connection, "run_prompts", run="dense-ioi")["prompt_id"].to_pylist()
    best = [ask(connection, "top_edges", run="dense-ioi", k=1, prompt=p)["edge_id"][0].as_py() for p in tops]
    assert row["mean_jaccard"] == pytest.approx(np.mean([a == b for a, b in combinations(best, 2)]))


def test_an_unknown_question_is_refused(connection):
    with pytest.raises(InputError, match=r"no question 'top_edge'\. Did you mean 'top_edges'"):
        ask(connection, "top_edge")


def test_runs_of_any_name_are_text(tmp_path):
    """A folder run=2024 is not the number 2024."""
    for name in ("2024", "1e3", "true"):
        with write_run(
            tmp_path / "s", Run(run=name, model="m", shape=Shape(1, 1), prompts=1, levels=("edge",))
        ) as w:
            w.write_wiring(Wiring(Shape(1, 1)))
    found = select(open_store(tmp_path / "s"), "select distinct run from edges order by run")
    assert found["run"].to_pylist() == ["1e3", "2024", "true"]


@pytest.mark.parametrize("name", ["it's", "a=b", "run=other", "ünd x", "{a,b}", 'a "quote"'])
def test_a_store_in_a_folder_with_an_odd_name_is_read(tmp_path, toy, name):
    shutil.copytree(toy.path, tmp_path / name / "store")
    found = select(open_store(tmp_path / name / "store"), "select distinct run from edge_scores order by run")
    assert found["run"].to_pylist() == ["dense-ioi", "sparse-ioi"]


@pytest.mark.parametrize("name", ["a*b", "a?b", "[ab]"])
def test_a_store_whose_path_is_a_pattern_is_refused(tmp_path, toy, name):
    """DuckDB would read the neighbours that match it."""
    shutil.copytree(toy.path, tmp_path / name)
    with pytest.raises(InputError, match="reads as a pattern"):
        open_store(tmp_path / name)


@pytest.mark.parametrize(
    ("question", "values", "message"),
    [
        ("top_edges", {"run": "dense-ioi", "k": 0}, "k is 0; it must be a whole number, 1 or more"),
        ("top_edges", {"run": "dense-ioi", "k": "five"}, "k is 'five'"),
        ("top_edges", {"run": "dense-ioi", "k": True}, "k is True"),
        ("top_edges", {"run": "dense-ioi", "k": 5, "prompt": 9}, "has no prompt 9; its prompts are 0 to 3"),
        ("overlap", {"run": "dense-ioi", "other": "sparse-ioo", "k": 5}, "Did you mean 'sparse-ioi'"),
        ("multiplier_intervals", {"threshold": "high"}, "threshold is 'high'"),
        ("run_list", {"question": 1}, "does not take question. It takes nothing."),
        ("run_list", {"connection": 1}, "does not take connection. It takes nothing."),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(connection, question, values, message):
    with pytest.raises(InputError, match=message):
        ask(connection, question, **values)


@pytest.mark.parametrize(
    ("question", "changed", "message"),
    [
        (
            "run_curve",
            {"ranking": "taks"},
            "'taks' is not a ranking: choose from prompt, task, signed, random. Did you mean 'task'?",
        ),
        ("run_multiplier", {"level": "bogus"}, "'bogus' is not a level: choose from edge, head, attention."),
        (
            "run_prompt_curve",
            {"ablation": "bogus"},
            "'bogus' is not an ablation: choose from corrupt, zero, mean.",
        ),
        (
            "multiplier_ratio",
            {"second_ranking": "bogus"},
            "'bogus' is not a ranking: choose from prompt, task, ",
        ),
        (
            "run_protocol_ratio",
            {"protocol": "bogus"},
            "'bogus' is not a protocol: choose from published, contrast.",
        ),
        (
            "run_protocol_ratio",
            {"dense": "dense-oio"},
            "The store has no runs 'dense-oio' under the protocol published (there are: dense-ioi, sparse-ioi). "
            "Did you mean 'dense-ioi'?",
        ),
        (
            "run_protocol_ratio",
            {"protocol": "contrast"},
            "The store has no runs 'sparse-ioi' under the protocol contrast (there are: none).",
        ),
    ],
)
def test_a_word_that_is_not_known_is_refused(store_of, given, question, changed, message):
    """SQL would find no rows, which is what there is where nothing was measured."""
    with pytest.raises(InputError) as found:
        ask(open_store(store_of(question)), question, **given[question] | changed)
    assert str(found.value).startswith(message)


def test_the_ablations_that_are_known_are_those_of_runs():
    extract = pytest.importorskip("wirescope.extract", reason="torch is not installed", exc_type=ImportError)
    assert questions._KNOWN["ablation"] == extract.ABLATIONS
    assert questions._KNOWN["ranking"] == (*extract.RANKINGS, "random")


def test_a_view_can_be_asked_for_by_name(connection):
    assert answer(connection, "multipliers").num_rows == 4
    assert answer(connection, "runs").num_rows == 2
    with pytest.raises(InputError, match=r"no question or view 'multiplers'\. Did you mean 'multipliers'"):
        answer(connection, "multiplers")
    with pytest.raises(InputError, match="Only a ready-made question can be given values"):
        answer(connection, "select 1", k=3)


def test_answers_have_types_that_every_format_holds(connection):
    query = """
        select sum(prompts) as total, 1.50 as price, timestamp_ns '2026-01-02 03:04:05' as at,
            interval 1 day as wait, map {'a': 1} as map, 'a'::blob as blob, [1, 2] as list, {'x': 1.5::double} as s
        from runs
    """
    assert select(connection, query).to_pylist() == [
        {
            "total": 8,
            "price": 1.5,
            "at": "2026-01-02 03:04:05",
            "wait": "1 day",
            "map": "{a=1}",
            "blob": "a",
            "list": [1, 2],
            "s": {"x": 1.5},
        }
    ]


def test_whole_numbers_that_are_too_large_for_a_column_are_floats_and_in_lists_text(connection):
    query = "select sum(10::hugeint ** 30) as total, [1::hugeint, 2] as list, {'x': 1.5} as s from range(2)"
    assert select(connection, query).to_pylist() == [{"total": 2e30, "list": "[1, 2]", "s": "{'x': 1.5}"}]
    query = "select 170141183460469231731687303715884105727::hugeint as huge, 5::hugeint as small"
    assert select(connection, query).to_pylist() == [{"huge": 2.0**127, "small": 5}]


def test_an_ordered_answer_stays_ordered(ioi):
    """Also where a column has to be turned into text."""
    query = "select edge_id, interval (edge_id) day as i from edges order by edge_id * 7919 % 32491"
    plain = select(ioi, "select edge_id from edges order by edge_id * 7919 % 32491")["edge_id"]
    assert select(ioi, query)["edge_id"].equals(plain)
    assert plain[1].as_py() != 1


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_column_that_an_older_run_lacks_is_a_null_of_its_type(monkeypatch, toy, kind):
    """Which a union with the runs that have it needs."""
    widened = {"prompts": TABLES["prompts"].append(pa.field("novel", kind))}
    monkeypatch.setattr(engine, "TABLES", TABLES | widened)
    (column,) = select(open_store(toy.path), "select distinct novel from prompts").columns
    assert column.to_pylist() == [None]
    assert column.type == kind


def test_two_columns_of_one_name_are_refused(connection):
    with pytest.raises(
        InputError, match="Two columns of the answer are called 'name'; tell them apart with AS"
    ):
        select(
            connection,
            "select e.name, n.name from edges e join nodes n on n.node_id = e.src and n.run = e.run",
        )


def test_a_question_without_what_it_needs_is_refused(connection):
    assert parameters("top_edges") == ["k", "prompt", "run"]
    for question, values, message in (
        ("top_edges", {"k": 3}, "'top_edges' is missing run. It takes k, run; optional: prompt."),
        ("top_edges", {}, "'top_edges' is missing k and run. It takes k, run; optional: prompt."),
        ("top_attention", {"k": 3}, "'top_attention' is missing prompt and run. It takes k, prompt, run."),
        ("run_list", {"k": 3}, "'run_list' does not take k. It takes nothing."),
        (
            "reach",
            {"rnu": "dense-ioi"},
            "'reach' is missing run and does not take rnu. It takes run. Did you mean 'run'?",
        ),
        (
            "multiplier_intervals",
            {"treshold": 0.5},
            "'multiplier_intervals' does not take treshold. All that it takes is optional: crossing, threshold. "
            "Did you mean 'threshold'?",
        ),
        (
            "multiplier_ratio",
            {"run": "sparse-ioi"},
            "'multiplier_ratio' is missing ablation, level, other and ranking. It takes ablation, level, other, "
            "ranking, run; optional: crossing, second_ablation, second_level, second_other, second_ranking, "
            "second_run, threshold.",
        ),
    ):
        with pytest.raises(InputError) as found:
            ask(connection, question, **values)
        assert str(found.value) == message
