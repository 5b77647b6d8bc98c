"""What needs torch, and the only place that imports it: models, attribution, extraction."""

from .extraction import ABLATIONS, LEVELS, METHODS, ExtractionError, Listener, Outcome, Settings, extract
from .metrics import METRICS
from .models import DTYPES, FAMILIES, Model, find_device, load_model
from .published import read_pt

__all__ = [
    "ABLATIONS",
    "DTYPES",
    "FAMILIES",
    "LEVELS",
    "METHODS",
    "METRICS",
    "ExtractionError",
    "Listener",
    "Model",
    "Outcome",
    "Settings",
    "extract",
    "find_device",
    "load_model",
    "read_pt",
]
