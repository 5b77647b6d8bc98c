"""Intervals of multipliers contain the truth, where it is known: a small run of the simulation in `bench`."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "bench" / "coverage.py"
SAMPLES, PROMPTS, HALVINGS = 100, 24, 5


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["smooth", "ragged"])
def test_at_least_90_of_100_intervals_contain_the_truth(simulation, shape):
    """Of multipliers by each prompt's ranking and by cross-fitted ones, under a protocol too, and of ratios of two."""
    world = simulation.World(shape, PROMPTS)
    true, hits = simulation.truths(world), Counter()
    ratios = ("prompt / task", "twin / control, task")
    for first in range(0, SAMPLES, 25):
        some = range(first, first + 25)
        for one in simulation.intervals(world, some, HALVINGS, ratios=ratios, others=False):
            hits[one.what] += one.low <= true[one.what] <= one.high
    models = ("sparse", "control", "sparse, smaller")
    assert set(hits) == {f"{model}, {by}" for model in models for by in ("prompt", "task")} | {*ratios}
    assert {what: count for what, count in hits.items() if count < 90} == {}
