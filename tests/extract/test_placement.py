"""Blocks on several devices: nothing meets what is on another one, and where things are changes no number.

There are no accelerators here. Fake tensors have a device and no numbers, and torch refuses to mix their devices as it
would on real ones. The type of device is one that torch knows how to differentiate on without hardware.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from slow import wiring_of
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM
from wirescope.extract import FAMILIES, Settings, attribution, circuits, edges, exact, extract, extraction, placement
from wirescope.extract.ablated import ablate
from wirescope.extract.attention import NAME
from wirescope.extract.attribution import Attributor, Batch, Means
from wirescope.extract.circuits import AttentionCircuits, HeadCircuits, Row
from wirescope.extract.edge_circuits import EdgeCircuits
from wirescope.extract.exact import Exact
from wirescope.extract.job import Job
from wirescope.extract.models import prepared, tap_model
from wirescope.extract.placement import place, spread
from wirescope.extract.settings import Deaf
from wirescope.extract.taps import Edit, Tape
from wirescope.extract.workers import Workers
from wirescope.graphs import InputError, on_a_path

from conftest import CONFIGS

FAKE = [torch.device("lazy", i) for i in range(2)]
FAMILY_NAMES = ("gpt2-deep", "gpt2-gated", "llama", "olmo", "neox")


@pytest.fixture
def fake(monkeypatch):
    """Makes a model whose first half is on one fake device and whose second half on another."""

    def array(x):
        return np.zeros(x.shape, dtype=np.float32)

    for module in (attribution, exact):
        monkeypatch.setattr(module, "to_array", array)

    def make(name, devices=FAKE):
        config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict())
        model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
        layers = config.num_hidden_layers
        blocks = [devices[0]] * (layers // 2) + [devices[1]] * (layers - layers // 2)
        return tap_model(prepared(model, name, FAMILIES[config.model_type], devices[1], blocks=blocks))

    with FakeTensorMode():
        yield make


def test_torch_refuses_to_mix_fake_devices(fake):
    a, b = (torch.ones(2, 2, device=device) for device in FAKE)
    with pytest.raises(RuntimeError, match="same device"):
        a @ b
    assert (a.to(FAKE[1]) @ b).device == FAKE[1]


def means_of(model, prompts):
    alone = Workers(0, 1, model.device)
    shards = [range(len(prompts))]
    return Job(model, prompts, shards, wiring_of(model.shape), "logit_diff", None, alone, Deaf()).means


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("steps", [None, 2])
def test_scores_mix_no_devices(fake, prompts, name, steps):
    model = fake(name)
    for levels, ablation in ((("edge", "head", "attention"), "corrupt"), (("edge", "head"), "mean")):
        means = means_of(model, prompts) if ablation == "mean" else None
        attributor = Attributor(
            model.taps, wiring_of(model.shape), levels=levels, steps=steps, ablation=ablation, means=means
        )
        scores = attributor(Batch(prompts, model.parts, "logit_diff"))
        assert scores.edge.shape == (len(prompts), wiring_of(model.shape).n_edges)


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("ablation", ["corrupt", "zero", "mean"])
def test_circuits_mix_no_devices(fake, prompts, name, ablation):
    model = fake(name)
    wiring, rng = wiring_of(model.shape), np.random.default_rng(0)
    means = means_of(model, prompts) if ablation == "mean" else None
    levels = ("edge", "head") if means else ("edge", "head", "attention")
    ablated = ablate(model.taps, Batch(prompts, model.parts, "kl"), levels, ablation, means)
    heads = model.shape.layers * model.shape.heads
    for density in (0.1, 0.6):
        masks = [on_a_path(wiring, rng.random(wiring.n_edges) < density) for _ in prompts]
        rows = [Row(i, mask) for i, mask in enumerate(masks)]
        assert EdgeCircuits(model.taps, wiring, dense=True)(ablated, rows).device == FAKE[1]
        rows = [Row(i, rng.random(heads) < density) for i in range(len(prompts))]
        assert HeadCircuits(model.taps)(ablated, rows).device == FAKE[1]
        if means is None:
            pairs = [heads * length * (length + 1) // 2 for length in ablated.batch.lengths]
            rows = [Row(i, rng.random(count) < density) for i, count in enumerate(pairs)]
            assert AttentionCircuits(model.taps)(ablated, rows).device == FAKE[1]
