"""Tables on standard output or in a file: the only thing that is printed there."""

import csv
import io
import json
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_SHOWN = 1000


class Format(StrEnum):
    """How a table is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def emit(
    rows: "pa.Table", form: Format | None, out: Path | None, *, about: dict[str, Any] | None = None
) -> None:
    """Write a table; without a format, the ending of the file decides, and then `table`.

    JSON is a list of rows or, with facts about the table, an object of these and its ``"units"``.
    """
    form = form or _by_ending(out)
    from ..graphs import InputError

    if form is Format.PARQUET and out is None and sys.stdout.isatty():
        raise InputError("Parquet is not for a terminal: give a file with --out, or pipe it.")
    put(encoded(rows, form, about=about), out)


def encoded(rows: "pa.Table", form: Format, *, about: dict[str, Any] | None = None) -> bytes:
    """A table in a format."""
    if form is Format.TABLE:
        return _text(rows).encode()
    if form is Format.CSV:
        return _csv(rows)
    if form is Format.PARQUET:
        return _parquet(rows)
    listed = [_plain(row) for row in rows.to_pylist()]
    return (json.dumps({**about, "units": listed} if about else listed, indent=1) + "\n").encode()


def put(content: bytes, out: Path | None) -> None:
    """Write bytes to a file, whole or not at all, or to standard output."""
    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    from ..data import replacing

    with replacing(out) as file:
        file.write(content)


def say(message: str) -> None:
    """Words, for standard error."""
    sys.stderr.write(message + "\n")


def _by_ending(out: Path | None) -> Format:
    endings = {f".{form}": form for form in Format}
    return endings.get(out.suffix, Format.TABLE) if out else Format.TABLE


def _text(rows: "pa.Table") -> str:
    import pyarrow as pa
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for field in rows.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(Text(field.name), justify="right" if numeric else "left", no_wrap=True)
    for row in rows.slice(0, _ROWS_SHOWN).to_pylist():
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    if rows.num_rows > _ROWS_SHOWN:
        say(f"The first {_ROWS_SHOWN:,} of {rows.num_rows:,} rows; --format csv, json or parquet gives all.")
    text = io.StringIO()
    Console(file=text, width=100_000, color_system=None).print(table)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    return str(value).replace("\n", " ")


def _csv(rows: "pa.Table") -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.column_names)
    for row in rows.to_pylist():
        values = [_plain(value) for value in row.values()]
        writer.writerow(json.dumps(value) if isinstance(value, list | dict) else value for value in values)
    return text.getvalue().encode()


def _parquet(rows: "pa.Table") -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    """As JSON has it: no NaN, no infinity, no date."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
