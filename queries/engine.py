"""What answers: an engine has the store's tables as views, and runs queries on them.

Questions need no more of one than `Engine` says. DuckDB is here, Spark in `spark`; functions take a connection of
DuckDB's as it is.

A user's query must only read. DuckDB's parser says of what kinds of parts it is made, and those that are known to
read are admitted, no others; and it must be a query still inside another one, where DuckDB's binder takes nothing
that writes, also where the parser saw a text only (`query('...')`). Should both be wrong one day, there is nothing
that could be written: see `session`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa

from ..data import TABLES, Catalog, Run, parse_bytes, schema_of
from ..errors import InputError, StoreError
from .files import check_there, part_name
from .limits import LimitError, check_timeout, stoppable

_PLAIN = (
    *("boolean", "tinyint", "smallint", "integer", "bigint"),
    *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "varchar"),
)
_TYPES = {pa.bool_(): "boolean", pa.int32(): "integer", pa.float32(): "float", pa.string(): "varchar"}
_DECIMAL = ("hugeint", "decimal")
"""Decimals to Arrow, which are numbers again where they make a column."""
_READING = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")
"""Of what a query of DuckDB's is made that writes nothing."""
_ROWS_AT_ONCE = 100_000


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
    timeout: float | None = None

    def run(self, query: str, values: Mapping[str, Any]) -> pa.Table:
        """The answer to a text of ours, with values for its parameters."""
        return self._stoppable(lambda: self._fetched(self.connection.sql(query, params=dict(values) or None)))

    def relation(self, query: str) -> duckdb.DuckDBPyRelation:
        """A user's query, not computed yet, if it only reads."""
        with _messages():
            try:
                statements = self.connection.extract_statements(query)
            except (
                TypeError
            ) as error:  # of half a character, as a byte that is not UTF-8 comes from a terminal
                raise InputError("The query has characters that are no Unicode; is it UTF-8?") from error
            kinds = [_kind(statement) for statement in statements]
            if kinds != ["SELECT"]:
                raise only_select(", ".join(kinds) or "nothing")
            self._check_parts(bare := _bare(statements[0].query))
            try:
                relation = self.connection.sql(statements[0])
                self.connection.sql(f"from ({bare}\n)")
            except duckdb.BinderException as error:
                if found := re.search(r"containing an? (.+) statement must be at the top level", str(error)):
                    raise only_select(f"a SELECT with {found[1]}") from error
                raise
            return relation

    def select(self, query: str) -> pa.Table:
        """The answer to a user's query."""
        return self._stoppable(lambda: self._select(query))

    def _select(self, query: str) -> pa.Table:
        relation = self.relation(query)
        check_names(relation.columns)
        columns = list(zip(relation.columns, relation.types, strict=True))
        odd = [name for name, kind in columns if kind.id not in _DECIMAL and not _is_plain(kind)]
        if odd:
            plain = [_as_text(name) if name in odd else _identifier(name) for name, _ in columns]
            relation = relation.project(", ".join(plain))
        return plain_columns(self._fetched(relation))

    def _check_parts(self, query: str) -> None:
        """Refuse a query that is made of anything but what reads, as DuckDB's parser sees it."""
        ((tree,),) = self.connection.sql("select json_serialize_sql($1)", params=[query]).fetchall()
        if others := _kinds(json.loads(tree)) - {*_READING}:
            raise only_select("a SELECT with " + " and ".join(map(_plainly, sorted(others))))

    def _fetched(self, relation: duckdb.DuckDBPyRelation) -> pa.Table:
        """What a query gives, unless that is more than fits into the memory that DuckDB may take."""
        ((limit,),) = self.connection.sql("select current_setting('memory_limit')").fetchall()
        room, taken, batches = parse_bytes(limit), 0, []
        with relation.to_arrow_reader(_ROWS_AT_ONCE) as reader:
            for batch in reader:
                taken += batch.nbytes
                if taken > room:
                    raise LimitError(
                        f"The answer is larger than the {limit} of memory that it may take; ask for fewer rows or "
                        "columns, or allow more with --memory."
                    )
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)

    def _stoppable(self, work: Callable[[], pa.Table]) -> pa.Table:
        with _messages():
            return stoppable(work, self.connection.interrupt, self.timeout)

    def put(self, name: str, rows: pa.Table) -> None:
        """Have a table by that name, in the place of another."""
        self.connection.register(name, rows)

    def put_parts(self, table: str, catalog: Catalog) -> None:
        """Have a table of the store as a view of its files."""
        for name in catalog.runs:
            for file in catalog.files(table, name):
                check_there(file, name)
        # a view cannot take parameters: names and columns are our own, and what comes from outside is quoted
        runs = [
            f"select {', '.join(columns_of(table, run, _type_word))}, {quoted(name)} as run "  # noqa: S608
            f"from read_parquet([{', '.join(quoted(part_name(part.file)) for part in run.parts[table])}], "
            "hive_partitioning = false)"
            for name, run in catalog.runs.items()
            if run.parts.get(table)
        ]
        if runs:
            self.put_view(table, " union all ".join(runs))
        else:
            self.put(table, no_rows(table))

    def put_view(self, name: str, query: str) -> None:
        """Have the answer to a query by that name."""
        with _messages():
            self.connection.execute(f"create or replace view {name} as {query}")


