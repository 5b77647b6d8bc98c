"""DuckDB, or Spark, over the store: one .sql file a question, and a thin runner."""

from .bootstrap import resample, set_thresholds
from .circuits import Choice, Chosen, Units, choose, choose_each, edge_scores, units
from .comparing import (
    Comparison,
    Curve,
    Multiplier,
    View,
    check_labels,
    compare,
    curves_command,
    labels_of,
    pair_up,
    printable,
)
from .engine import Connection, Engine
from .exploring import Exploration, explore
from .notebook import Store, open  # noqa: A004  # for q.open(...)
from .questions import answer, ask, parameters, select
from .session import open_store
from .spark import open_spark, start_spark
from .texts import QUESTIONS, VIEWS, text

__all__ = [
    "QUESTIONS",
    "VIEWS",
    "Choice",
    "Chosen",
    "Comparison",
    "Connection",
    "Curve",
    "Engine",
    "Exploration",
    "Multiplier",
    "Store",
    "Units",
    "View",
    "answer",
    "ask",
    "check_labels",
    "choose",
    "choose_each",
    "compare",
    "curves_command",
    "edge_scores",
    "explore",
    "labels_of",
    "open",
    "open_spark",
    "open_store",
    "pair_up",
    "parameters",
    "printable",
    "resample",
    "select",
    "set_thresholds",
    "start_spark",
    "text",
    "units",
]
