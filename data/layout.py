"""Which parts a run has: what they are called, which prompts each is of, and how many rows that makes.

Prompts are cut into shards of one size, in their order, and a shard is a part of each table. So it is known beforehand
which files belong to a run, and a file that merely lies among them is not taken for one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import StoreError
from .run import Curves, Run

_NAME = re.compile(r"part-(\d{5,})(?:-([0-9a-f]{8}))?\.parquet")
PART = _NAME.pattern


@dataclass(frozen=True)
class Piece:
    """A part that a run must have."""

    table: str
    file: str
    """Relative to the store."""
    prompts: Sequence[int] | None = None
    """Those that it has rows of; None for the wiring, and where it is not known."""
    rows: int | None = None
    """How many, where that is known."""


def part_name(shard: int, tag: str = "") -> str:
    """The name of a part: of a shard, and of a set of curves if it has a tag."""
    return f"part-{shard:05d}-{tag}.parquet" if tag else f"part-{shard:05d}.parquet"


def tag_of(name: str) -> str | None:
    """The tag in the name of a part, empty if it has none; None for what is not the name of a part.

    >>> tag_of("part-00000-0123abcd.parquet"), tag_of("part-00001.parquet"), tag_of("part-00000-old.parquet")
    ('0123abcd', '', None)
    """
    found = _NAME.fullmatch(name)
    return None if found is None else found[2] or ""


def pieces(run: Run) -> list[Piece]:
    """All parts of a run whose shards are known, with those of the curves that it has."""
    own = [Piece(table, _file(run, table), rows=_rows(run, table, 0)) for table in ("nodes", "edges")]
    for table in ("prompts", *(f"{level}_scores" for level in run.levels)):
        for i, shard in enumerate(_shards(run)):
            own.append(Piece(table, _file(run, table, i), shard, _rows(run, table, len(shard))))
    return own + [piece for curves in run.curves for piece in pieces_of_curves(run, curves)]


def pieces_of_curves(run: Run, curves: Curves) -> Iterator[Piece]:
    """The parts that curves of a run have: of those shards that have prompts which they are measured on."""
    _, measured = curves.prompts(run.prompts)
    for i, shard in enumerate(_shards(run)):
        own = np.intersect1d(measured, shard).tolist()
        if own:
            yield Piece("effects", _file(run, "effects", i, curves.tag), own, len(curves) * len(own))


def check_rows(run: Run) -> None:
    """Refuse a run that is finished and cannot be: tables that are not listed, or with more or fewer rows than it has.

    From ``run.json`` alone, before anything is made that is as large as it says.
    """
    rows = {table: sum(part.rows for part in parts) for table, parts in run.parts.items()}
    if run.shard_size or "prompts" in rows:
        wanted = [*rows, *(f"{level}_scores" for level in run.levels)]
        wanted += ["nodes", "edges", "prompts"] if run.shard_size else []
        for table in dict.fromkeys(wanted):
            expected = _rows(run, table, run.prompts)
            if expected is not None and rows.get(table, 0) != expected:
                raise StoreError(
                    f"its run.json lists {rows.get(table, 0):,} rows of {table} instead of {expected:,} for "
                    f"{run.prompts:,} prompts."
                )
    if run.prompts > max(1, *rows.values(), 0):
        raise StoreError(f"its run.json lists no table with rows for {run.prompts:,} prompts.")
    for curves in run.curves:
        parts = [
            part for part in run.parts.get("effects", ()) if part.file.endswith(f"-{curves.tag}.parquet")
        ]
        listed, expected = sum(part.rows for part in parts), len(curves) * curves.count(run.prompts)
        if parts and listed != expected:
            raise StoreError(f"its run.json lists {listed:,} rows of effects instead of {expected:,}.")


def _shards(run: Run) -> list[range]:
    size = run.shard_size or max(1, run.prompts)
    return [range(first, min(first + size, run.prompts)) for first in range(0, run.prompts, size)]


def _rows(run: Run, table: str, prompts: int) -> int | None:
    """How many rows a table has of so many prompts; None where that depends on more than their number."""
    shape = run.shape
    heads = shape.layers * shape.heads
    return {
        "edges": shape.n_edges,
        "prompts": prompts,
        "edge_scores": shape.n_edges * prompts,
        "head_scores": heads * prompts,
    }.get(table)


def _file(run: Run, table: str, shard: int = 0, tag: str = "") -> str:
    return f"{table}/run={run.run}/{part_name(shard, tag)}"
