"""A user's query reads the store and nothing else, and writes nothing."""

import subprocess
import sys
import tempfile

import pytest
from wirescope.graphs import InputError
from wirescope.queries import open_store, select


@pytest.fixture
def connection(toy):
    return open_store(toy.path)


@pytest.mark.parametrize(
    "query",
    [
        "select 1 as a",
        "from runs",
        "describe edge_scores",
        "summarize effects",
        "with a as (select 1 as b) select * from a",
        "-- a comment\nselect count(*) as n from edge_scores;",
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
        "call pragma_version()",
        "select 1; copy (select 1) to '{store}/x.csv'",
        "select 1; select 2",
        "",
        "-- nothing",
    ],
)
def test_anything_but_one_select_is_refused(connection, toy, query):
    before = sorted(toy.path.rglob("*"))
    with pytest.raises(InputError, match="Only a single SELECT"):
        select(connection, query.format(store=toy.path))
    assert sorted(toy.path.rglob("*")) == before


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


def test_what_does_not_fit_in_memory_goes_to_the_systems_own_folder(connection):
    (setting,) = select(connection, "select current_setting('temp_directory') as folder")[
        "folder"
    ].to_pylist()
    assert setting.startswith(tempfile.gettempdir())


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
