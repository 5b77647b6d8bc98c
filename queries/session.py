"""DuckDB over a store: the views that a question can use, and the questions.

`open_store` makes a connection in memory with a view for each table of the store, over the files of its
readable runs, and the derived views of `VIEWS`. The connection reads files below the store and nothing
else: it cannot load extensions or be configured otherwise. `select` runs a user's query and admits nothing
but a single SELECT, because DuckDB would let COPY write into a folder that it may read.

The text of every question is a file beside this one. It names tables only, so any engine that has them as
views can run it.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ..data import TABLES, Catalog, Run, check_path, read_catalog
from ..graphs import InputError, did_you_mean

VIEWS = (
    "edge_means",
    "curves",
    "resampled_curves",
    "crossings",
    "resampled_multipliers",
    "multipliers",
)
"""Questions that are views too, each after those that it uses."""

QUESTIONS = (
    "run_list",
    "run_prompts",
    "run_scores",
    "run_curve",
    "top_edges",
    "top_heads",
    "top_attention",
    "attributed_curve",
    "layer_mass",
    "head_strength",
    "overlap",
    "stability",
    "areas",
    "multiplier_intervals",
)
"""Questions to `ask`, with their parameters."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "run_scores": {"prompt": None},
    "top_edges": {"prompt": None},
    "top_heads": {"prompt": None},
    "multiplier_intervals": {"threshold": 0.9, "draws": 1000, "seed": 0},
}
"""What a question is given unless the caller says otherwise; no prompt means all of them."""

