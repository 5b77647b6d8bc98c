"""A user's query reads the store and nothing else, and writes nothing."""

import gc
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import duckdb
import pytest
import wirescope.queries as q
from wirescope.data import read_catalog
from wirescope.errors import InputError, StoreError
from wirescope.queries import answer, limited, open_catalog, open_store, select

RUNAWAY = "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) as m from t"


@pytest.fixture
def connection(toy):
    return open_store(toy.path)


def state(folder):
    """All that is in a folder, to the byte."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "query",
    [
        "select 1 as a",
        "from runs",
        "describe edge_scores",
        "summarize effects",
        "with a as (select 1 as b) select * from a",
        "-- a comment\nselect count(*) as n from edge_scores;",
        "select ';' as a; -- and ; a comment",
        "select 1 as a /* a comment */ ;;",
        "(from runs) union all (from runs)",
        "values (1), (2)",
        "table runs",
        "show tables",
        "show runs",
        "describe select 1 as a",
        "select column_name from (describe runs)",
        "with a as (summarize effects) from a",
        "with a as materialized (from runs) select count(*) as n from a",
        "with recursive t(n) as (select 1 union all select n + 1 from t where n < 9) select max(n) as m from t",
        "select (select count(*) from runs) as n where exists (from runs)",
        "from query('select 1 as a')",
        "unpivot (select 1 as a, 2 as b) on a, b",
    ],
)
def test_what_only_reads_is_admitted(connection, query):
    assert select(connection, query).num_rows > 0


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to '{store}/x.csv'",
        "copy (select 1) to '{store}/edges/run=dense-ioi/part-00001.parquet'",
        "explain analyze copy (select 1) to '{store}/x.csv'",
        "export database '{store}/x'",
        "create table t as select 1",
        "create or replace view runs as select 1 as run",
        "drop view runs",
        "insert into runs values (1)",
        "attach '{store}/x.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma version",
        "connect x",
        "call pragma_version()",
        "select 1; copy (select 1) to '{store}/x.csv'",
        "select 1; select 2",
        "",
        "-- nothing",
        "with x as (copy (select 42 as a) to '{part}' (format parquet)) select * from x",
        "with x as (copy (select 42 as a) to '{part}' (format parquet)) values (1)",
        "with x as materialized (copy runs to '{store}/x.csv') from x union all select 2",
        "with a as (select 1), x as (copy runs to '{store}/x' (format parquet, partition_by (run))) from a",
        "with y as (with x as (copy runs to '{store}/x.csv') from x) from y",
        "select (with x as (copy runs to '{store}/x.csv') select count(*) from x) as n",
        "from (with x as (copy runs to '{store}/x.csv') from x)",
        "describe with x as (copy runs to '{store}/x.csv') from x",
        "from query('with x as (copy runs to ''{store}/x.csv'') from x')",
        "with x as (insert into runs values (1) returning *) from x",
        "with x as (update runs set run = 'x' returning *) from x",
        "with x as (delete from runs returning *) from x",
        "with x as (truncate runs) select 1",
    ],
)
def test_anything_but_one_select_is_refused(connection, toy, query):
    before = state(toy.path)
    part = toy.path / "edges" / "run=dense-ioi" / "part-00000.parquet"
    with pytest.raises(InputError, match="Only a single SELECT"):
        select(connection, query.format(store=toy.path, part=part))
    assert state(toy.path) == before


@pytest.mark.parametrize("body", ["attach '{store}/x.db'", "export database '{store}/x'", "set threads = 1"])
@pytest.mark.parametrize("query", ["with x as ({body}) from x", "from ({body})", "select ({body}) as a"])
def test_no_other_statement_stands_inside_a_query(connection, toy, query, body):
    before = state(toy.path)
    with pytest.raises(InputError):
        select(connection, query.format(body=body.format(store=toy.path)))
    assert state(toy.path) == before


def test_a_kind_of_query_that_is_not_known_is_refused(connection, monkeypatch):
    """What DuckDB will call a query one day is refused until somebody has seen that it only reads."""
    monkeypatch.setattr("wirescope.queries.engine._READING", ("SET_OPERATION_NODE",))
    with pytest.raises(InputError, match=r"this query is: a SELECT with SELECT\."):
        select(connection, "select 1 as a")


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 42 as a) to '{part}' (format parquet)",
        "with x as (copy (select 42 as a) to '{part}' (format parquet)) select * from x",
        "copy (select 42 as a) to 'store://{relative}' (format parquet)",
        "copy (select 42 as a) to 'STORE://{relative}' (format parquet)",
        "copy (select 42 as a) to 'file://{part}' (format parquet)",
        "copy (select 42 as a) to 'store://x.csv'",
        "copy (select 42 as a) to 'x.csv'",
        "copy (select 42 as a) to '{store}/runs/run=dense-ioi/run.json'",
        "copy (select 42 as a) to '{store}/x' (format parquet, partition_by (a))",
        "copy (select 42 as a) to 'store://x' (format parquet, partition_by (a))",
        "copy (select 42 as a) to '{tmp}/../x.csv'",
        "export database '{store}/x'",
        "export database 'store://x'",
        "attach '{store}/x.db'",
        "attach 'store://x.db' as x",
        "create persistent secret s (type http)",
        "call enable_logging(storage = 'file', storage_path = '{store}/log')",
        "set log_query_path = '{store}/log'",
        "pragma profiling_output = '{store}/log'",
        "set temp_directory = '{store}'",
        "set allowed_directories = ['{store}']",
        "set enable_external_access = true",
        "install httpfs",
        "load '{store}/x.so'",
        "from read_text('{store}/runs/run=dense-ioi/run.json')",
    ],
)
def test_nothing_can_be_written_by_a_query_that_nobody_looked_at(toy_copy, tmp_path, monkeypatch, query):
    """As if the check before a query were wrong: the connection itself is given what it should never see."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    connection = open_store(toy_copy.path)
    folder = connection.sql("select current_setting('temp_directory')").fetchall()[0][0]
    relative = "edges/run=dense-ioi/part-00000.parquet"
    places = {"store": toy_copy.path, "part": toy_copy.path / relative, "relative": relative, "tmp": folder}
    before = state(tmp_path)
    with pytest.raises(duckdb.Error):
        connection.execute(query.format(**places)).fetchall()
    assert state(tmp_path) == before
    assert not list(Path(folder).iterdir())
    assert select(connection, "from edges").num_rows > 0


