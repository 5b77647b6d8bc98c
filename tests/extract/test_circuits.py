"""Circuits against a slow model that runs whole, with hooks; and what must not change what a circuit does."""

import json

import numpy as np
import pytest
import torch
from slow import Kept, mean_of, slow_means, wiring_of
from wirescope.data import Prompt, encode_pairs, read_pairs
from wirescope.extract import find_device, load_model
from wirescope.extract.ablated import ablate
from wirescope.extract.attribution import Attributor, Batch, to_array
from wirescope.extract.circuits import AttentionCircuits, HeadCircuits, Row
from wirescope.extract.edge_circuits import EdgeCircuits
from wirescope.extract.taps import Tape
from wirescope.graphs import on_a_path, ranking

LEVELS = ("edge", "head", "attention")
CASES = [(level, ablation) for level in LEVELS for ablation in ("corrupt", "zero", "mean")][:-1]
RANDOM_CIRCUITS = 50


def circuits_of(level, model, wiring, dense=False):
    if level == "edge":
        return EdgeCircuits(model.taps, wiring, dense=dense)
    return (HeadCircuits if level == "head" else AttentionCircuits)(model.taps)


def measured(
    model,
    prompts,
    level,
    rows,
    ablation="corrupt",
    means=None,
    metric="logit_diff",
    merged=False,
    dense=False,
):
    """The metric of (prompt, mask) pairs, all in one pass."""
    batch = Batch(prompts, model.parts, metric)
    ablated = ablate(model.taps, batch, (level,), ablation, means)
    circuits = circuits_of(level, model, wiring_of(model.shape, merged), dense)
    return to_array(circuits(ablated, [Row(*row) for row in rows]))


