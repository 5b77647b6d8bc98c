"""A store in a notebook: what the commands do, as methods of one object.

    >>> import tempfile
    >>> import wirescope.queries as q
    >>> from wirescope.data import EMBEDDED, import_circuit, read_circuit
    >>> folder = tempfile.TemporaryDirectory()
    >>> import_circuit(read_circuit(EMBEDDED), folder.name, run="ioi", source="mib", model="gpt2")
    True
    >>> store = q.open(folder.name)
    >>> store.edge_means.order("score").limit(1).fetchall()[0][2]
    'a9.h9->logits'
    >>> store.sql("select count(*) as heads from nodes where kind = 'head'").fetchall()
    [(144,)]
    >>> store.ask("head_strength", run="ioi").limit(1).fetchall()[0][0]
    'a9.h9'
    >>> store.circuit("ioi", k=200)
    Circuit(179 of 200 edges kept, 38 nodes)
    >>> folder.cleanup()

What comes back is a DuckDB relation: nothing is computed before it is shown or fetched, and ``.df()``, ``.pl()`` and
``.to_arrow_table()`` make it pandas', polars' or Arrow's. Circuits, diagrams and curves show themselves as pictures.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from ..data import LEVELS, TABLES, Catalog, read_catalog
from ..errors import one_of
from ..graphs import Circuit, side_by_side
from .circuits import Choice, choose, choose_each, to_list, units
from .comparing import View
from .engine import DuckDB, limited
from .questions import ask
from .session import open_catalog
from .texts import VIEWS

if TYPE_CHECKING:
    from ..viz import CurveFigure, ExplorerPage, Scene

_VIEWS = ("runs", *TABLES, *VIEWS)


def open(store: Path | str, *, memory: str | None = None) -> "Store":  # noqa: A001  # for q.open(...)
    """Open a store; runs that cannot be read are left out with a warning. DuckDB may take so much memory: "4GB"."""
    opened = Store(read_catalog(store), memory=memory)
    for message in opened.catalog.broken.values():
        warnings.warn(f"Left out: {message}", stacklevel=2)
    return opened


class Store:
    """An open store: its views as relations, questions, circuits and figures.

    Every view is an attribute: `runs`, `nodes`, `edges`, `prompts`, `edge_scores`, `head_scores`, `attention_scores`,
    `effects`, `edge_means`, `curves`, `multipliers`, ...
    """

    def __init__(self, catalog: Catalog, *, memory: str | None = None) -> None:
        self.catalog, self.connection = open_catalog(catalog, memory=memory)

    def __getattr__(self, view: str) -> duckdb.DuckDBPyRelation:
        if view not in _VIEWS:
            raise AttributeError(f"A store has no view '{view}'; it has {', '.join(_VIEWS)}.")
        return self.connection.view(view)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_VIEWS]

    def sql(self, query: str, *, timeout: float | None = None) -> duckdb.DuckDBPyRelation:
        """The answer to a SELECT; with a timeout it is computed now, and given up after so many seconds."""
        if timeout is None:
            return DuckDB(self.connection).relation(query)
        return self.connection.from_arrow(limited(self.connection, timeout=timeout).select(query))

    def ask(self, question: str, /, **given: Any) -> duckdb.DuckDBPyRelation:
        """The answer to a ready-made question, such as `head_strength` of a run."""
        return self.connection.from_arrow(ask(self.connection, question, **given))

    def circuit(self, run: str, **choice: Any) -> Circuit:
        """The circuit of edges of a run; a `Choice` says how large: k, mass, threshold or effect."""
        return choose(self.connection, self.catalog.run(run), Choice(**choice)).circuit

    def top(self, run: str, *, level: str = "edge", **choice: Any) -> duckdb.DuckDBPyRelation:
        """The units that a run's circuit requests at a level, the strongest first; 20 unless a `Choice` says more."""
        one_of("level", level, LEVELS)
        found = units(self.connection, self.catalog.run(run), level, to_list(**choice))
        return self.connection.from_arrow(found.rows)

    def stats(self, *runs: str, **choice: Any) -> duckdb.DuckDBPyRelation:
        """Graph measures of the circuits of runs, side by side."""
        chosen = choose_each(self.connection, self.catalog, runs, Choice(**choice))
        return self.connection.from_arrow(side_by_side({name: one.circuit for name, one in chosen.items()}))

    def curve(
        self, *runs: str, attributed: bool = False, labels: dict[str, str] | None = None, **view: Any
    ) -> "CurveFigure":
        """Explained-effect curves: sparse, dense, ...; a `View` says which: level, ranking, ablation, ..."""
        from ..viz import curve_figure  # drawing is for those who draw

        return curve_figure(
            self.connection, self.catalog, runs, view=View(**view), labels=labels, attributed=attributed
        )

    def diagram(
        self, *runs: str, level: str = "edge", labels: dict[str, str] | None = None, **choice: Any
    ) -> "Scene":
        """The circuits of runs side by side, drawn; sizes as for `circuit`."""
        from ..viz import diagram

        return diagram(
            self.connection, self.catalog, runs, choice=Choice(**choice), level=level, labels=labels
        )

    def explore(self, *runs: str, labels: dict[str, str] | None = None) -> "ExplorerPage":
        """The interactive page of pairs of runs: sparse, dense, ...; without runs, of all pairs."""
        from ..viz import ExplorerPage, explorer

        return ExplorerPage(explorer(self.connection, self.catalog, runs, labels=labels))

    def __repr__(self) -> str:
        left_out = "".join(
            f"; {len(some)} {why}"
            for some, why in ((self.catalog.unfinished, "not finished"), (self.catalog.broken, "broken"))
            if some
        )
        return f"Store('{self.catalog.path}': {len(self.catalog.runs)} runs{left_out})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """For IPython: the runs as a table."""
        printer.text(f"{self!r}\n{self.ask('run_list')}")