def engine_of(connection: Connection) -> Engine:
    """The engine that a connection is to."""
    return DuckDB(connection) if isinstance(connection, duckdb.DuckDBPyConnection) else connection


_facts: WeakKeyDictionary[duckdb.DuckDBPyConnection, dict[tuple[object, ...], pa.Table]] = WeakKeyDictionary()


def remembered(connection: Connection, key: tuple[object, ...], find: Callable[[], pa.Table]) -> pa.Table:
    """What is the same for as long as a connection has the same runs, found once; with DuckDB, which has one user."""
    engine = engine_of(connection)
    if not isinstance(engine, DuckDB):
        return find()
    facts = _facts.setdefault(engine.connection, {})
    if key not in facts:
        facts[key] = find()
    return facts[key]


def forget(connection: Connection) -> None:
    """Forget it all: the runs are other ones."""
    engine = engine_of(connection)
    if isinstance(engine, DuckDB):
        _facts.pop(engine.connection, None)


def limited(connection: Connection, *, timeout: float | None) -> Engine:
    """The same engine with a limit: each query is given up after so many seconds."""
    check_timeout(timeout)
    return replace(engine_of(connection), timeout=timeout)  # type: ignore[type-var]


def columns_of(table: str, run: Run, type_word: Callable[[pa.DataType], str]) -> list[str]:
    """The columns of a table, for SELECT; those that a run of an older schema has not got are null.

    A null has a type, for which each engine has its own word.
    """
    there = schema_of(table, run.schema_version).names
    return [
        field.name if field.name in there else f"cast(null as {type_word(field.type)}) as {field.name}"
        for field in TABLES[table]
    ]


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


def _type_word(kind: pa.DataType) -> str:
    """DuckDB's word for a type of the store's columns."""
    return f"{_type_word(kind.value_type)}[]" if pa.types.is_list(kind) else _TYPES[kind]


def _is_plain(kind: Any) -> bool:
    """Whether every format can hold a type of DuckDB's."""
    if kind.id in ("list", "array", "struct"):
        return all(_is_plain(child) for _, child in kind.children if not isinstance(child, int))
    return kind.id in _PLAIN


def _as_text(name: str) -> str:
    return f"cast({_identifier(name)} as varchar) as {_identifier(name)}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _kind(statement: duckdb.Statement) -> str:
    """The kind of a statement; a few have no name in Python."""
    try:
        return statement.type.name
    except ValueError:
        return "something else"


def _bare(query: str) -> str:
    """A statement without the semicolons and comments after it.

    >>> _bare("select ';' as a; -- b;")
    "select ';' as a"
    """
    text = query.encode()
    end = len(text)
    for start, kind in reversed(duckdb.tokenize(query)):
        if kind != duckdb.token_type.comment and text[start:end].strip() != b";":
            break
        end = start
    return text[:end].decode()


def _kinds(tree: Any) -> set[str]:
    """The kinds of queries in what DuckDB's parser made of one."""
    if isinstance(tree, list):
        return set().union(*map(_kinds, tree))
    if not isinstance(tree, dict):
        return set()
    own = {kind for kind in [tree.get("type")] if isinstance(kind, str) and kind.endswith("_NODE")}
    return own.union(*map(_kinds, tree.values()))


def _plainly(kind: str) -> str:
    """A kind of query as one writes it."""
    return kind.removesuffix("_NODE").removesuffix("_QUERY").replace("_", " ")


@contextmanager
def _messages() -> Iterator[None]:
    """What DuckDB, or Arrow in its name, says is wrong with a query, as the user's error, and with a file, as its."""
    try:
        yield
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        said = str(error).strip()
        if said.startswith("Traceback"):  # of `files`
            found = re.search(r"^(?:\w+\.)*(\w+): (.+)$", said, re.MULTILINE)
            kind, said = (found[1], found[2]) if found else ("", said.rpartition("\n")[2])
            if kind == StoreError.__name__:
                raise StoreError(said) from error
        raise InputError(said) from error
