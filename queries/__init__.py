"""DuckDB over the store: one .sql file a question, and a thin runner."""

from .bootstrap import resample, set_thresholds
from .circuits import Choice, Chosen, Units, choose, edge_scores, units
from .comparing import Comparison, Curve, Multiplier, View, compare, curves_command, labels_of, pair_up
from .exploring import Exploration, explore
from .questions import answer, ask, parameters, select
from .session import open_store
from .texts import QUESTIONS, VIEWS, text

__all__ = [
    "QUESTIONS",
    "VIEWS",
    "Choice",
    "Chosen",
    "Comparison",
    "Curve",
    "Exploration",
    "Multiplier",
    "Units",
    "View",
    "answer",
    "ask",
    "choose",
    "compare",
    "curves_command",
    "edge_scores",
    "explore",
    "labels_of",
    "open_store",
    "pair_up",
    "parameters",
    "resample",
    "select",
    "set_thresholds",
    "text",
    "units",
]
