"""What is read and written: the store and its schema, published circuits."""

from .files import replacing
from .published import (
    EMBEDDED,
    PublishedCircuit,
    import_circuit,
    mib_json,
    parse_circuit,
    read_circuit,
    shape_of,
)
from .schema import SCHEMA_VERSION, TABLES
from .store import Catalog, Part, Run, RunWriter, read_catalog, write_run

__all__ = [
    "EMBEDDED",
    "SCHEMA_VERSION",
    "TABLES",
    "Catalog",
    "Part",
    "PublishedCircuit",
    "Run",
    "RunWriter",
    "import_circuit",
    "mib_json",
    "parse_circuit",
    "read_catalog",
    "read_circuit",
    "replacing",
    "shape_of",
    "write_run",
]