_PLAIN = (
    *("boolean", "tinyint", "smallint", "integer", "bigint"),
    *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "varchar"),
)

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
    folder = str(catalog.path.resolve())
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": str(
                Path(tempfile.gettempdir()) / "wirescope"
            ),  # for what does not fit in memory
        }
    )
    # without the slash, a neighbour whose name starts alike would be allowed too
    connection.execute(f"set allowed_directories = [{_quoted(folder + '/')}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    connection.register("runs", _runs(catalog.runs.values()))
    for table in TABLES:
        _create_view(connection, table, catalog)
    resample(connection, draws=0)
    set_thresholds(connection, [0.9])
    for view in VIEWS:
        connection.execute(f"create view {view} as {text(view)}")
    return connection


def answer(connection: duckdb.DuckDBPyConnection, query: str, /, **given: Any) -> pa.Table:
    """The answer to a SELECT or, by its name, to a question with what it is given; or a whole view by its name."""
    if query in QUESTIONS:
        return ask(connection, query, **given)
    if query.isidentifier():
        known = (*QUESTIONS, *VIEWS, *TABLES, "runs")
        if query not in known:
            raise InputError(f"There is no question or view '{query}'.{did_you_mean(query, known)}")
        query = f"from {query}"
    if given:
        raise InputError("Only a ready-made question can be given values; write them into the SELECT.")
    return select(connection, query)


def ask(connection: duckdb.DuckDBPyConnection, question: str, /, **given: Any) -> pa.Table:
    """The answer to one of the questions; `parameters` says what it needs, less what has a default.

    `multiplier_intervals` takes the `threshold`, and the number of `draws` of its bootstrap and their `seed`.
    """
    query, needed = text(question), parameters(question)
    values = _DEFAULTS.get(question, {}) | given
    if values.keys() != set(needed):
        raise InputError(
            f"The question '{question}' needs {' and '.join(needed) or 'nothing'}, and was given "
            f"{' and '.join(given) or 'nothing'}."
        )
    with _messages():
        _check_values(connection, values)
        if question == "multiplier_intervals":
            return _multiplier_intervals(connection, query, **values)
        return connection.sql(query, params=values or None).to_arrow_table()


def parameters(question: str) -> list[str]:
    """The names of what a question must be given.

    >>> parameters("overlap")
    ['k', 'other', 'run']
    """
    return sorted({*re.findall(r"\$(\w+)", text(question)), *_DEFAULTS.get(question, {})})


def select(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """The answer to a user's query, which must be one SELECT.

    Columns come as numbers, truths, texts, and lists and structures of these; anything else (dates, intervals,
    maps, blobs) comes as DuckDB writes it.
    """
    with _messages():
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise InputError(f"Only a single SELECT can be run on a store; this query is: {kinds}.")
        relation = connection.sql(statements[0])
        twice = [name for name, times in Counter(relation.columns).items() if times > 1]
        if twice:
            raise InputError(f"Two columns of the answer are called '{twice[0]}'; tell them apart with AS.")
        columns = [_column(name, kind) for name, kind in zip(relation.columns, relation.types, strict=True)]
        return relation.project(", ".join(columns)).to_arrow_table()


def text(question: str) -> str:
    """The SQL of a question or view."""
    if question not in (*QUESTIONS, *VIEWS):
        known = (*QUESTIONS, *VIEWS)
        raise InputError(f"There is no question '{question}'.{did_you_mean(question, known)}")
    return (resources.files(__package__) / f"{question}.sql").read_text()


def resample(connection: duckdb.DuckDBPyConnection, *, draws: int, seed: int = 0) -> None:
    """Set the draws of prompts for the bootstrap; draw 0 has every prompt once.

    A Poisson bootstrap: in a draw, each prompt counts a number of times that is Poisson with mean 1. A prompt
    id has the same count in all runs, so two runs on the same prompts are compared draw by draw.
    """
    prompts = connection.execute("select distinct prompt_id from effects order by prompt_id").fetchnumpy()
    ids = np.asarray(prompts["prompt_id"], dtype=np.int32)
    weights = np.ones((draws + 1, len(ids)))
    for i, prompt in enumerate(
        ids.tolist()
    ):  # its own seed, so that no draw depends on what else is in the store
        weights[1:, i] = np.random.default_rng([seed, prompt]).poisson(1.0, size=draws)
    draw, at = np.nonzero(weights)
    columns = {"draw": draw.astype(np.int32), "prompt_id": ids[at], "weight": weights[draw, at]}
    connection.register("resamples", pa.table(columns))


def set_thresholds(connection: duckdb.DuckDBPyConnection, thresholds: Iterable[float]) -> None:
    """Set the explained effects at which curves are compared; 0.9 unless set."""
    connection.register("thresholds", pa.table({"threshold": pa.array(list(thresholds), pa.float64())}))


def _multiplier_intervals(
    connection: duckdb.DuckDBPyConnection, query: str, threshold: float, draws: int, seed: int
) -> pa.Table:
    set_thresholds(connection, [threshold])
    resample(connection, draws=draws, seed=seed)
    try:
        return connection.sql(query).to_arrow_table()
    finally:  # the views that need no draws are much faster without
        set_thresholds(connection, [0.9])
        resample(connection, draws=0)


def _check_values(connection: duckdb.DuckDBPyConnection, values: dict[str, Any]) -> None:
    """Refuse what a question cannot be given, where SQL would answer with nothing or with nonsense."""
    for name in ("k", "draws"):
        if name in values and not (type(values[name]) is int and values[name] >= 1):
            raise InputError(f"{name} is {values[name]!r}; it must be a whole number, 1 or more.")
    if "seed" in values and not (type(values["seed"]) is int and values["seed"] >= 0):
        raise InputError(f"seed is {values['seed']!r}; it must be a whole number, 0 or more.")
    if "threshold" in values and not isinstance(values["threshold"], int | float):
        raise InputError(f"threshold is {values['threshold']!r}; it must be a number.")
    for name in values.keys() & {"run", "other"}:
        there = [run for (run,) in connection.execute("select run from runs order by run").fetchall()]
        if values[name] not in there:
            raise InputError(
                f"The store has no run '{values[name]}' (runs: {', '.join(there)})."
                f"{did_you_mean(str(values[name]), there)}"
            )
    prompt = values.get("prompt")
    if prompt is not None:
        there = connection.execute(text("run_prompts"), {"run": values["run"]}).fetchall()
        if (prompt,) not in there:
            known = f"its prompts are {there[0][0]} to {there[-1][0]}" if there else "it has none"
            raise InputError(f"The run '{values['run']}' has no prompt {prompt}; {known}.")


def _column(name: str, kind: Any) -> str:
    """A column of an answer in a type that every format can hold."""
    quoted = '"' + name.replace('"', '""') + '"'
    if kind.id == "hugeint" or (kind.id == "decimal" and dict(kind.children)["scale"] == 0):
        return f"cast({quoted} as bigint) as {quoted}"
    if kind.id == "decimal":
        return f"cast({quoted} as double) as {quoted}"
    return quoted if _is_plain(kind) else f"cast({quoted} as varchar) as {quoted}"


def _is_plain(kind: Any) -> bool:
    if kind.id in ("list", "array", "struct"):
        return all(_is_plain(child) for _, child in kind.children if not isinstance(child, int))
    return kind.id in _PLAIN


@contextmanager
def _messages() -> Iterator[None]:
    """What DuckDB says is wrong with a query, as the user's error."""
    try:
        yield
    except duckdb.Error as error:
        raise InputError(str(error).strip()) from error


def _runs(runs: Iterable[Run]) -> pa.Table:
    rows = []
    for run in runs:
        known = run.shape.asdict() | vars(run) | {"edges": run.shape.n_edges}
        rows.append({column: known[column] for column in _RUN_COLUMNS})
    return pa.Table.from_pylist(rows, schema=pa.schema(list(_RUN_COLUMNS.items())))


def _create_view(connection: duckdb.DuckDBPyConnection, table: str, catalog: Catalog) -> None:
    """A view of a table over all runs: their files, each run with its name."""
    schema = TABLES[table]
    files = {name: catalog.files(table, name) for name in catalog.runs}
    columns = ", ".join(schema.names)
    # a view cannot take parameters: names and columns are our own, and what comes from outside is quoted
    runs = [
        f"select {columns}, {_quoted(name)} as run from read_parquet("  # noqa: S608
        f"[{', '.join(_quoted(str(path.resolve())) for path in paths)}], hive_partitioning = false)"
        for name, paths in files.items()
        if paths
    ]
    if runs:
        connection.execute(f"create view {table} as {' union all '.join(runs)}")
    else:
        connection.register(table, schema.append(pa.field("run", pa.string())).empty_table())


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
