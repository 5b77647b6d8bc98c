"""DuckDB over the store: one .sql file a question, and a thin runner."""

from .circuits import Choice, Chosen, Units, choose, edge_scores, units
from .session import (
    QUESTIONS,
    VIEWS,
    answer,
    ask,
    open_store,
    parameters,
    resample,
    select,
    set_thresholds,
    text,
)

__all__ = [
    "QUESTIONS",
    "VIEWS",
    "Choice",
    "Chosen",
    "Units",
    "answer",
    "ask",
    "choose",
    "edge_scores",
    "open_store",
    "parameters",
    "resample",
    "select",
    "set_thresholds",
    "text",
    "units",
]
