"""Blocks on several devices: nothing meets what is on another one, and where things are changes no number.

There are no accelerators here. Fake tensors have a device and no numbers, and torch refuses to mix their devices as it
would on real ones. The type of device is one that torch knows how to differentiate on without hardware.
"""

import json
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from conftest import CONFIGS
from hypothesis import given
from hypothesis import strategies as st
from slow import wiring_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_dispatch
from transformers import AutoModelForCausalLM, GPT2Config
from wirescope.data import Prompt
from wirescope.errors import InputError
from wirescope.extract import FAMILIES, Settings, attribution, exact, extract, find_device, placement
from wirescope.extract.ablated import ablate
from wirescope.extract.attention import NAME
from wirescope.extract.attribution import Attributor, Batch
from wirescope.extract.circuits import AttentionCircuits, HeadCircuits, Row
from wirescope.extract.edge_circuits import EdgeCircuits
from wirescope.extract.job import Job
from wirescope.extract.ledger import Ledger
from wirescope.extract.models import prepared, sketch, tap_model
from wirescope.extract.placement import accelerators, place, spread
from wirescope.extract.plan import make_plan
from wirescope.extract.settings import Deaf
from wirescope.extract.taps import Taps
from wirescope.extract.workers import Workers
from wirescope.graphs import on_a_path

FAKE = [torch.device("lazy", i) for i in range(2)]
FAMILY_NAMES = ("gpt2", "llama-gated", "olmo", "neox")