def test_a_relation_that_is_computed_later_cannot_write_either(toy_copy):
    store = q.open(toy_copy.path)
    before = state(toy_copy.path)
    writing = f"with x as (copy runs to '{toy_copy.path}/x.csv') from x"
    with pytest.raises(InputError, match="a SELECT with COPY"):
        store.sql(writing)
    with pytest.raises(duckdb.Error):
        store.connection.sql(writing).fetchall()
    with pytest.raises(duckdb.Error):
        store.sql("from runs").write_csv(f"{toy_copy.path}/x.csv")
    assert state(toy_copy.path) == before


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{outside}')",
        "select * from read_text('{outside}')",
        "select * from '{outside}'",
        "select * from glob('{folder}/*')",
        "select * from read_text('{store}/../secret.csv')",
        "select * from read_text('{store}-neighbour/secret.csv')",
        "select * from read_parquet('https://example.org/x.parquet')",
    ],
)
def test_files_outside_the_store_cannot_be_read(toy_copy, tmp_path, query):
    neighbour = tmp_path / "store-neighbour"
    neighbour.mkdir()
    for folder in (tmp_path, neighbour):
        (folder / "secret.csv").write_text("secret\n1\n")
    filled = query.format(outside=tmp_path / "secret.csv", folder=tmp_path, store=toy_copy.path)
    with pytest.raises(InputError) as error:
        select(open_store(toy_copy.path), filled)
    assert "secret\n1" not in str(error.value)