def all_units(model, prompt, level, merged=False) -> int:
    heads, length = model.shape.layers * model.shape.heads, len(prompt.clean_ids)
    sizes = {"head": heads, "attention": heads * length * (length + 1) // 2}
    return wiring_of(model.shape, merged).n_edges if level == "edge" else sizes[level]


def own_metrics(model, batch, ids):
    return to_array(batch.metric(model.taps.run(ids, Tape(last=batch.last())).final))


class Reference:
    """The slow model in one setting: it knows what units carry instead, and runs a prompt's circuits."""

    def __init__(self, model, slow, prompts, ablation, metric="logit_diff", merged=False):
        self.model, self.slow, self.metric, self.ablation = model, slow, metric, ablation
        self.prompts, self.wiring = prompts, wiring_of(model.shape, merged)
        self.clean = [slow.run(prompt.clean_ids, prompt) for prompt in prompts]
        self.corrupted = [slow.run(prompt.corrupted_ids, prompt) for prompt in prompts]
        self.means = None
        if ablation == "mean":
            self.mean = {what: mean_of(self.clean, what) for what in ("outputs", "z")}
            self.means = slow_means(self.mean["outputs"], self.mean["z"], model.shape)
        self.names = self.wiring.edge_names().to_pylist()
        self.sources = {}
        for name in self.names:
            source, slot = name.split("->")
            self.sources.setdefault(slot, []).append(source)

    def instead(self, i, what):
        if self.ablation == "corrupt":
            return getattr(self.corrupted[i], what)
        was = getattr(self.clean[i], what)
        if self.ablation == "zero":
            return {node: torch.zeros_like(value) for node, value in was.items()}
        return {node: self.mean[what][node][: len(value)] for node, value in was.items()}

    def __call__(self, level, i, mask):
        prompt = self.prompts[i]
        if level == "edge":
            edges = {self.names[edge] for edge in np.flatnonzero(mask)}
            kept = Kept(edges=edges, instead=self.instead(i, "outputs"), sources=self.sources)
        else:
            heads = [
                f"a{j}.h{h}" for j in range(self.model.shape.layers) for h in range(self.model.shape.heads)
            ]
            if level == "head":
                chosen = {head for head, own in zip(heads, mask, strict=True) if own}
                kept = Kept(heads=chosen, instead=self.instead(i, "z"))
            else:
                length = len(prompt.clean_ids)
                pairs = np.zeros((len(heads), length, length), dtype=bool)
                pairs[:, *np.tril_indices(length)] = mask.reshape(len(heads), -1)
                by_head = dict(zip(heads, torch.from_numpy(pairs), strict=True))
                kept = Kept(pairs=by_head, instead=self.instead(i, "messages"))
        run = self.slow.run(prompt.clean_ids, prompt, metric=self.metric, clean=self.clean[i], kept=kept)
        return run.metric


@pytest.mark.parametrize(("level", "ablation"), CASES)
def test_all_kept_is_the_model_and_none_kept_the_ablated_one(
    family, models, slow_models, prompts, level, ablation
):
    model = models[family]
    reference = Reference(model, slow_models(family), prompts, ablation)
    batch = Batch(prompts, model.parts, "logit_diff")
    units = [all_units(model, prompt, level) for prompt in prompts]
    rows = [(i, np.full(n, keep)) for keep in (True, False) for i, n in enumerate(units)]
    found = measured(model, prompts, level, rows, ablation, reference.means)
    everything, nothing = found[: len(prompts)], found[len(prompts) :]
    np.testing.assert_allclose(everything, own_metrics(model, batch, batch.clean), atol=1e-4)
    if (level, ablation) == ("edge", "corrupt"):
        np.testing.assert_allclose(nothing, own_metrics(model, batch, batch.corrupted), atol=1e-4)
    slow = [reference(level, i, mask) for i, mask in rows[len(prompts) :]]
    np.testing.assert_allclose(nothing, slow, atol=1e-4)
    assert np.abs(everything - nothing).max() > 0.1


@pytest.mark.parametrize(("level", "ablation"), CASES)
def test_random_circuits_do_what_the_slow_model_does(family, models, slow_models, prompts, level, ablation):
    """Fifty at each level and ablation, of all densities; those of edges pruned to their paths, as circuits are."""
    model = models[family]
    reference = Reference(model, slow_models(family), prompts, ablation)
    rng = np.random.default_rng(LEVELS.index(level))
    rows = []
    while len(rows) < RANDOM_CIRCUITS:
        i = int(rng.integers(len(prompts)))
        mask = rng.random(all_units(model, prompts[i], level)) < rng.uniform(0.05, 0.95)
        rows.append((i, on_a_path(reference.wiring, mask) if level == "edge" else mask))
    found = measured(model, prompts, level, rows, ablation, reference.means)
    slow = np.array([reference(level, i, mask) for i, mask in rows])
    assert slow.std() > 0.05
    np.testing.assert_allclose(found, slow, atol=1e-4)


@pytest.mark.parametrize("metric", ["prob_diff", "kl"])
@pytest.mark.parametrize("level", LEVELS)
def test_other_metrics_and_merged_inputs_do_as_the_slow_model_does(
    family, models, slow_models, prompts, level, metric
):
    model, merged = models[family], level == "edge"
    reference = Reference(model, slow_models(family), prompts, "corrupt", metric, merged)
    rng = np.random.default_rng(7)
    rows = []
    for i, prompt in enumerate(prompts):
        mask = rng.random(all_units(model, prompt, level, merged)) < 0.6
        rows.append((i, on_a_path(reference.wiring, mask) if level == "edge" else mask))
    found = measured(model, prompts, level, rows, metric=metric, merged=merged)
    slow = np.array([reference(level, i, mask) for i, mask in rows])
    np.testing.assert_allclose(found, slow, atol=1e-4)


@pytest.mark.parametrize("level", LEVELS)
def test_a_circuit_does_the_same_alone_and_among_others(family, models, prompts, level):
    model, rng = models[family], np.random.default_rng(3)
    rows = []
    for density in (0.1, 0.3, 0.6, 0.9):
        for i, prompt in enumerate(prompts):
            mask = rng.random(all_units(model, prompt, level)) < density
            rows.append((i, on_a_path(wiring_of(model.shape), mask) if level == "edge" else mask))
    together = measured(model, prompts, level, rows)
    alone = [measured(model, prompts, level, [row])[0] for row in rows]
    by_prompt = [measured(model, [prompts[i]], level, [(0, mask)])[0] for i, mask in rows]
    np.testing.assert_allclose(together, alone, atol=2e-5)
    np.testing.assert_allclose(together, by_prompt, atol=2e-5)


def test_sums_by_matrix_products_are_the_same(family, models, prompts):
    """As on an accelerator."""
    model, rng = models[family], np.random.default_rng(5)
    wiring = wiring_of(model.shape)
    rows = [(i, on_a_path(wiring, rng.random(wiring.n_edges) < 0.2 * (i + 1))) for i in range(len(prompts))]
    summed = measured(model, prompts, "edge", rows)
    np.testing.assert_allclose(measured(model, prompts, "edge", rows, dense=True), summed, atol=2e-5)


def test_a_long_common_beginning_changes_nothing(family, models, slow_models):
    beginning = (9, 8, 7, 6, 5)
    prompts = [
        Prompt(
            clean_ids=(*beginning, 1, 2),
            corrupted_ids=(*beginning, 3, 2),
            correct_answers=((1,),),
            wrong_answers=((2,),),
        ),
        Prompt(
            clean_ids=(*beginning, 5),
            corrupted_ids=(*beginning, 6),
            correct_answers=((1,),),
            wrong_answers=((2,),),
        ),
    ]
    model, rng = models[family], np.random.default_rng(2)
    for level in LEVELS:
        reference = Reference(model, slow_models(family), prompts, "corrupt")
        rows = []
        for i in (0, 1, 0, 1):
            mask = rng.random(all_units(model, prompts[i], level)) < 0.5
            rows.append((i, on_a_path(reference.wiring, mask) if level == "edge" else mask))
        slow = [reference(level, i, mask) for i, mask in rows]
        np.testing.assert_allclose(measured(model, prompts, level, rows), slow, atol=1e-4)


def test_circuits_equal_those_of_the_reference_implementation(tiny):
    """Kept edges to the name, metrics a prompt to 1e-3."""
    model = load_model(str(tiny / "model"), device=find_device())
    prompts = encode_pairs(read_pairs(tiny / "prompts.jsonl"), model.vocabulary)
    wiring = wiring_of(model.shape)
    attributor = Attributor(model.taps, wiring, levels=("edge",), steps=5)
    order = ranking(attributor(Batch(prompts, model.parts, "logit_diff")).edge.mean(0))
    circuits = EdgeCircuits(model.taps, wiring)
    published = json.loads((tiny / "reference.json").read_text())["circuits"]
    assert [circuit["requested"] for circuit in published] == [5, 20, 60, 200]
    for circuit in published:
        mask = circuits.top(order, circuit["requested"])
        assert set(wiring.edge_names(np.flatnonzero(mask)).to_pylist()) == set(circuit["kept_edges"])
        found = measured(model, prompts, "edge", [(i, mask) for i in range(len(prompts))])
        np.testing.assert_allclose(found, circuit["metric"], atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", LEVELS)
def test_half_precision_comes_near(family, models, make_tapped, prompts, dtype, level):
    if "gated" in family:
        pytest.skip("a rounded logit may open another gate")
    rng = np.random.default_rng(1)
    rows = []
    for i, prompt in enumerate(prompts * 4):
        mask = rng.random(all_units(models[family], prompt, level)) < 0.5
        wiring = wiring_of(models[family].shape)
        rows.append((i % len(prompts), on_a_path(wiring, mask) if level == "edge" else mask))
    half = measured(make_tapped(family, dtype), prompts, level, rows)
    whole = measured(models[family], prompts, level, rows)
    assert half.dtype == np.float32
    assert np.corrcoef(half, whole)[0, 1] > 0.98


def test_measuring_leaves_the_model_as_it_was(models, prompts):
    """Projections that were stood in for do their own work again."""
    model = models["gpt2"]
    batch = Batch(prompts, model.parts, "logit_diff")
    before = own_metrics(model, batch, batch.clean)
    mask = np.ones(wiring_of(model.shape).n_edges, dtype=bool)
    measured(model, prompts, "edge", [(0, mask)])
    assert np.array_equal(own_metrics(model, batch, batch.clean), before)
    for block in model.parts.blocks:
        assert not {"forward"} & {
            *vars(block.out),
            *(key for read in block.reads for key in vars(read.module)),
        }
