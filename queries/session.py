"""DuckDB over a store: a view for each of its tables, and the views made from them.

`open_store` makes a connection in memory that reads files below the store and nothing else: it cannot load
extensions or be configured otherwise.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pyarrow as pa

from ..data import TABLES, Catalog, Run, check_path, read_catalog, schema_of
from .bootstrap import resample, set_chosen, set_thresholds
from .texts import VIEWS, text

_RUN_COLUMNS = {
    "run": pa.string(),
    "model": pa.string(),
    "revision": pa.string(),
    "base_model": pa.string(),
    "task": pa.string(),
    "levels": pa.list_(pa.string()),
    "prompts": pa.int32(),
    "prompts_hash": pa.string(),
    "layers": pa.int32(),
    "heads": pa.int32(),
    "kv_heads": pa.int32(),
    "parallel": pa.bool_(),
    "inputs": pa.string(),
    "edges": pa.int64(),
    "method": pa.string(),
    "steps": pa.int32(),
    "integration_rule": pa.string(),
    "metric": pa.string(),
    "sign": pa.string(),
    "ablation": pa.string(),
    "split": pa.float64(),
    "seed": pa.int64(),
    "dtype": pa.string(),
    "device": pa.string(),
    "source": pa.string(),
    "source_hash": pa.string(),
    "schema_version": pa.int32(),
    "started": pa.string(),
    "finished": pa.string(),
}


def open_store(store: Path | str | Catalog) -> duckdb.DuckDBPyConnection:
    """A connection with the store's views; `Catalog` if the store has been looked at already."""
    catalog = store if isinstance(store, Catalog) else read_catalog(store)
    check_path(catalog.path)
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # for what does not fit in memory
            "temp_directory": str(Path(tempfile.gettempdir()) / f"wirescope-{_user()}"),
        }
    )
    connection.execute(f"set allowed_directories = [{_quoted(str(catalog.path.resolve()))}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    connection.register("runs", _runs(catalog.runs.values()))
    for table in TABLES:
        _create_view(connection, table, catalog)
    resample(connection, draws=0)
    set_thresholds(connection, [0.9])
    set_chosen(connection, [])
    for view in VIEWS:
        connection.execute(f"create view {view} as {text(view)}")
    return connection


def _user() -> int:
    """Whose temporary files they are: on a shared machine, nobody can write into another's folder."""
    # elsewhere everyone has a temporary folder of their own anyway
    return os.getuid() if hasattr(os, "getuid") else 0


def _runs(runs: Iterable[Run]) -> pa.Table:
    rows = []
    for run in runs:
        split = run.curves[0].split if run.curves else None
        known = run.shape.asdict() | vars(run) | {"edges": run.shape.n_edges, "split": split}
        rows.append({column: known[column] for column in _RUN_COLUMNS})
    return pa.Table.from_pylist(rows, schema=pa.schema(list(_RUN_COLUMNS.items())))


def _create_view(connection: duckdb.DuckDBPyConnection, table: str, catalog: Catalog) -> None:
    """A view of a table over all runs: their files, each run with its name."""
    schema = TABLES[table]
    files = {name: catalog.files(table, name) for name in catalog.runs}
    # a view cannot take parameters: names and columns are our own, and what comes from outside is quoted
    runs = [
        f"select {_columns(table, catalog.runs[name])}, {_quoted(name)} as run from read_parquet("  # noqa: S608
        f"[{', '.join(_quoted(str(path.resolve())) for path in paths)}], hive_partitioning = false)"
        for name, paths in files.items()
        if paths
    ]
    if runs:
        connection.execute(f"create view {table} as {' union all '.join(runs)}")
    else:
        connection.register(table, schema.append(pa.field("run", pa.string())).empty_table())


def _columns(table: str, run: Run) -> str:
    """The columns of a table, for SELECT; those that a run of an older schema has not got are null."""
    there = schema_of(table, run.schema_version).names
    return ", ".join(
        name if name in there else f"cast(null as varchar[]) as {name}" for name in TABLES[table].names
    )


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
