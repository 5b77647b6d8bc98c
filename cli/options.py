"""Options that several commands take, and opening a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import FORMATS, say

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from ..data import Catalog
    from ..queries import Connection

SEEDS = 2**63 - 1
"""The largest seed: a column of the store holds it."""
Store = Annotated[Path, typer.Option("--store", "-s", help="The store, a folder.")]
RunName = Annotated[str, typer.Option("--run", "-r", help="The run; 'wirescope runs' lists them.")]
K = Annotated[int | None, typer.Option("--k", "-k", help="The K strongest units.")]
Mass = Annotated[float | None, typer.Option(help="The fewest units with this share of the total |score|.")]
Threshold = Annotated[float | None, typer.Option(help="All units whose |score| is at least this.")]
Effect = Annotated[
    float | None,
    typer.Option(help="The smallest measured circuit from which on this much of the effect is explained."),
]
Crossing = Annotated[
    str,
    typer.Option(
        help="Of a curve: sustained (from where on it stays there), or first (where it gets there)."
    ),
]
Greedy = Annotated[bool, typer.Option("--greedy", help="With --k: grow the circuit from the logits.")]
Signed = Annotated[bool, typer.Option("--signed", help="Rank by how much a unit helps, not by |score|.")]
Prompt = Annotated[int | None, typer.Option(help="By the scores of this prompt, not by their mean.")]
Level = Annotated[str, typer.Option(help="edge, head or attention.")]
Label = Annotated[
    list[str] | None,
    typer.Option(
        help="What a model or run is called in the figure, as NAME=TEXT; more than once for several."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file, not to standard output.")]


def _known_format(form: str | None) -> str | None:
    if form is None:
        return None
    from ..errors import one_of

    return one_of("format", form, FORMATS)


Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        callback=_known_format,
        help=f"{', '.join(FORMATS)}; by default the ending of --out, or table.",
    ),
]


Wide = Annotated[bool, typer.Option("--wide", help="On a terminal, all columns, whole.")]


def open_store(store: Path) -> tuple["Catalog", "DuckDBPyConnection"]:
    """The runs of a store and a connection to it; what cannot be read is said, and left out."""
    from .. import queries
    from ..data import read_catalog

    catalog, connection = queries.open_catalog(read_catalog(store))
    _say_what_is_left_out(catalog)
    return catalog, connection


def open_engine(
    store: Path, engine: str, *, memory: str | None, timeout: float | None, master: str | None
) -> "Connection":
    """A connection to a store by one of the engines."""
    from .. import queries
    from ..data import read_catalog
    from ..errors import InputError, one_of

    connection: Connection
    if one_of("engine", engine, ("duckdb", "spark")) == "duckdb":
        if master is not None:
            raise InputError("--spark-master is for --engine spark.")
        catalog, connection = queries.open_catalog(read_catalog(store), memory=memory)
    elif memory is not None:
        raise InputError("--memory is DuckDB's; what Spark may take is configured, as spark.driver.memory.")
    else:
        looked_at = read_catalog(store)
        connection = spark = queries.open_spark(looked_at, queries.start_spark(master))
        catalog = spark.catalog
    _say_what_is_left_out(catalog)
    return queries.limited(connection, timeout=timeout)


def _say_what_is_left_out(catalog: "Catalog") -> None:
    from ..errors import StoreError

    for message in catalog.broken.values():
        say(f"wirescope: left out: {message}")
    if catalog.unfinished:
        say(f"wirescope: left out, not finished: {', '.join(catalog.unfinished)}")
    if catalog.broken and not catalog.runs:
        raise StoreError(f"No run of the store '{catalog.path}' can be read.")


def named(given: list[str]) -> dict[str, str]:
    """``["run=a", "k=5"]`` as ``{"run": "a", "k": "5"}``."""
    from ..errors import InputError

    values: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or name in values:
            raise InputError(f"'{item}' does not say once which value is what: write name=value.")
        values[name] = value
    return values
