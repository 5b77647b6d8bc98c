"""What needs torch, and the only place that imports it: models, attribution, interventions, extraction."""

from ..data import METRICS
from .convert import convert
from .difference import write_difference
from .extraction import Outcome, extract, extract_each
from .models import DTYPES, FAMILIES, Model, find_device, load_model, load_vocabulary
from .plan import TERMS, Plan
from .planning import Planned, plan_each, plan_extraction
from .published import acdc_subgraph, mib_pt, read_pt
from .settings import ABLATIONS, METHODS, RANKINGS, Listener, Settings, left_out, settings_under

__all__ = [
    "ABLATIONS",
    "DTYPES",
    "FAMILIES",
    "METHODS",
    "METRICS",
    "RANKINGS",
    "TERMS",
    "Listener",
    "Model",
    "Outcome",
    "Plan",
    "Planned",
    "Settings",
    "acdc_subgraph",
    "convert",
    "extract",
    "extract_each",
    "find_device",
    "left_out",
    "load_model",
    "load_vocabulary",
    "mib_pt",
    "plan_each",
    "plan_extraction",
    "read_pt",
    "settings_under",
    "write_difference",
]
