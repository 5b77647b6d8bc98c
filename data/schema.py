"""The tables of the store: their columns, how these are encoded, and the version of it all.

A table is a folder of Parquet files, partitioned by run: the column ``run`` is the name of a folder, not a
column of the files. Ids are int32 and ascend within a file, so their differences pack to almost nothing;
scores are float32 with their bytes split into four streams, of which zstd compresses what can be compressed.
"""

import pyarrow as pa

SCHEMA_VERSION = 5
CHECKSUMS = 3
"""The version that was the first to list the checksums of parts."""
FOLDS = 5
"""The version that was the first to say by which of several rankings a circuit is."""
_ADDED: dict[int, dict[str, tuple[str, ...]]] = {
    2: {"prompts": ("clean_tokens",)},
    4: {"prompts": ("correct_answers", "wrong_answers", "is_right", "answer_rank")},
    FOLDS: {"effects": ("fold",)},
}
"""By version, the columns that it was the first to have.

Version 5 is also the first whose ``run.json`` may name a protocol; older runs have none.
"""

_TEXTS = pa.list_(pa.string())
_TOKENS = pa.list_(pa.int32())


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


TABLES: dict[str, pa.Schema] = {
    "nodes": _schema(
        node_id=pa.int32(), name=pa.string(), kind=pa.string(), layer=pa.int32(), head=pa.int32()
    ),
    "edges": _schema(
        edge_id=pa.int32(),
        name=pa.string(),
        src=pa.int32(),
        dst=pa.int32(),
        slot=pa.string(),
        src_layer=pa.int32(),
        dst_layer=pa.int32(),
        src_kind=pa.string(),
        dst_kind=pa.string(),
    ),
    "prompts": _schema(
        prompt_id=pa.int32(),
        clean=pa.string(),
        corrupted=pa.string(),
        correct=_TEXTS,
        wrong=_TEXTS,
        clean_tokens=_TEXTS,
        clean_ids=_TOKENS,
        corrupted_ids=_TOKENS,
        correct_ids=_TOKENS,
        wrong_ids=_TOKENS,
        correct_answers=pa.list_(_TOKENS),
        wrong_answers=pa.list_(_TOKENS),
        metric_clean=pa.float32(),
        metric_corrupted=pa.float32(),
        is_right=pa.bool_(),
        answer_rank=pa.int32(),
    ),
    "edge_scores": _schema(prompt_id=pa.int32(), edge_id=pa.int32(), score=pa.float32()),
    "head_scores": _schema(prompt_id=pa.int32(), node_id=pa.int32(), score=pa.float32()),
    "attention_scores": _schema(
        prompt_id=pa.int32(),
        layer=pa.int32(),
        head=pa.int32(),
        query=pa.int32(),
        key=pa.int32(),
        weight=pa.float32(),
        gate=pa.float32(),
        score=pa.float32(),
    ),
    "effects": _schema(
        level=pa.string(),
        ranking=pa.string(),
        ablation=pa.string(),
        prompt_id=pa.int32(),
        requested=pa.int32(),
        fold=pa.int32(),
        kept=pa.int32(),
        metric=pa.float32(),
        m_all=pa.float32(),
        m_none=pa.float32(),
    ),
}


def schema_of(table: str, version: int) -> pa.Schema:
    """The columns that a table had in a version of the schema.

    >>> len(schema_of("prompts", 2)) - len(schema_of("prompts", 1))
    1
    """
    later = {name for added, tables in _ADDED.items() if added > version for name in tables.get(table, ())}
    return pa.schema([field for field in TABLES[table] if field.name not in later])


def encodings(schema: pa.Schema) -> dict[str, str]:
    """The Parquet encoding of each numeric column; the others keep the default, a dictionary."""
    by_type = {pa.int32(): "DELTA_BINARY_PACKED", pa.float32(): "BYTE_STREAM_SPLIT"}
    return {field.name: by_type[field.type] for field in schema if field.type in by_type}
