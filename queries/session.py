"""DuckDB over a store: a view for each of its tables, and the views made from them.

`open_store` makes a connection in memory that reaches files below the store and no others: it cannot load
extensions or be configured otherwise. That nothing below the store is written is for `engine` to see to, which runs
a user's SELECT and no other statement.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pyarrow as pa

from ..data import TABLES, Catalog, Run, check_path, parse_bytes, read_catalog
from .bootstrap import resample, set_chosen, set_thresholds
from .engine import Connection, engine_of, quoted
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


def open_store(store: Path | str | Catalog, *, memory: str | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with the store's views; `Catalog` if the store has been looked at already.

    `memory` is what DuckDB may take, as "4GB", before it goes on on disk; by default 80 % of the machine's.
    """
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
    connection.execute(f"set allowed_directories = [{quoted(str(catalog.path.resolve()))}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set enable_progress_bar = false")  # it would go to standard output
    if memory is not None:
        connection.execute(f"set memory_limit = {quoted(f'{parse_bytes(memory)}B')}")
    connection.execute("set lock_configuration = true")
    set_up(connection, catalog)
    return connection


def set_up(connection: Connection, catalog: Catalog) -> None:
    """Have all views of a store, whatever the engine."""
    engine = engine_of(connection)
    engine.put("runs", _runs(catalog.runs.values()))
    for table in TABLES:
        engine.put_parts(table, catalog)
    resample(engine, draws=0)
    set_thresholds(engine, [0.9])
    set_chosen(engine, [])
    for view in VIEWS:
        engine.put_view(view, text(view))


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
