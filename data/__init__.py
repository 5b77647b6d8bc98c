"""What is read and written: tasks, prompts and text, the store and its schema, what comes with the package."""

from .files import disk_errors, new_folder, replacing
from .models import PAIR
from .prompts import (
    Prompt,
    TextPair,
    Vocabulary,
    encode_pairs,
    pair_lines,
    prompt_table,
    prompts_hash,
    read_pairs,
)
from .published import (
    EMBEDDED,
    MEMBERSHIP,
    PublishedCircuit,
    auto_circuit_json,
    import_circuit,
    mib_json,
    plain_config,
    shape_of,
    width_of,
)
from .reading import is_torch, named_circuit, parse_circuit, read_circuit
from .run import LEVELS, Curves, Part, Run
from .schema import SCHEMA_VERSION, TABLES, schema_of
from .sizes import parse_bytes
from .store import (
    Catalog,
    RunWriter,
    check_path,
    check_run,
    check_store,
    find_run,
    join_run,
    read_catalog,
    write_run,
)
from .tasks import MAIN_TASKS, TASKS, Task, check_task, example, make_task, task_title
from .text import Documents, read_documents, task_documents

__all__ = [
    "EMBEDDED",
    "LEVELS",
    "MAIN_TASKS",
    "MEMBERSHIP",
    "PAIR",
    "SCHEMA_VERSION",
    "TABLES",
    "TASKS",
    "Catalog",
    "Curves",
    "Documents",
    "Part",
    "Prompt",
    "PublishedCircuit",
    "Run",
    "RunWriter",
    "Task",
    "TextPair",
    "Vocabulary",
    "auto_circuit_json",
    "check_path",
    "check_run",
    "check_store",
    "check_task",
    "disk_errors",
    "encode_pairs",
    "example",
    "find_run",
    "import_circuit",
    "is_torch",
    "join_run",
    "make_task",
    "mib_json",
    "named_circuit",
    "new_folder",
    "pair_lines",
    "parse_bytes",
    "parse_circuit",
    "plain_config",
    "prompt_table",
    "prompts_hash",
    "read_catalog",
    "read_circuit",
    "read_documents",
    "read_pairs",
    "replacing",
    "schema_of",
    "shape_of",
    "task_documents",
    "task_title",
    "width_of",
    "write_run",
]
