"""DuckDB over the store: one .sql file a question, and a thin runner."""

from .bootstrap import resample, set_thresholds
from .circuits import Choice, Chosen, Units, choose, edge_scores, units
from .questions import QUESTIONS, VIEWS, answer, ask, parameters, select, text
from .session import open_store

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
