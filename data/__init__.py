"""What is read and written: tasks and prompts, the store and its schema, published circuits."""

from .files import disk_errors, replacing
from .prompts import (
    Prompt,
    TextPair,
    Vocabulary,
    encode_pairs,
    prompt_table,
    prompts_hash,
    read_pairs,
)
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
from .run import LEVELS, Curves, Part, Run
from .schema import SCHEMA_VERSION, TABLES
from .store import (
    Catalog,
    RunWriter,
    check_path,
    check_run,
    find_run,
    join_run,
    read_catalog,
    write_run,
)
from .tasks import TASKS, check_task, make_task

__all__ = [
    "EMBEDDED",
    "LEVELS",
    "SCHEMA_VERSION",
    "TABLES",
    "TASKS",
    "Catalog",
    "Curves",
    "Part",
    "Prompt",
    "PublishedCircuit",
    "Run",
    "RunWriter",
    "TextPair",
    "Vocabulary",
    "check_path",
    "check_run",
    "check_task",
    "disk_errors",
    "encode_pairs",
    "find_run",
    "import_circuit",
    "join_run",
    "make_task",
    "mib_json",
    "parse_circuit",
    "plain_config",
    "prompt_table",
    "prompts_hash",
    "read_catalog",
    "read_circuit",
    "read_pairs",
    "replacing",
    "shape_of",
    "write_run",
]
