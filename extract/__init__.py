"""What needs torch, and the only place that imports it: models, attribution, extraction."""

from .extraction import ABLATIONS, METHODS, ExtractionError, Listener, Outcome, Settings, extract
from .metrics import METRICS
from .models import DTYPES, FAMILIES, Model, find_device, load_model
from .published import read_pt
from .transformer_lens import convert_state_dict

__all__ = [
    "ABLATIONS",
    "DTYPES",
    "FAMILIES",
    "METHODS",
    "METRICS",
    "ExtractionError",
    "Listener",
    "Model",
    "Outcome",
    "Settings",
    "convert_state_dict",
    "extract",
    "find_device",
    "load_model",
    "read_pt",
]
