"""What is read and written: the store and its schema, published circuits."""

from .files import disk_errors, replacing
from .published import (
    EMBEDDED,
    PublishedCircuit,
    import_circuit,
    mib_json,
    parse_circuit,
    plain_config,
    read_circuit,
    shape_of,
)
from .run import Part, Run
from .schema import SCHEMA_VERSION, TABLES
from .store import Catalog, RunWriter, check_path, read_catalog, write_run

__all__ = [
    "EMBEDDED",
    "SCHEMA_VERSION",
    "TABLES",
    "Catalog",
    "Part",
    "PublishedCircuit",
    "Run",
    "RunWriter",
    "check_path",
    "disk_errors",
    "import_circuit",
    "mib_json",
    "parse_circuit",
    "plain_config",
    "read_catalog",
    "read_circuit",
    "replacing",
    "shape_of",
    "write_run",
]
