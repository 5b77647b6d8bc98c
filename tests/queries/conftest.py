"""What the questions are given, whatever answers them: on the toy store, and on one of runs under a protocol."""

from pathlib import Path

import pyarrow as pa
import pytest
from wirescope.data import Run, write_run
from wirescope.graphs import Shape, Wiring

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


SIZES = (1, 4, 16, 46)
CURVES = {  # by run; with mean the dense model gets there sooner, and the sparse one goes back once
    "dense-ioi-zero": (0.0, 0.2, 0.8, 1.0),
    "dense-ioi-mean": (0.0, 0.3, 0.95, 1.0),
    "sparse-ioi-zero": (0.1, 0.95, 1.1, 1.0),
    "sparse-ioi-mean": (0.1, 0.95, 0.7, 1.0),
}
SPREAD = (-0.05, -0.02, 0.02, 0.05)


@pytest.fixture
def given() -> dict[str, dict]:
    return GIVEN


@pytest.fixture(scope="session")
def toy_protocol(tmp_path_factory) -> Path:
    """A pair of models under a protocol, with curves alone: m_none is 0 and m_all is 1 for every prompt."""
    path = tmp_path_factory.mktemp("toy-protocol") / "store"
    for name, curve in CURVES.items():
        stem, _, ablation = name.rpartition("-")
        sparse = stem.startswith("sparse")
        record = Run(
            run=name,
            model="toy-sparse" if sparse else "toy",
            base_model="toy" if sparse else None,
            shape=Shape(layers=2, heads=2),
            task="ioi",
            prompts=len(SPREAD),
            levels=("edge",),
            method="eap",
            metric="logit_diff",
            ablation=ablation,
            protocol="published",
        )
        with write_run(path, record) as writer:
            writer.write_wiring(Wiring(record.shape))
            writer.write("effects", _effects(curve, ablation))
    return path


@pytest.fixture
def store_of(toy, toy_protocol):
    """The store on which a question or view has rows."""
    return lambda question: toy_protocol if "protocol" in question else toy.path


def _effects(curve: tuple[float, ...], ablation: str) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"level": "edge", "ranking": ranking, "ablation": ablation, "prompt_id": prompt, "fold": None}
            | {"requested": size, "kept": size, "m_all": 1.0, "m_none": 0.0}
            | {"metric": explained + (off if size < SIZES[-1] else 0.0)}
            for ranking in ("prompt", "task")
            for size, explained in zip(SIZES, curve, strict=True)
            for prompt, off in enumerate(SPREAD)
        ]
    )
