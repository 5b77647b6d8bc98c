"""Tables on standard output or in a file: the only thing that is printed there."""

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "csv", "json", "parquet")
_ROWS_ON_A_SCREEN = 1000
_LEAST_OF_FIRST, _LEAST, _BETWEEN, _NAMED = 40, 12, 3, 6
"""Letters that are left of a text that is cut, in the first column and in others; blanks between columns; and how many
columns that are left out are named."""
_LONGEST = 4000
"""Letters of a message."""
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it: controls, turns of the direction of writing, and what is no letter."""


def emit(
    rows: "pa.Table",
    form: str | None,
    out: Path | None,
    *,
    about: dict[str, Any] | None = None,
    wide: bool = False,
    first: Sequence[str] = (),
) -> None:
    """Write a table; without a format, the ending of the file decides, and then `table`.

    JSON is a list of rows or, with facts about the table, an object of these and its ``"units"``. On a screen, a
    very long table is cut, and so is a wide one unless `wide` says otherwise: the columns that are named `first`, and
    then those on the left, are shown before others.
    """
    from ..errors import InputError

    form = form or (out.suffix[1:] if out and out.suffix[1:] in FORMATS else "table")
    on_screen = out is None and sys.stdout is not None and sys.stdout.isatty()
    if form == "parquet" and on_screen:
        raise InputError("Parquet is not for a terminal: give a file with --out, or pipe it.")
    if form == "table" and on_screen and rows.num_rows > _ROWS_ON_A_SCREEN:
        say(f"The first {_ROWS_ON_A_SCREEN:,} of {rows.num_rows:,} rows; --out or a pipe gets all.")
        rows = rows.slice(0, _ROWS_ON_A_SCREEN)
    if form == "table" and on_screen and not wide:
        put(_fitting(rows, shutil.get_terminal_size().columns, first).encode(), out)
        return
    put(encoded(rows, form, about=about), out)


def encoded(rows: "pa.Table", form: str, *, about: dict[str, Any] | None = None) -> bytes:
    """A table in a format."""
    if form == "table":
        return _text(rows).encode()
    if form == "csv":
        return _csv(rows)
    if form == "parquet":
        return _parquet(rows)
    listed = _without_nan(rows).to_pylist()
    return (json.dumps({**about, "units": listed} if about else listed, indent=1) + "\n").encode()


def put(content: bytes, out: Path | None) -> None:
    """Write bytes to a file, whole or not at all, or to standard output."""
    from ..data import disk_errors, replacing
    from ..errors import StoreError

    if out is not None:
        with replacing(out) as file:
            file.write(content)
    elif sys.stdout is None:
        raise StoreError("Standard output is closed; give a file with --out.")
    else:
        with disk_errors(Path("standard output")):
            _print(memoryview(content))


def _print(content: memoryview) -> None:
    try:
        sys.stdout.flush()
        while content:  # an unbuffered output may take a part only
            content = content[sys.stdout.buffer.write(content) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # whoever reads has enough; keep the interpreter from flushing into the closed pipe when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(message: str) -> None:
    """Words, for standard error."""
    if sys.stderr is not None:
        sys.stderr.write(shown(message) + "\n")


def shown(text: str) -> str:
    r"""Text for a terminal: what it would obey is spelled out, and the middle of a very long one left out.

    >>> shown("a" + chr(27) + "[2J")
    'a\\x1b[2J'
    >>> len(shown("a" * 100_000)) < 5_000
    True
    """
    if len(text) > _LONGEST:
        left = len(text) - _LONGEST
        text = f"{text[: 3 * _LONGEST // 4]} ... ({left:,} letters left out) ... {text[-_LONGEST // 4 :]}"
    return _UNSEEN.sub(_spelled, text)


@contextmanager
def needing_torch(what: str) -> Iterator[None]:
    """Around an import: say what to install where torch is not."""
    try:
        yield
    except ModuleNotFoundError as error:
        from ..errors import InputError

        extras = {"torch": "extract", "transformers": "extract", "accelerate": "sparsify"}
        if error.name not in extras:
            raise
        raise InputError(
            f"{what} needs {error.name if error.name == 'accelerate' else 'torch'}: pip install "
            f"'wirescope[{extras[error.name]}]'."
        ) from error


def _fitting(rows: "pa.Table", width: int, first: Sequence[str]) -> str:
    """A table that fits a terminal: texts are cut (…), and columns that still find no room are left out and named."""
    from rich.cells import cell_len

    natural, least = {}, {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        natural[field.name] = max(cell_len(_cell(value)) for value in (field.name, *column.to_pylist()))
        letters = max(
            cell_len(_cell(field.name)), _LEAST if natural.keys() - {field.name} else _LEAST_OF_FIRST
        )
        least[field.name] = (
            natural[field.name] if _is_number(field.type) else min(natural[field.name], letters)
        )
    shown: list[str] = []
    for name in [*(name for name in first if name in natural), *natural]:
        if name not in shown and _total([least[other] for other in (*shown, name)]) <= width:
            shown.append(name)
    shown = [name for name in natural if name in shown] or [next(iter(natural))]
    widths = {name: least[name] for name in shown}
    order = [name for name in dict.fromkeys((*first, *shown)) if name in shown]
    for name in order:  # what room is left goes to those that come first
        widths[name] = min(natural[name], max(least[name], least[name] + width - _total(widths.values())))
    left_out = [name for name in natural if name not in shown]
    if left_out or any(widths[name] < natural[name] for name in shown):
        names = ", ".join(left_out[:_NAMED]) + (", ..." if len(left_out) > _NAMED else "")
        named = f" without {len(left_out)} of {len(natural)} ({names})" if left_out else ""
        say(
            f"The table is cut to the width of the terminal{named}: --wide, --format csv or a pipe gives all."
        )
    return _text(rows.select(shown), widths)


def _total(widths: Collection[int]) -> int:
    """How wide a table of columns is."""
    return sum(widths) + _BETWEEN * (len(widths) - 1)


def _is_number(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _text(rows: "pa.Table", widths: Mapping[str, int] | None = None) -> str:
    """A table, its columns as wide as they need, or no wider than this."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for field in rows.schema:
        table.add_column(
            Text(_cell(field.name)),
            justify="right" if _is_number(field.type) else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=widths[field.name] if widths else None,
        )
    for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        table.add_row(*(Text(_cell(value)) for value in values))
    text = io.StringIO()
    Console(file=text, width=100_000, color_system=None).print(table)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().split("\n")[:-1])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # no minus before a zero
    if isinstance(value, list):
        return ", ".join(f"[{_cell(item)}]" if isinstance(item, list) else _cell(item) for item in value)
    return _UNSEEN.sub(_spelled, " ".join(str(value).splitlines()).replace("\t", "\\t"))


def _spelled(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def _csv(rows: "pa.Table") -> bytes:
    from csv import writer

    import pyarrow as pa
    from pyarrow import csv

    rows = _without_nan(rows)
    for i, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type):
            rows = rows.set_column(
                i, field.name, pa.array([json.dumps(value) for value in rows[i].to_pylist()])
            )
    header = io.StringIO()
    writer(header, lineterminator="\n").writerow(rows.column_names)  # pyarrow would quote every name
    buffer = io.BytesIO(header.getvalue().encode())
    buffer.seek(0, io.SEEK_END)
    csv.write_csv(rows, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return buffer.getvalue()


def _parquet(rows: "pa.Table") -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def _without_nan(rows: "pa.Table") -> "pa.Table":
    """NaN and infinity as null: neither JSON nor CSV has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for i, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(i, field.name, pc.if_else(pc.is_finite(rows[i]), rows[i], None))
    return rows