def test_an_error_is_duckdbs_own_message(connection):
    with pytest.raises(InputError, match='Referenced column "scor" not found'):
        select(connection, "select scor from edge_scores")
    with pytest.raises(InputError, match='syntax error at or near "selct"'):
        select(connection, "selct 1")
    with pytest.raises(InputError, match="Table with name edge_score does not exist"):
        select(connection, "select * from edge_score")


def test_python_variables_are_no_tables(connection):
    import pyarrow as pa

    secret = pa.table({"a": [1]})
    assert secret.num_rows == 1
    with pytest.raises(InputError, match="Table with name secret does not exist"):
        select(connection, "from secret")


def test_what_does_not_fit_in_memory_goes_to_a_folder_of_its_own(toy):
    connections = [open_store(toy.path, memory="60MB") for _ in range(2)]
    settings = [connection.sql("select current_setting('temp_directory')") for connection in connections]
    folders = [Path(setting.fetchall()[0][0]) for setting in settings]
    assert folders[0] != folders[1]
    for folder in folders:
        assert folder.parent == Path(tempfile.gettempdir())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    large = "select count(*) as n from (select md5(i::varchar) as a from range(3000000) t(i) order by a) where a <> ''"
    assert select(connections[0], large)["n"].to_pylist() == [3_000_000]
    del connections, settings
    gc.collect()
    assert not any(folder.exists() for folder in folders)


def test_the_folder_is_gone_when_the_program_ends(toy, tmp_path):
    script = f"import wirescope.queries as q; store = q.open({str(toy.path)!r}); print(store.runs.fetchall()[0][0])"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [])


def test_a_store_is_read_where_no_folder_can_be_made(toy, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert select(open_store(toy.path), "from runs").num_rows > 0


@pytest.mark.parametrize("query", [RUNAWAY, "select count(*) as n from range(1000000000000)"])
def test_a_runaway_query_is_given_up_in_time(connection, query):
    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"The query was given up after 0\.5 seconds"):
        select(limited(connection, timeout=0.5), query)
    assert time.monotonic() - begun < 10
    assert select(connection, "select 1 as a").num_rows == 1  # and there can be others


def test_a_runaway_query_ends_at_the_first_interrupt(connection):
    def waiting() -> bool:
        """Whether the main thread waits for the query's, and for nothing else."""
        frame = sys._current_frames()[threading.main_thread().ident]
        names = [frame.f_code.co_name for frame, _ in traceback.walk_stack(frame)]
        return names[:3] == ["wait", "wait", "stoppable"]

    def interrupt() -> None:
        while not waiting():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
        connection.interrupt()  # rather than for ever

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        answer(connection, RUNAWAY)
    assert time.monotonic() - begun < 10
    assert select(connection, "select 1 as a").num_rows == 1


def test_a_query_in_a_notebook_can_have_a_limit(toy):
    store = q.open(toy.path)
    assert store.sql("select 1 as a", timeout=60).fetchall() == [(1,)]
    with pytest.raises(StoreError, match="given up"):
        store.sql(RUNAWAY, timeout=0.3)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e300])
def test_a_timeout_without_sense_is_refused(connection, timeout):
    with pytest.raises(InputError, match="it must be a number of seconds, more than 0"):
        limited(connection, timeout=timeout)


def test_an_answer_takes_no_more_memory_than_it_may(toy):
    connection = open_store(toy.path, memory="100MB")
    with pytest.raises(
        StoreError, match=r"The answer is larger than the 95\.3 MiB of memory that it may take"
    ):
        select(connection, "select i from range(1000000000) t(i)")
    assert select(connection, "select i from range(1000000) t(i)").num_rows == 1_000_000


@pytest.mark.parametrize("table", ["edges", "edge_scores", "prompts"])
def test_a_part_that_is_a_link_out_of_the_store_is_read(toy_copy, tmp_path, table):
    part = next((toy_copy.path / table).rglob("*.parquet"))
    before = select(open_store(toy_copy.path), f"select count(*) as n from {table}")
    elsewhere = tmp_path / "annex" / "SHA256E-s100"
    elsewhere.parent.mkdir()
    part.rename(elsewhere)
    part.symlink_to(elsewhere)
    assert select(open_store(toy_copy.path), f"select count(*) as n from {table}") == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda part: part.write_bytes(b"PAR1 no more")])
