"""Spark over a store, for stores beyond one machine: the views of `open_store`, the same questions, equal answers.

Where Spark runs is its own configuration (``spark-defaults.conf``, ``PYSPARK_SUBMIT_ARGS``, ``SPARK_*``), or what
`start_spark` is told; without either it is this machine. All of its workers must see the store under the same path.

A user's query is confined to the views: Spark's grammar must take it for a query, and in the plan that Spark makes
of it nothing may stand for a table of a catalog, a file, a script or a call of Java. Not guarded against: functions
and rules that a cluster was given by its owner, the paths that a few functions take as an option (the schema file
of `from_xml`), and a query that takes all there is of time and memory.
"""

import logging
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from ..data import TABLES, Catalog, check_path, read_catalog, schema_of
from ..errors import InputError
from .engine import DuckDB, check_names, columns_of, no_rows, only_select, plain_columns, quoted
from .files import check_there
from .limits import stoppable
from .session import open_store, set_up
from .texts import VIEWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, as it is to DuckDB
    "spark.sql.runSQLOnFiles": "false",  # no table by the path of a file
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",  # ${env:HOME} is a text
}
_TYPES = {pa.bool_(): "boolean", pa.int32(): "int", pa.float32(): "float", pa.string(): "string"}
_PLAIN = ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "decimal", "void")
_SOURCES = ("OneRowRelation", "LocalRelation", "Range", "CTERelationRef", "UnionLoopRef")
"""What a plan may read beside views: what stands in the query itself."""


@dataclass(frozen=True)
class Spark:
    """An engine: the views of a store in a session of Spark's that has nothing else."""

    session: "SparkSession"
    twin: duckdb.DuckDBPyConnection
    """DuckDB with the same views and no runs: it knows the types of answers."""
    catalog: Catalog
    """The runs that it has."""
    timeout: float | None = None

    def run(self, query: str, values: Mapping[str, Any]) -> pa.Table:
        """The answer to a text of ours, with values for its parameters, and with DuckDB's types."""
        named = re.sub(r"\$(\w+)", r":\1", query)
        with _messages():
            rows = self._stoppable(lambda: self.session.sql(named, args=dict(values)).toArrow())
        return rows.cast(DuckDB(self.twin).run(query, values).schema)

    def select(self, query: str) -> pa.Table:
        """The answer to a user's query, which must be one SELECT of the store's views."""
        query = query.strip().rstrip("; \n")
        with _messages():
            return self._stoppable(lambda: self._select(query))

    def _select(self, query: str) -> pa.Table:
        frame = self._checked(query)
        check_names(frame.columns)
        if not all(_is_plain(field.dataType) for field in frame.schema):
            frame = frame.selectExpr(*map(_plain, frame.schema))
        return plain_columns(frame.toArrow())

    def _stoppable(self, work: Callable[[], pa.Table]) -> pa.Table:
        return stoppable(work, self.session.sparkContext.cancelAllJobs, self.timeout)

    def put(self, name: str, rows: pa.Table) -> None:
        """Have a table by that name, in the place of another."""
        with _without_pandas():
            self.session.createDataFrame(rows).createOrReplaceTempView(name)

    def put_parts(self, table: str, catalog: Catalog) -> None:
        """Have a table of the store as a view of its files."""
        with _messages():
            runs = [self._parts(table, catalog, name) for name in catalog.runs if catalog.files(table, name)]
        if runs:
            reduce(lambda above, below: above.union(below), runs).createOrReplaceTempView(table)
        else:
            self.put(table, no_rows(table))

    def put_view(self, name: str, query: str) -> None:
        """Have the answer to a query by that name."""
        self.session.sql(f"create or replace temporary view {name} as {query}")

    def _parts(self, table: str, catalog: Catalog, name: str) -> "DataFrame":
        run = catalog.runs[name]
        for file in catalog.files(table, name):
            check_there(file, name)
        schema = schema_of(table, run.schema_version)
        columns = ", ".join(f"{field.name} {_type_word(field.type)}" for field in schema)
        # wherever a cluster has its own files, and whatever pattern a path could be
        files = [f"file://{path.resolve()}" for path in catalog.files(table, name)]
        rows = self.session.read.schema(columns).option("__globPaths__", "false").parquet(*files)
        return rows.selectExpr(*columns_of(table, run, _type_word), f"{quoted(name)} as run")

    def _checked(self, query: str) -> "DataFrame":
        """What a query gives, if it is a SELECT of the views alone, or describes one; nothing else is run."""
        from pyspark.errors import ParseException

        parser = self.session._jsparkSession.sessionState().sqlParser()
        statement = parser.parsePlan(query)
        if statement.nodeName() == "DescribeRelation":
            described = statement.relation().multipartIdentifier().mkString(".")
            if described in (*TABLES, *VIEWS, "runs"):
                return self.session.sql(query)
        try:
            parser.parseQuery(query)
        except ParseException as error:
            raise only_select(statement.nodeName()) from error
        frame = self.session.sql(query)
        _check_plan(frame._jdf.queryExecution().analyzed())
        return frame


