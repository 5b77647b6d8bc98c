"""What answers: an engine has the store's tables as views, and runs queries on them.

Questions need no more of one than `Engine` says. DuckDB is here, Spark in `spark`; functions take a connection of
DuckDB's as it is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from ..data import TABLES, Catalog, Run, schema_of
from ..graphs import InputError

_PLAIN = (
    *("boolean", "tinyint", "smallint", "integer", "bigint"),
    *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "varchar"),
)
_DECIMAL = ("hugeint", "decimal")
"""Decimals to Arrow, which are numbers again where they make a column."""


class Engine(Protocol):
    """A store's views, and what runs queries on them."""

    def run(self, query: str, values: Mapping[str, Any]) -> pa.Table:
        """The answer to a text of ours, with values for its parameters."""

    def select(self, query: str) -> pa.Table:
        """The answer to a user's query, which must be one SELECT."""

    def put(self, name: str, rows: pa.Table) -> None:
        """Have a table by that name, in the place of another."""

    def put_parts(self, table: str, catalog: Catalog) -> None:
        """Have a table of the store: the files of all runs, each run with its name, null for what one lacks."""

    def put_view(self, name: str, query: str) -> None:
        """Have the answer to a query by that name."""


Connection = duckdb.DuckDBPyConnection | Engine


@dataclass(frozen=True)
class DuckDB:
    """DuckDB on this machine."""

    connection: duckdb.DuckDBPyConnection

    def run(self, query: str, values: Mapping[str, Any]) -> pa.Table:
        """The answer to a text of ours, with values for its parameters."""
        with _messages():
            return self.connection.sql(query, params=dict(values) or None).to_arrow_table()

    def relation(self, query: str) -> duckdb.DuckDBPyRelation:
        """A user's query, not computed yet: nothing but a SELECT, because COPY could write where it may read."""
        with _messages():
            statements = self.connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
                raise only_select(kinds)
            return self.connection.sql(statements[0])

    def select(self, query: str) -> pa.Table:
        """The answer to a user's query."""
        with _messages():
            relation = self.relation(query)
            check_names(relation.columns)
            columns = list(zip(relation.columns, relation.types, strict=True))
            odd = [name for name, kind in columns if kind.id not in _DECIMAL and not _is_plain(kind)]
            if odd:
                plain = [_as_text(name) if name in odd else _identifier(name) for name, _ in columns]
                relation = relation.project(", ".join(plain))
            return plain_columns(relation.to_arrow_table())

    def put(self, name: str, rows: pa.Table) -> None:
        """Have a table by that name, in the place of another."""
        self.connection.register(name, rows)

    def put_parts(self, table: str, catalog: Catalog) -> None:
        """Have a table of the store as a view of its files."""
        files = {name: catalog.files(table, name) for name in catalog.runs}
        # a view cannot take parameters: names and columns are our own, and what comes from outside is quoted
        runs = [
            f"select {', '.join(columns_of(table, catalog.runs[name], 'varchar[]'))}, {quoted(name)} as run "  # noqa: S608
            f"from read_parquet([{', '.join(quoted(str(path.resolve())) for path in paths)}], "
            "hive_partitioning = false)"
            for name, paths in files.items()
            if paths
        ]
        if runs:
            self.put_view(table, " union all ".join(runs))
        else:
            self.put(table, no_rows(table))

    def put_view(self, name: str, query: str) -> None:
        """Have the answer to a query by that name."""
        self.connection.execute(f"create view {name} as {query}")


def engine_of(connection: Connection) -> Engine:
    """The engine that a connection is to."""
    return DuckDB(connection) if isinstance(connection, duckdb.DuckDBPyConnection) else connection


def columns_of(table: str, run: Run, texts: str) -> list[str]:
    """The columns of a table, for SELECT; those that a run of an older schema has not got are null.

    They are lists of texts, a type for which each engine has its own word.
    """
    there = schema_of(table, run.schema_version).names
    return [name if name in there else f"cast(null as {texts}) as {name}" for name in TABLES[table].names]


def no_rows(table: str) -> pa.Table:
    """A table of the store that no run has."""
    return TABLES[table].append(pa.field("run", pa.string())).empty_table()


def only_select(kinds: str) -> InputError:
    """What is said of another statement."""
    return InputError(f"Only a single SELECT can be run on a store; this query is: {kinds}.")


def check_names(columns: Iterable[str]) -> None:
    """Refuse an answer with two columns of one name, which not every format holds."""
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise InputError(f"Two columns of the answer are called '{twice[0]}'; tell them apart with AS.")


def plain_columns(rows: pa.Table) -> pa.Table:
    """All columns as ones that may be null, and without decimals: DuckDB's sums of whole numbers are some to Arrow.

    They are whole numbers again where they fit, and floats else.
    """
    fields, columns = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_decimal(field.type):
            try:
                column = column.cast(pa.int64() if field.type.scale == 0 else pa.float64())
            except pa.ArrowInvalid:
                column = column.cast(pa.float64())
        fields.append(pa.field(field.name, column.type))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields))


def quoted(value: str) -> str:
    """A text, for SQL."""
    return "'" + value.replace("'", "''") + "'"


def _is_plain(kind: Any) -> bool:
    """Whether every format can hold a type of DuckDB's."""
    if kind.id in ("list", "array", "struct"):
        return all(_is_plain(child) for _, child in kind.children if not isinstance(child, int))
    return kind.id in _PLAIN


def _as_text(name: str) -> str:
    return f"cast({_identifier(name)} as varchar) as {_identifier(name)}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _messages() -> Iterator[None]:
    """What DuckDB says is wrong with a query, as the user's error."""
    try:
        yield
    except duckdb.Error as error:
        raise InputError(str(error).strip()) from error
