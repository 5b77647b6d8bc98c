"""Pictures of circuits."""

from .attention import TokenPanel, draw_attention
from .captions import unit_name
from .curves import ENDINGS as CURVE_ENDINGS
from .curves import check_ending, curves_caption, draw_curves, save_curves
from .dot import ENDINGS as DIAGRAM_ENDINGS
from .dot import save_diagram, to_dot
from .explorer import ExplorerPage, explorer_page
from .figures import CurveFigure, curve_figure, diagram, explorer
from .page import Shown, index_page
from .scene import Scene
from .tikz import to_tikz
from .training import draw_training
from .wiring import Look, Panel, draw_wiring

__all__ = [
    "CURVE_ENDINGS",
    "DIAGRAM_ENDINGS",
    "CurveFigure",
    "ExplorerPage",
    "Look",
    "Panel",
    "Scene",
    "Shown",
    "TokenPanel",
    "check_ending",
    "curve_figure",
    "curves_caption",
    "diagram",
    "draw_attention",
    "draw_curves",
    "draw_training",
    "draw_wiring",
    "explorer",
    "explorer_page",
    "index_page",
    "save_curves",
    "save_diagram",
    "to_dot",
    "to_tikz",
    "unit_name",
]
