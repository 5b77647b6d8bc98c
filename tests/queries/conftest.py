"""What the questions are given on the toy store, whatever answers them."""

import pytest

GIVEN = {
    "run_names": {},
    "run_list": {},
    "run_prompts": {"run": "dense-ioi"},
    "run_scores": {"run": "dense-ioi", "prompt": None},
    "run_curve": {"run": "dense-ioi", "level": "edge", "ranking": "task", "ablation": "corrupt"},
    "run_prompt_texts": {"run": "dense-ioi", "ablation": "corrupt"},
    "run_prompt_curve": {
        "run": "dense-ioi",
        "prompt": 2,
        "level": "edge",
        "ranking": "prompt",
        "ablation": "corrupt",
    },
    "run_prompt": {"run": "dense-ioi", "prompt": 1},
    "run_curve_prompts": {"run": "dense-ioi", "level": "edge", "ranking": "task", "ablation": "corrupt"},
    "run_multiplier": {
        "run": "sparse-ioi",
        "other": "dense-ioi",
        "level": "edge",
        "ranking": "task",
        "ablation": "corrupt",
    },
    "run_protocol_crossings": {},
    "run_protocol_ratio": {
        "protocol": "published",
        "sparse": "sparse-ioi",
        "dense": "dense-ioi",
        "level": "edge",
        "ranking": "task",
    },
    "run_attributed": {"run": "dense-ioi", "level": "head", "ranking": "task"},
    "run_effects": {"run": "dense-ioi"},
    "reach": {"run": "dense-ioi"},
    "top_edges": {"run": "dense-ioi", "k": 5, "prompt": None},
    "top_heads": {"run": "dense-ioi", "k": 3, "prompt": None},
    "top_attention": {"run": "dense-ioi", "k": 5, "prompt": 2},
    "attributed_curve": {"run": "dense-ioi"},
    "layer_mass": {"run": "dense-ioi"},
    "head_strength": {"run": "dense-ioi"},
    "overlap": {"run": "dense-ioi", "other": "sparse-ioi", "k": 20},
    "stability": {"run": "dense-ioi", "k": 20},
    "areas": {},
    "multiplier_intervals": {},
    "multiplier_ratio": {
        "run": "sparse-ioi",
        "other": "dense-ioi",
        "level": "edge",
        "ranking": "task",
        "ablation": "corrupt",
        "second_level": "head",
    },
}


@pytest.fixture
def given() -> dict[str, dict]:
    return GIVEN
