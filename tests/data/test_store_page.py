"""The page about the store says what its tables are."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from wirescope.data import TABLES
from wirescope.graphs import Shape, Wiring

PAGE = (Path(__file__).parents[2] / "docs" / "store.md").read_text()
TYPES = {
    "int32": pa.int32(),
    "float32": pa.float32(),
    "string": pa.string(),
    "list of strings": pa.list_(pa.string()),
    "list of int32": pa.list_(pa.int32()),
    "list of lists of int32": pa.list_(pa.list_(pa.int32())),
    "bool": pa.bool_(),
}


def described() -> dict[str, dict[str, pa.DataType]]:
    """By table, its columns and their types as the page has them."""
    tables: dict[str, dict[str, pa.DataType]] = {}
    for names, rows in re.findall(
        r"^((?:\*\*\w+\*\*(?:, )?)+):.*\n\n\| column .*\n\|.*\n((?:\|.*\n)+)", PAGE, re.M
    ):
        for table in re.findall(r"\w+", names):
            columns = tables.setdefault(table, {})
            for row in rows.splitlines():
                cells = [cell.strip() for cell in row.strip("|").split("|")]
                columns |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), TYPES[cells[1]])
    return tables


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_every_column_and_its_type(table):
    said, schema = described()[table], TABLES[table]
    either = {"edge_scores": "node_id", "head_scores": "edge_id"}.get(table)  # one row for the two of them
    said = {name: kind for name, kind in said.items() if name != either}
    assert said == {field.name: field.type for field in schema}


def test_what_is_no_head_has_none():
    assert "| `head` | int32 | null for what is no head |" in PAGE
    rows = Wiring(Shape(1, 2)).node_table().to_pylist()
    assert [row["head"] for row in rows] == [None, 0, 1, None, None]
