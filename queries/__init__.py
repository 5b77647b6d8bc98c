"""DuckDB over the store: one .sql file a question, and a thin runner."""

from .bootstrap import resample, set_thresholds
from .circuits import Choice, Chosen, Units, choose, edge_scores, units
from .questions import answer, ask, parameters, select
from .session import open_store
from .texts import QUESTIONS, VIEWS, text

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
