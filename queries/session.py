"""DuckDB over a store: a view for each of its tables, and the views made from them.

`open_store` makes a connection in memory that reaches the parts of the store, and nothing else, through a file
system that only reads (`files`); it cannot load extensions or be configured otherwise. What does not fit in memory goes
to a folder that is this connection's alone and is removed with it: should a query ever get to write, that is where.
"""

import atexit
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa

from ..data import TABLES, Catalog, Run, check_path, parse_bytes, read_catalog
from ..errors import InputError, StoreError
from .engine import Connection, Engine, engine_of, forget, quoted
from .files import Parts
from .settings import THRESHOLD, set_chosen, set_held_out, set_thresholds
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
    "only_correct": pa.bool_(),
    "prompts_tried": pa.int32(),
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
    "helpful_sign": pa.int32(),
    "ablation": pa.string(),
    "protocol": pa.string(),
    "stem": pa.string(),
    "split": pa.float64(),
    "cross_fit": pa.int32(),
    "seed": pa.int64(),
    "dtype": pa.string(),
    "device": pa.string(),
    "source": pa.string(),
    "source_hash": pa.string(),
    "schema_version": pa.int32(),
    "started": pa.string(),
    "finished": pa.string(),
}

_connections: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()


def open_store(store: Path | str | Catalog, *, memory: str | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with the store's views; `Catalog` if the store has been looked at already.

    `memory` is what DuckDB may take, as "4GB", before it goes on on disk, and what an answer may take at most; by
    default 80 % of the machine's.
    """
    return open_catalog(store if isinstance(store, Catalog) else read_catalog(store), memory=memory)[1]


def open_catalog(catalog: Catalog, *, memory: str | None = None) -> tuple[Catalog, duckdb.DuckDBPyConnection]:
    """A connection, and the runs that it has: those whose files cannot be opened are among the broken ones."""
    check_path(catalog.path)
    parts = Parts(catalog)
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
            "temp_directory": _new_folder(parts),
        }
    )
    connection.register_filesystem(parts)
    _connections.add(connection)
    connection.execute(f"set allowed_paths = [{', '.join(map(quoted, parts.names))}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set enable_progress_bar = false")  # it would go to standard output
    if memory is not None:
        connection.execute(f"set memory_limit = {quoted(f'{parse_bytes(memory)}B')}")
    connection.execute("set lock_configuration = true")
    return set_up(connection, catalog), connection


def set_up(connection: Connection, catalog: Catalog) -> Catalog:
    """Have all views of a store, whatever the engine; the runs that it cannot read are among the broken ones."""
    engine = engine_of(connection)
    forget(connection)
    for table in TABLES:
        try:
            engine.put_parts(table, catalog)
        except (InputError, StoreError):
            if not (broken := _broken(engine, table, catalog)):
                raise
            return set_up(engine, _without(catalog, broken))
    engine.put("runs", _runs(catalog.runs.values()))
    set_thresholds(engine, [THRESHOLD])
    set_chosen(engine, [])
    set_held_out(engine, catalog.runs.values())
    for view in VIEWS:
        engine.put_view(view, text(view))
    return catalog


def _broken(engine: Engine, table: str, catalog: Catalog) -> dict[str, str]:
    """The runs of which an engine cannot have a table, and why."""
    broken = {}
    for name, run in catalog.runs.items():
        try:
            if run.parts.get(table):
                engine.put_parts(table, replace(catalog, runs={name: run}))
        except StoreError as error:
            broken[name] = str(error)
        except InputError as error:  # the engine's own words
            broken[name] = f"The run '{name}' cannot be read: {table}: {str(error).partition(chr(10))[0]}"
    return broken


def _without(catalog: Catalog, broken: Mapping[str, str]) -> Catalog:
    runs = {name: run for name, run in catalog.runs.items() if name not in broken}
    return replace(catalog, runs=runs, broken={**catalog.broken, **broken})


@atexit.register
def _close() -> None:
    """Close what is open still: DuckDB would take the parts, which are Python's, for a leak, and complain."""
    for connection in list(_connections):
        with suppress(duckdb.Error):
            connection.close()


def _new_folder(parts: Parts) -> str:
    """A folder for what does not fit in memory that nobody else can have made; none where none can be made.

    It goes with the parts, and DuckDB lets go of these when nothing of the connection is left, relations included.
    """
    try:
        folder = tempfile.mkdtemp(prefix="wirescope-")
    except OSError:  # then all has to fit
        return ""
    weakref.finalize(parts, shutil.rmtree, folder, ignore_errors=True)
    return folder


def _runs(runs: Iterable[Run]) -> pa.Table:
    rows = []
    for run in runs:
        tried = run.prompts_tried if run.only_correct else run.prompts
        known = run.shape.asdict() | vars(run) | {"edges": run.shape.n_edges, "prompts_tried": tried}
        known |= {"split": run.split, "cross_fit": run.cross_fit, "helpful_sign": run.helpful_sign}
        known |= {"stem": run.stem}
        rows.append({column: known[column] for column in _RUN_COLUMNS})
    return pa.Table.from_pylist(rows, schema=pa.schema(list(_RUN_COLUMNS.items())))