class StrictIndices(TorchDispatchMode):
    """Fake tensors take indices from anywhere, accelerators do not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name().startswith(("aten::index.", "aten::index_put")):
            for index in args[1]:
                assert index is None or index.device == args[0].device, "an index is on another device"
        return func(*args, **kwargs or {})


@pytest.fixture
def fake(monkeypatch):
    """Makes a model whose first half is on one fake device and whose second half on another."""

    def array(x):
        return np.zeros(x.shape, dtype=np.float32)

    for module in (attribution, exact):
        monkeypatch.setattr(module, "to_array", array)

    def make(config, devices=FAKE):
        config = CONFIGS[config] if isinstance(config, str) else config
        config = config.__class__.from_dict(config.to_dict())
        model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
        layers = config.num_hidden_layers
        blocks = [devices[0]] * (layers // 2) + [devices[1]] * (layers - layers // 2)
        return tap_model(prepared(model, "fake", FAMILIES[config.model_type], devices[1], blocks=blocks))

    with FakeTensorMode(), StrictIndices():
        yield make


def test_torch_refuses_to_mix_fake_devices(fake):
    a, b = (torch.ones(2, 2, device=device) for device in FAKE)
    with pytest.raises(RuntimeError, match="same device"):
        a @ b
    with pytest.raises(AssertionError, match="another device"):
        a[b.long()]
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


@pytest.mark.parametrize("name", ["gpt2", "llama-gated"])
@pytest.mark.parametrize("ablation", ["corrupt", "zero"])
def test_exact_scores_mix_no_devices(fake, prompts, name, ablation, monkeypatch):
    """Which units change is not known of fake tensors: here all do."""

    def everything(self):
        shape = torch.tensor([*self.shape])
        return torch.cartesian_prod(*(torch.arange(n, device=self.device) for n in self.shape)).view(
            -1, len(shape)
        )

    monkeypatch.setattr(torch.Tensor, "nonzero", everything)
    monkeypatch.setattr(exact.Exact, "_edges", some_edges)
    model = fake(name)
    score = exact.Exact(
        model.taps, wiring_of(model.shape), levels=("edge", "head", "attention"), ablation=ablation
    )
    scores = score(Batch(prompts[:1], model.parts, "logit_diff"), 200)
    assert scores.edge.shape == (1, wiring_of(model.shape).n_edges)


def some_edges(self, *given, edges=exact.Exact._edges):
    """One edit of each reader."""
    layers = set()
    for own, edit in edges(self, *given):
        if (edit.layer, edit.at) not in layers:
            layers.add((edit.layer, edit.at))
            yield own, edit


@pytest.mark.parametrize("steps", [None, 3])
def test_the_plan_for_each_device_is_what_is_on_it_or_little_more(fake, steps):
    config = GPT2Config(vocab_size=100, n_layer=6, n_head=4, n_embd=128, bos_token_id=0, eos_token_id=0)
    ids = [tuple((7 * i + j * j) % 100 for j in range(24)) for i in range(16)]
    prompts = [
        Prompt(clean_ids=a, corrupted_ids=b, correct_answers=((1,),), wrong_answers=((2,),))
        for a, b in zip(ids, reversed(ids), strict=True)
    ]
    settings = Settings(method="eap-ig" if steps else "eap", steps=steps or 1, curves=False)
    model = fake(config)
    with ExitStack() as stack:
        ledgers = [stack.enter_context(Ledger([device])) for device in FAKE]
        attributor = Attributor(model.taps, wiring_of(model.shape), levels=("edge",), steps=steps)
        attributor(Batch(prompts, model.parts, "logit_diff"))
    with no_dispatch():
        drawn = sketch(config, "sketch", torch.float32, FAMILIES["gpt2"])
        made = make_plan(drawn, prompts, settings, accelerator=True, devices=[0] * 3 + [1] * 3)
    for ledger, peak, weights in zip(ledgers, made.peaks, made.weights, strict=True):
        assert ledger.peak <= peak - weights <= 1.5 * ledger.peak


@pytest.fixture
def two_devices(monkeypatch):
    """Two devices that are the same one."""
    here = find_device()
    monkeypatch.setattr(placement, "accelerators", lambda: [here, here])
    monkeypatch.setattr(Taps, "_is_spread", lambda self: True)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(levels=("edge", "head", "attention"), sizes=(3, 9)),
        Settings(levels=("edge", "head"), ablation="mean", method="eap", sizes=(3, 9)),
        Settings(levels=("edge", "head"), method="exact", curves=False),
    ],
    ids=["eap-ig", "mean", "exact"],
)
def test_a_map_changes_no_byte(tiny, tmp_path, two_devices, settings):
    file = tmp_path / "map.json"
    file.write_text(
        json.dumps({"transformer.wte": 0, "transformer.h.0": 0, "transformer.h.1": "x:1", "h.2": 1})
    )
    for store, device_map in (("plain", None), ("auto", "auto"), ("file", str(file))):
        extract(
            model=str(tiny / "model"),
            prompts=tiny / "prompts.jsonl",
            store=tmp_path / store,
            run="tiny",
            settings=settings,
            device_map=device_map,
        )
    plain, auto, mapped = (
        {str(f.relative_to(tmp_path / s)): f.read_bytes() for f in sorted((tmp_path / s).rglob("*.parquet"))}
        for s in ("plain", "auto", "file")
    )
    assert len(plain) >= 4
    assert plain == auto == mapped


def test_weights_go_where_the_map_says_and_tied_ones_stay_tied(make_model):
    for name in CONFIGS:
        model = make_model(name)
        family = FAMILIES[model.config.model_type]
        tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        layers = model.config.num_hidden_layers
        place(model, family.parts(model), [torch.device("meta")] * (layers - 1) + [find_device()])
        parts = family.parts(model)
        for block in parts.blocks[:-1]:
            assert {weight.device.type for weight in block.module.parameters()} == {"meta"}
        inside = {id(weight) for block in parts.blocks[:-1] for weight in block.module.parameters()}
        others = [weight for weight in model.parameters() if id(weight) not in inside]
        assert {weight.device for weight in others} == {find_device()}
        assert tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)


@given(
    blocks=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    rest=st.integers(0, 300),
    count=st.integers(1, 8),
)
def test_blocks_are_spread_in_their_order_over_all_devices(blocks, rest, count):
    devices = spread(blocks, rest, count)
    assert devices == sorted(devices)
    assert set(devices) == set(range(min(count, len(blocks))))


def test_blocks_are_spread_evenly():
    devices = spread([400] * 32, 800, 4)
    loads = [400 * devices.count(i) + (800 if i == 3 else 0) for i in range(4)]
    assert max(loads) - min(loads) <= 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"h.0": 0, "h.1": "cpu", "h.2": 1}', "puts h.1 on 'cpu': blocks are on accelerators"),
        ('{"h.0": 0, "h.1": "disk", "h.2": 1}', "nothing is offloaded"),
        ('{"h.0": 0, "h.2": 1}', "is not of the model's 3 blocks: look at block 1"),
        ('{"h.0": 0, "h.1": 1, "h.2": 2}', "has a device 2, but there are 2"),
        ("[0, 1]", "is not a JSON object"),
        ("{", "cannot be read as JSON"),
        (None, "There is no file"),
    ],
)
def test_a_map_that_cannot_be_is_refused(tiny, tmp_path, cli, two_devices, content, message):
    file = tmp_path / "map.json"
    if content is not None:
        file.write_text(content)
    command = ("extract", "-m", tiny / "model", "-p", tiny / "prompts.jsonl", "-s", tmp_path / "s")
    result = cli(*command, "--device-map", file)
    assert result.status == 2
    assert message in result.err
    assert not (tmp_path / "s").exists()


def test_a_map_needs_several_accelerators(tiny, tmp_path, cli, monkeypatch):
    command = ("extract", "-m", tiny / "model", "-p", tiny / "prompts.jsonl", "-s", tmp_path / "s")
    result = cli(*command, "--device-map", "auto")
    assert result.status == 2
    assert "there are 0 here; --plan --device-map auto --devices 2" in result.err
    assert "exclude each other" in cli(*command, "--device-map", "auto", "--device", "cpu").err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "for one process" in cli(*command, "--device-map", "map.json").err


def test_each_process_has_its_share_of_the_accelerators(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("lazy"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert [device.index for device in accelerators()] == [0, 1, 2, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [device.index for device in accelerators()] == [2, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(InputError, match="for each of 4 processes, but there are 4 here"):
        accelerators()
