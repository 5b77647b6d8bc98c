"""What needs torch, and the only place that imports it: models, attribution, interventions, extraction."""

from .extraction import Outcome, extract
from .memory import ExtractionError
from .metrics import METRICS
from .models import DTYPES, FAMILIES, Model, find_device, load_model, load_vocabulary
from .published import acdc_subgraph, read_pt
from .quantised import convert_gguf
from .settings import ABLATIONS, METHODS, RANKINGS, Listener, Settings
from .transformer_lens import convert_state_dict

__all__ = [
    "ABLATIONS",
    "DTYPES",
    "FAMILIES",
    "METHODS",
    "METRICS",
    "RANKINGS",
    "ExtractionError",
    "Listener",
    "Model",
    "Outcome",
    "Settings",
    "acdc_subgraph",
    "convert_gguf",
    "convert_state_dict",
    "extract",
    "find_device",
    "load_model",
    "load_vocabulary",
    "read_pt",
]
