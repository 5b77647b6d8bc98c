"""DuckDB, or Spark, over the store: one .sql file a question, and a thin runner."""

from .circuits import (
    Choice,
    Chosen,
    Units,
    choose,
    choose_each,
    edge_scores,
    falls_again,
    heads_side_by_side,
    prompts_that_rank,
    ragged_note,
    ranked_by,
    to_list,
    units,
    whole_units,
)
from .comparing import (
    Comparison,
    Curve,
    Multiplier,
    View,
    check_labels,
    compare,
    curves_command,
    interval_words,
    labels_of,
    pair_up,
    printable,
    runs_named,
)
from .engine import Connection, Engine, limited
from .exploring import Exploration, explore
from .notebook import Store, open  # noqa: A004  # for q.open(...)
from .performing import curve_doubts, performances
from .questions import CROSSINGS, answer, ask, check_effect, parameters, select, why_empty
from .session import open_catalog, open_store
from .settings import set_thresholds
from .spark import open_spark, start_spark
from .texts import QUESTIONS, VIEWS, text

__all__ = [
    "CROSSINGS",
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
    "check_effect",
    "check_labels",
    "choose",
    "choose_each",
    "compare",
    "curve_doubts",
    "curves_command",
    "edge_scores",
    "explore",
    "falls_again",
    "heads_side_by_side",
    "interval_words",
    "labels_of",
    "limited",
    "open",
    "open_catalog",
    "open_spark",
    "open_store",
    "pair_up",
    "parameters",
    "performances",
    "printable",
    "prompts_that_rank",
    "ragged_note",
    "ranked_by",
    "runs_named",
    "select",
    "set_thresholds",
    "start_spark",
    "text",
    "to_list",
    "units",
    "whole_units",
    "why_empty",
]