def open_spark(store: Path | str | Catalog, session: "SparkSession | None" = None) -> Spark:
    """The store's views on Spark, in a new session beside the one that is given, or that is there, or is started."""
    catalog = store if isinstance(store, Catalog) else read_catalog(store)
    check_path(catalog.path)
    session = session or start_spark()
    if not hasattr(session, "_jsparkSession"):
        raise InputError(
            "A session of Spark Connect cannot be confined to a store: use Spark without SPARK_REMOTE."
        )
    session = session.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    major, minor = session.version.split(".")[:2]
    if (int(major), int(minor)) < (4, 3):  # whose faster reader cannot read BYTE_STREAM_SPLIT
        session.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    spark = Spark(session, open_store(replace(catalog, runs={})), catalog)
    return replace(spark, catalog=set_up(spark, spark.catalog))


def start_spark(master: str | None = None) -> "SparkSession":
    """The session that is there, or a new one, as Spark is configured: on this machine unless that says otherwise.

    A new one runs at `master` if that is given, keeps Spark's own messages from the terminal, and has no web page
    unless one is configured.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise InputError("Spark is not installed: pip install 'wirescope[spark]'.") from error
    with _without_pandas():
        if SparkContext._active_spark_context is None:
            _start_context(master)
        return SparkSession.builder.getOrCreate()


def _start_context(master: str | None) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    if shutil.which(java) is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise InputError("Spark needs Java, 17 or later: install it, and set JAVA_HOME if it is not found.")
    with tempfile.TemporaryFile() as said:
        try:
            output = {"stdout": said, "stderr": said}
            gateway = SparkContext._gateway or launch_gateway(None, output)  # type: ignore[no-untyped-call]
            conf = SparkConf(_jvm=gateway.jvm).setAppName("wirescope")  # what is configured, and this
            if master is not None:
                conf.setMaster(master)
            conf.setIfMissing("spark.ui.enabled", "false")
            if str(conf.get("spark.master")).startswith("local"):
                conf.setIfMissing("spark.driver.host", "localhost")  # whatever the network calls this machine
            SparkContext(conf=conf, gateway=gateway)
        except Py4JJavaError as error:
            raise InputError(f"Spark did not start: {_said(error)}") from error
        except PySparkRuntimeError as error:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise InputError(f"Spark did not start: {last or error}") from error


def _check_plan(plan: Any) -> None:
    """Refuse an analysed plan that has to do with anything but the session's own views."""
    kind, children = plan.getClass().getSimpleName(), _each(plan.children())
    if kind == "View" and plan.isTempView() and plan.desc().identifier().database().isEmpty():
        return
    if kind == "View" or not (children or kind in _SOURCES):
        raise InputError("A query reads the views of the store, and no other table or file.")
    if kind == "ScriptTransformation":
        raise InputError("A query of a store runs no scripts: leave out 'transform ... using'.")
    for expression in _each(plan.expressions()):
        _check_expression(expression)
    for part in (*children, *_each(plan.subqueries())):
        _check_plan(part)


def _check_expression(expression: Any) -> None:
    if expression.getClass().getSimpleName() == "CallMethodViaReflection":
        raise InputError("A query of a store calls no Java: leave out reflect and java_method.")
    for child in _each(expression.children()):
        _check_expression(child)


def _each(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala's."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _type_word(kind: pa.DataType) -> str:
    """Spark's word for a type of the store's columns."""
    return f"array<{_type_word(kind.value_type)}>" if pa.types.is_list(kind) else _TYPES[kind]


def _is_plain(kind: Any) -> bool:
    """Whether every format can hold a type of Spark's."""
    if kind.typeName() == "array":
        return _is_plain(kind.elementType)
    if kind.typeName() == "struct":
        return all(_is_plain(field.dataType) for field in kind)
    return kind.typeName().partition("(")[0] in _PLAIN


def _plain(field: Any) -> str:
    name = "`" + field.name.replace("`", "``") + "`"
    return name if _is_plain(field.dataType) else f"cast({name} as string) as {name}"


@contextmanager
def _messages() -> Iterator[None]:
    """What Spark says is wrong with a query, as the user's error: the first line, without its plan and trace."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    log = logging.getLogger("SQLQueryContextLogger")  # would say the same on standard error, at length
    before, log.disabled = log.disabled, True
    try:
        with _without_pandas():
            yield
    except (PySparkException, Py4JJavaError) as error:
        raise InputError(re.split(r"\n| SQLSTATE:", _said(error).strip())[0]) from error
    finally:
        log.disabled = before


def _said(error: Any) -> str:
    """The message of an error, or of its first cause where Java wrapped that."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return str(error)
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage())


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Nothing here goes through pandas: what Spark thinks of the version that is installed is no concern."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