@pytest.mark.parametrize("table", ["nodes", "edge_scores", "effects"])
def test_a_run_whose_part_goes_while_the_store_is_opened_is_left_out_alone(toy_copy, table, damage):
    catalog = read_catalog(toy_copy.path)
    damage(toy_copy.path / catalog.runs["dense-ioi"].parts[table][0].file)
    left, connection = open_catalog(catalog)
    assert set(left.runs) == set(catalog.runs) - {"dense-ioi"}
    assert left.broken["dense-ioi"].startswith("The run 'dense-ioi' cannot be read: ")
    for view in ("runs", "nodes", "edges", table):
        assert "dense-ioi" not in select(connection, f"select distinct run from {view}")["run"].to_pylist()
        assert select(connection, f"from {view}").num_rows > 0
    with pytest.raises(StoreError, match="The run 'dense-ioi' cannot be read"):
        left.run("dense-ioi")


def test_a_part_that_goes_while_the_store_is_open_is_named(toy_copy):
    connection = open_store(toy_copy.path)
    next((toy_copy.path / "edge_scores" / "run=dense-ioi").iterdir()).unlink()
    with pytest.raises(StoreError, match=r"The run 'dense-ioi' cannot be read: '.*parquet': No such file"):
        select(connection, "select sum(score) as s from edge_scores")
    assert (
        select(connection, "select sum(score) as s from edge_scores where run = 'sparse-ioi'").num_rows == 1
    )


@pytest.mark.skipif(sys.platform != "linux", reason="where names of folders are bytes")
def test_a_store_whose_path_is_not_utf8_is_refused(toy_copy, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/st\xff re"))
    toy_copy.path.rename(odd)
    with pytest.raises(InputError, match=r"st\\xff re' is not UTF-8: choose another for a store"):
        open_store(odd)


def test_a_query_that_is_not_utf8_is_refused(connection):
    with pytest.raises(InputError, match="no Unicode"):
        select(connection, os.fsdecode(b"select '\xff' as a"))


def test_threads_that_read_one_file_do_not_disturb_each_other(toy):
    """DuckDB's threads share an open file: each must be at its own place in it."""
    from wirescope.queries.files import Parts, part_name

    catalog = read_catalog(toy.path)
    part = catalog.runs["dense-ioi"].parts["edge_scores"][0].file
    content = (toy.path / part).read_bytes()
    reader, wrong = Parts(catalog).open(part_name(part)), []

    def read(seed):
        for turn in range(2000):
            at = (seed * 7919 + turn * 104729) % (len(content) - 8)
            reader.seek(at)
            if reader.read(8) != content[at : at + 8]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_duckdb_draws_no_bar_among_the_data(toy):
    """In a process of its own: DuckDB draws none under pytest."""
    script = f"""
from wirescope.queries import open_store, select
print(select(open_store({str(toy.path)!r}), "select current_setting('enable_progress_bar') as drawn")["drawn"][0])
"""
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert said == "False\n"


@pytest.mark.parametrize("memory", ["4", "4 bananas", "0GB", "-1", "80%", "4GB; select 1", ""])
def test_an_amount_of_memory_without_sense_is_refused(toy, memory):
    with pytest.raises(
        InputError, match="is no amount of memory: write a number and a unit, as 4GB or 500MB"
    ):
        open_store(toy.path, memory=memory)


@pytest.mark.parametrize(
    ("memory", "limit"), [("512MB", "488.2 MiB"), ("1.5GiB", "1.5 GiB"), ("2 gb", "1.8 GiB")]
)
def test_duckdb_takes_no_more_memory_than_it_may(toy, memory, limit):
    found = select(open_store(toy.path, memory=memory), "select current_setting('memory_limit') as memory")
    assert found["memory"].to_pylist() == [limit]
