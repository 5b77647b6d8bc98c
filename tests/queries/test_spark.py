"""Spark answers as DuckDB does: every question and view, what may be asked, and what is left out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from wirescope.data import read_catalog
from wirescope.errors import InputError
from wirescope.queries import QUESTIONS, VIEWS, Choice, answer, ask, choose, open_spark, open_store, select

IOI = "gpt2-small-ioi"


def java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(Path(home, "bin", "java") if home else "java") is not None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not java(), reason="Spark needs Java, which is not installed"),
    # a connection to the JVM is closed when it is collected, which may be in any test
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One for all tests, on one core."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'wirescope[spark]'")
    from wirescope.queries import start_spark

    settings = {
        "spark.sql.shuffle.partitions": 1,
        "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than these few rows
        "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse"),
    }
    arguments = [f"--conf {name}={value}" for name, value in settings.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*arguments, "pyspark-shell"]))
        session = start_spark("local[1]")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def spark(session, toy):
    return open_spark(toy.path, session)


@pytest.fixture(scope="module")
def duck(toy):
    return open_store(toy.path)


@pytest.fixture(scope="module")
def spark_protocol(session, toy_protocol):
    return open_spark(toy_protocol, session)


@pytest.fixture
def engines_of(spark, duck, spark_protocol, toy_protocol):
    """Both engines, on the store on which a question or view has rows."""
    return lambda asked: (spark_protocol, open_store(toy_protocol)) if "protocol" in asked else (spark, duck)


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema == expected.schema
    assert found.num_rows == expected.num_rows
    for name in found.column_names:
        for mine, theirs in zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True):
            same = pytest.approx(theirs, rel=1e-6, nan_ok=True) if isinstance(theirs, float) else theirs
            assert mine == same, name


def in_order(rows: pa.Table) -> pa.Table:
    """By whatever is no measurement: the rows of a view come in any order."""
    keys = [field.name for field in rows.schema if not pa.types.is_floating(field.type)]
    return rows.sort_by([(name, "ascending") for name in keys])


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_duckdbs_answer(engines_of, question, given):
    spark, duck = engines_of(question)
    assert_same(ask(spark, question, **given[question]), ask(duck, question, **given[question]))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_duckdbs(engines_of, view):
    spark, duck = engines_of(view)
    assert_same(in_order(answer(spark, view)), in_order(answer(duck, view)))


@pytest.mark.parametrize(
    ("question", "values"),
    [
        ("top_edges", {"run": "dense-ioi", "k": 46, "prompt": 2}),
        ("stability", {"run": "dense-ioi", "k": 2}),
        ("run_attributed", {"run": "dense-ioi", "level": "edge", "ranking": "prompt"}),
        ("run_multiplier", {"level": "attention", "ranking": "prompt", "ablation": "zero"}),
    ],
)
def test_other_values_have_duckdbs_answer_too(spark, duck, question, values):
    from wirescope.queries.settings import set_chosen

    values = {"run": "sparse-ioi", "other": "dense-ioi"} | values if question == "run_multiplier" else values
    found = []
    for connection in (spark, duck):
        set_chosen(connection, [1, 3])
        found.append(ask(connection, question, **values))
        set_chosen(connection, [])
    assert_same(*found)


def test_the_published_circuit_is_the_same_on_both(session, ioi_store):
    spark, duck = open_spark(ioi_store, session), open_store(ioi_store)
    for question, values in (("top_edges", {"k": 1000}), ("attributed_curve", {}), ("head_strength", {})):
        assert_same(ask(spark, question, run=IOI, **values), ask(duck, question, run=IOI, **values))
    run = read_catalog(ioi_store).run(IOI)
    circuit = choose(spark, run, Choice(mass=0.9)).circuit
    assert (circuit.requested, len(circuit.edges)) == (1690, 1643)


def test_what_is_not_finished_or_broken_is_left_out(session, toy_copy):
    """Also a part that is there and not listed, as that of a run which is being written."""
    listed = toy_copy.path / "edge_scores/run=sparse-ioi/part-00000.parquet"
    shutil.copy(listed, listed.with_name("part-00009.parquet"))
    record = toy_copy.path / "runs/run=dense-ioi/run.json"
    content = json.loads(record.read_text())
    query = "select run, count(*) as n from edge_scores group by run order by run"
    record.write_text(json.dumps(content | {"finished": None}))
    assert select(open_spark(toy_copy.path, session), query).to_pylist() == [{"run": "sparse-ioi", "n": 184}]
    record.write_text(json.dumps(content))
    (toy_copy.path / "edges/run=dense-ioi/part-00000.parquet").write_bytes(b"")
    assert select(open_spark(toy_copy.path, session), query).to_pylist() == [{"run": "sparse-ioi", "n": 184}]


def test_a_run_of_an_older_schema_is_null_where_it_has_nothing(session, toy_copy, as_version_1):
    as_version_1(toy_copy.path, "dense-ioi")
    query = "select run, clean, clean_tokens, wrong_answers from prompts where prompt_id = 0 order by run"
    assert select(open_spark(toy_copy.path, session), query).to_pylist() == [
        {"run": "dense-ioi", "clean": "clean 0", "clean_tokens": None, "wrong_answers": None},
        {
            "run": "sparse-ioi",
            "clean": "clean 0",
            "clean_tokens": ["a", " b", " c"],
            "wrong_answers": [[6, 7]],
        },
    ]


def test_a_store_in_a_folder_with_an_odd_name_is_read(session, tmp_path, toy):
    store = tmp_path / "it's {a,b} \\ run=other %20:x" / "store"
    shutil.copytree(toy.path, store)
    found = select(open_spark(store, session), "select distinct run from edge_scores order by run")
    assert found["run"].to_pylist() == ["dense-ioi", "sparse-ioi"]


@pytest.mark.parametrize(
    "query",
    [
        "from runs",
        "describe edge_scores",
        "with a as (select 1 as b) select * from a",
        "-- a comment\nselect count(*) as n from edge_scores;",
        "select run from runs where exists (select 1 from edges where edges.run = runs.run)",
        "select * from values (1, 'a') as t (a, b)",
        "from runs |> where prompts > 1 |> select run",
        "with recursive r as (select 1 as n union all select n + 1 from r where n < 3) select n from r",
    ],
)
def test_what_only_reads_the_views_is_admitted(spark, query):
    assert select(spark, query).num_rows > 0


@pytest.mark.parametrize(
    "query",
    [
        "insert into runs values (1)",
        "from runs insert into edges select *",
        "from runs insert into edges select * insert into nodes select *",
        "with a as (select 1) insert into runs select * from a",
        "insert overwrite directory '{store}/x' using csv select 1",
        "create table t as select 1",
        "create or replace temporary view runs as select 1 as run",
        "drop view runs",
        "set spark.sql.runSQLOnFiles = true",
        "reset",
        "add jar '{store}/x.jar'",
        "cache table runs",
        "show tables",
        "describe query select 1",
        "describe default.runs",
        "explain select 1",
        "execute immediate 'drop view runs'",
        "begin drop view runs; end",
        "create temporary function f as 'java.lang.String'",
        "set var x = 1",
        "call system.f()",
    ],
)
def test_a_command_is_refused(spark, toy, query):
    before = sorted(toy.path.rglob("*"))
    with pytest.raises(InputError, match="Only a single SELECT can be run on a store; this query is: "):
        select(spark, query.format(store=toy.path))
    assert sorted(toy.path.rglob("*")) == before
    assert select(spark, "select count(*) as n from runs").to_pylist() == [{"n": 2}]


@pytest.mark.parametrize(
    "query", ["", "-- nothing", "select 1; select 2", "select 1; drop view runs", "selct 1"]
)
def test_what_is_no_single_statement_is_refused_in_sparks_words(spark, query, capfd):
    with pytest.raises(InputError, match=r"^\[PARSE_\w+\] Syntax error[^\n]*$"):
        select(spark, query)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "query",
    [
        "select reflect('java.lang.System', 'getProperty', 'user.home') as r",
        "select run from runs where java_method('java.lang.System', 'getProperty', 'user.home') = ''",
        "select try_reflect('java.lang.System', 'getProperty', 'user.home') as r",
        "select (select reflect('java.lang.System', 'getProperty', 'user.home')) as r",
        "with a as (select reflect('java.lang.System', 'getProperty', 'user.home') as r) select * from a",
        "select transform(array('a'), x -> reflect('java.lang.System', 'getProperty', x)) as r",
        "select sum(prompts) over w as n from runs "
        "window w as (order by reflect('java.lang.System', 'getProperty', 'user.home'))",
    ],
)
def test_no_java_is_called(spark, query):
    with pytest.raises(InputError, match="calls no Java: leave out reflect and java_method"):
        select(spark, query)


@pytest.mark.parametrize(
    "query",
    [
        "select transform(run) using 'touch {store}/x' as (a) from runs",
        "from runs map run using 'touch {store}/x'",
        "select * from (select transform(run) using 'touch {store}/x' as (a) from runs)",
        "select run from runs where run in (select transform(run) using 'touch {store}/x' as (a) from runs)",
    ],
)
def test_no_script_is_run(spark, toy, query):
    with pytest.raises(InputError, match="runs no scripts"):
        select(spark, query.format(store=toy.path))
    assert not (toy.path / "x").exists()


@pytest.fixture(scope="module")
def secret(session, tmp_path_factory):
    """A file, and what a session beside ours has made of it."""
    file = tmp_path_factory.mktemp("outside") / "secret.txt"
    file.write_text("secret")
    session.sql(f"create table secrets using text location '{file.parent}'")
    session.sql("create view secret_view as select * from secrets")
    session.sql("create global temporary view shared as select 'secret' as value")
    session.sql("create temporary view beside as select 'secret' as value")
    yield file
    for dropped in ("table secrets", "view secret_view", "view global_temp.shared", "view beside"):
        session.sql(f"drop {dropped}")


@pytest.mark.parametrize(
    "query",
    [
        "select * from parquet.`{store}/edges/run=dense-ioi/part-00000.parquet`",
        "select * from text.`{secret}`",
        "select * from csv.`file://{secret}`",
        "select * from secrets",
        "select * from spark_catalog.default.secrets",
        "select * from (with secrets as (select 1 as a) select * from secrets) as mine, secrets",
        "select run from runs where exists (select 1 from secrets)",
        "select * from secret_view",
        "select * from global_temp.shared",
        "select * from beside",
    ],
)
def test_nothing_but_the_views_can_be_read(spark, toy, secret, query):
    """Not a file, nor a table or view of the catalog, nor one of another session."""
    with pytest.raises(InputError, match=r"no other table or file|TABLE_OR_VIEW_NOT_FOUND"):
        select(spark, query.format(secret=secret, store=toy.path))


def test_variables_of_the_environment_are_not_put_into_a_query(spark):
    assert select(spark, "select '${env:HOME}' as home").to_pylist() == [{"home": "${env:HOME}"}]


def test_an_error_is_the_first_sentence_of_sparks(spark, capfd):
    for query, message in (
        (
            "select scor from edge_scores",
            r"^\[UNRESOLVED_COLUMN.*`scor` cannot be resolved.*`score`[^\n]*\.$",
        ),
        ("select * from edge_score", r"^\[TABLE_OR_VIEW_NOT_FOUND\] The table or view `edge_score`[^\n]*$"),
        ("select 1 / (prompts - prompts) as a from runs", r"^\[DIVIDE_BY_ZERO\] Division by zero[^\n]*$"),
        ("select 1 as a, 2 as a", "Two columns of the answer are called 'a'; tell them apart with AS"),
    ):
        with pytest.raises(InputError, match=message):
            select(spark, query)
    assert capfd.readouterr().err == ""


def test_answers_have_types_that_every_format_holds(spark):
    query = """
        select sum(prompts) as total, 1.50 as price, 2 * 3.0 as `odd ``name`, timestamp '2026-01-02 03:04:05' as at,
            interval 1 day as wait, map('a', 1) as map, binary('a') as blob, array(1, 2) as list,
            named_struct('x', 1.5d) as s, null as nothing
        from runs
    """
    assert select(spark, query).to_pylist() == [
        {
            "total": 8,
            "price": 1.5,
            "odd `name": 6.0,
            "at": "2026-01-02 03:04:05",
            "wait": "INTERVAL '1' DAY",
            "map": "{a -> 1}",
            "blob": "a",
            "list": [1, 2],
            "s": {"x": 1.5},
            "nothing": None,
        }
    ]


def test_the_session_that_is_given_stays_as_it_was(session, spark):
    assert session.conf.get("spark.sql.runSQLOnFiles") == "true"
    assert not {table.name for table in session.catalog.listTables()} & {*VIEWS, "runs", "edges"}


def test_values_are_checked_whatever_the_engine(spark):
    with pytest.raises(InputError, match="k is 0; it must be a whole number, 1 or more"):
        ask(spark, "top_edges", run="dense-ioi", k=0)
    with pytest.raises(InputError, match="has no prompt 9; its prompts are 0 to 3"):
        ask(spark, "top_edges", run="dense-ioi", k=5, prompt=9)
    with pytest.raises(InputError, match=r"no run 'dense-ioo'.*Did you mean 'dense-ioi'"):
        ask(spark, "layer_mass", run="dense-ioo")


def test_the_command_answers_by_either_engine(cli, session, toy):
    arguments = ("sql", "-s", toy.path, "top_edges", "-w", "k=3", "-w", "run=dense-ioi", "-f", "csv")
    found = cli(*arguments, "--engine", "spark")
    assert found == cli(*arguments, "--engine", "duckdb", "--memory", "1GB")
    assert (found.status, found.err) == (0, "")
    wrong = cli("sql", "-s", toy.path, "select scor from edge_scores", "--engine", "spark")
    assert (wrong.status, wrong.out) == (2, "")
    assert wrong.err.startswith("wirescope: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column")
    assert len(wrong.err.splitlines()) == 1


def test_a_session_of_its_own_says_nothing_of_itself(toy):
    """The output is data, and Spark's own messages are not among those for the user."""
    query = "select count(*) as n from runs"
    command = [sys.executable, "-m", "wirescope.cli", "sql", "-s", toy.path, query, "-f", "csv"]
    options = ["--engine", "spark", "--spark-master", "local[1]"]
    said = subprocess.run([*command, *options], capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, "n\n2\n", "")
