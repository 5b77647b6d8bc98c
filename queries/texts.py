"""The texts of the questions: one .sql file each, beside this one.

A text names tables only, so any engine that has them as views can run it.
"""

from importlib import resources

from ..errors import InputError, did_you_mean

VIEWS = (
    "ranking_prompts",
    "edge_means",
    "run_summary",
    "head_means",
    "run_pairs",
    "protocol_pairs",
    "curve_effects",
    "curves",
    "crossings",
    "comparisons",
    "multipliers",
    "protocol_crossings",
    "protocol_ratios",
    "protocol_multipliers",
)
"""Questions that are views too, each after those that it uses."""

QUESTIONS = (
    "run_names",
    "run_list",
    "run_prompts",
    "run_prompt",
    "run_scores",
    "run_curve",
    "run_prompt_texts",
    "run_prompt_curve",
    "run_multiplier",
    "run_protocol_crossings",
    "run_protocol_ratio",
    "run_effects",
    "run_curve_prompts",
    "run_attributed",
    "top_edges",
    "top_heads",
    "top_attention",
    "attributed_curve",
    "layer_mass",
    "head_strength",
    "overlap",
    "stability",
    "areas",
    "reach",
    "multiplier_intervals",
    "multiplier_ratio",
)
"""Questions to `ask`, with their parameters."""


def text(question: str) -> str:
    """The SQL of a question or view."""
    known = (*QUESTIONS, *VIEWS)
    if question not in known:
        raise InputError(f"There is no question '{question}'.{did_you_mean(question, known)}")
    return (resources.files(__package__) / f"{question}.sql").read_text()
