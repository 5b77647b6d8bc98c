"""Answers: to the questions, given what they need, and to a user's own SELECT.

`select` admits nothing but a single SELECT, because DuckDB would let COPY write into a folder that it may read.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from ..data import TABLES
from ..graphs import InputError, did_you_mean
from .bootstrap import resample, set_thresholds
from .texts import QUESTIONS, VIEWS, text

_DEFAULTS: dict[str, dict[str, Any]] = {
    "run_scores": {"prompt": None},
    "top_edges": {"prompt": None},
    "top_heads": {"prompt": None},
    "multiplier_intervals": {"threshold": 0.9, "draws": 1000, "seed": 0},
    "run_multiplier": {"threshold": 0.9, "draws": 1000, "seed": 0},
}
"""What a question is given unless the caller says otherwise; no prompt means all of them."""

_PLAIN = (
    *("boolean", "tinyint", "smallint", "integer", "bigint"),
    *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "varchar"),
)
_DECIMAL = ("hugeint", "decimal")
"""Decimals to Arrow, which are numbers again where they make a column."""


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

    Those about multipliers take the `threshold`, and the number of `draws` of their bootstrap and its `seed`.
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
        if "draws" in values:
            return _resampled(connection, query, **values)
        return connection.sql(query, params=values or None).to_arrow_table()


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
        odd = [
            name
            for name, kind in zip(relation.columns, relation.types, strict=True)
            if kind.id not in _DECIMAL and not _is_plain(kind)
        ]
        if odd:
            columns = [_as_text(name) if name in odd else _identifier(name) for name in relation.columns]
            relation = relation.project(", ".join(columns))
        return _without_decimals(relation.to_arrow_table())


def parameters(question: str) -> list[str]:
    """The names of what a question must be given.

    >>> parameters("overlap")
    ['k', 'other', 'run']
    """
    return sorted({*re.findall(r"\$(\w+)", text(question)), *_DEFAULTS.get(question, {})})


def _resampled(
    connection: duckdb.DuckDBPyConnection, query: str, threshold: float, draws: int, seed: int, **values: Any
) -> pa.Table:
    """The answer to a question over draws of prompts."""
    set_thresholds(connection, [threshold])
    resample(connection, draws=draws, seed=seed)
    try:
        return connection.sql(query, params=values or None).to_arrow_table()
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
        there = [run for run, *_ in connection.execute(text("run_list")).fetchall()]
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


def _is_plain(kind: Any) -> bool:
    """Whether every format can hold a type of DuckDB's."""
    if kind.id in ("list", "array", "struct"):
        return all(_is_plain(child) for _, child in kind.children if not isinstance(child, int))
    return kind.id in _PLAIN


def _as_text(name: str) -> str:
    return f"cast({_identifier(name)} as varchar) as {_identifier(name)}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _without_decimals(rows: pa.Table) -> pa.Table:
    """DuckDB's sums of whole numbers are decimals to Arrow: whole numbers again where they fit, and floats else."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type):
            try:
                column = rows[i].cast(pa.int64() if field.type.scale == 0 else pa.float64())
            except pa.ArrowInvalid:
                column = rows[i].cast(pa.float64())
            rows = rows.set_column(i, field.name, column)
    return rows


@contextmanager
def _messages() -> Iterator[None]:
    """What DuckDB says is wrong with a query, as the user's error."""
    try:
        yield
    except duckdb.Error as error:
        raise InputError(str(error).strip()) from error
