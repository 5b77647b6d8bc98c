"""Options that several commands take, and opening a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import FORMATS, say

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from ..data import Catalog
    from ..queries import Connection

Store = Annotated[Path, typer.Option("--store", "-s", help="The store, a folder.")]
RunName = Annotated[str, typer.Option("--run", "-r", help="The run; 'wirescope runs' lists them.")]
K = Annotated[int | None, typer.Option("--k", "-k", help="The K strongest units.")]
Mass = Annotated[float | None, typer.Option(help="The fewest units with this share of the total |score|.")]
Threshold = Annotated[float | None, typer.Option(help="All units whose |score| is at least this.")]
Effect = Annotated[
    float | None, typer.Option(help="The smallest measured circuit that explains this much of the effect.")
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
    from ..graphs import one_of

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


def open_store(store: Path) -> tuple["Catalog", "DuckDBPyConnection"]:
    """The runs of a store and a connection to it; what cannot be read is said, and left out."""
    from .. import queries

    catalog = _looked_at(store)
    return catalog, queries.open_store(catalog)


def open_engine(store: Path, engine: str, *, memory: str | None, master: str | None) -> "Connection":
    """A connection to a store by one of the engines."""
    from .. import queries
    from ..graphs import InputError, one_of

    if one_of("engine", engine, ("duckdb", "spark")) == "duckdb":
        if master is not None:
            raise InputError("--spark-master is for --engine spark.")
        return queries.open_store(_looked_at(store), memory=memory)
    if memory is not None:
        raise InputError("--memory is DuckDB's; what Spark may take is configured, as spark.driver.memory.")
    catalog = _looked_at(store)
    return queries.open_spark(catalog, queries.start_spark(master))


def _looked_at(store: Path) -> "Catalog":
    """The runs of a store; what cannot be read is said, and left out."""
    from ..data import read_catalog
    from ..graphs import StoreError

    catalog = read_catalog(store)
    for message in catalog.broken.values():
        say(f"wirescope: left out: {message}")
    if catalog.unfinished:
        say(f"wirescope: left out, not finished: {', '.join(catalog.unfinished)}")
    if catalog.broken and not catalog.runs:
        raise StoreError(f"No run of the store '{store}' can be read.")
    return catalog


def named(given: list[str]) -> dict[str, str]:
    """``["run=a", "k=5"]`` as ``{"run": "a", "k": "5"}``."""
    from ..graphs import InputError

    values: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or name in values:
            raise InputError(f"'{item}' does not say once which value is what: write name=value.")
        values[name] = value
    return values
