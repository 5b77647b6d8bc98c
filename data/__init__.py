"""What is read and written: tasks, prompts and text, the store and its schema, what comes with the package."""

from .files import disk_errors, replacing
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
    PublishedCircuit,
    import_circuit,
    mib_json,
    parse_circuit,
    plain_config,
    read_circuit,
    shape_of,
)
from .run import LEVELS, Curves, Part, Run
from .schema import SCHEMA_VERSION, TABLES, schema_of
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
    "check_path",
    "check_run",
    "check_store",
    "check_task",
    "disk_errors",
    "encode_pairs",
    "example",
    "find_run",
    "import_circuit",
    "join_run",
    "make_task",
    "mib_json",
    "pair_lines",
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
    "write_run",
]
