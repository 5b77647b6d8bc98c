"""Scores against a slow, obvious model that changes one thing at a time."""

import json

import numpy as np
import pytest
import torch
from slow import Change, ablated, mean_of, slow_means, wiring_of
from wirescope.data import encode_pairs, read_pairs
from wirescope.extract import find_device, load_model
from wirescope.extract.attribution import Attributor, Batch
from wirescope.extract.exact import Exact
from wirescope.extract.taps import Tape
from wirescope.graphs import Wiring


def scorer(model, method: str, wiring: Wiring, levels, **options):
    if method == "exact":
        exact = Exact(model.taps, wiring, levels=levels, **options)
        return lambda batch: exact(batch, 7)
    steps = int(method.removeprefix("eap-ig-")) if method.startswith("eap-ig") else None
    return Attributor(model.taps, wiring, levels=levels, steps=steps, **options)


def close(ours, theirs, tolerance, share=1.0) -> None:
    """Equal where theirs is known, which is at least for this share of them."""
    known = np.isfinite(theirs)
    assert known.mean() >= share
    scale = np.abs(theirs[known]).max()
    assert scale > 1e-3
    np.testing.assert_allclose(ours[known], theirs[known], rtol=0, atol=tolerance * scale)


def test_a_tapped_model_gives_its_own_logits(family, models, make_model, prompts):
    own = make_model(family, "eager")
    if "gated" in family:
        pytest.skip("transformers has no gates")
    for prompt in prompts:
        batch = Batch([prompt], models[family].parts, "logit_diff")
        tape = models[family].taps.run(batch.clean, Tape(last=batch.last()))
        ours = models[family].parts.unembed(tape.final)[0]
        theirs = own(batch.clean).logits[0, -1]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("ablation", "merged"), [("corrupt", False), ("zero", True), ("mean", False)])
def test_exact_edges_agree_with_changing_one_at_a_time(
    family, models, slow_models, prompts, ablation, merged
):
    model, slow, prompt = models[family], slow_models(family), prompts[3]
    wiring = wiring_of(model.shape, merged)
    mean, means = None, None
    if ablation == "mean":
        runs = [slow.run(p.clean_ids, p) for p in prompts]
        mean = mean_of(runs, "outputs")
        means = slow_means(mean_of(runs, "outputs"), mean_of(runs, "z"), model.shape)
    found = scorer(model, "exact", wiring, ("edge",), ablation=ablation, means=means)(
        Batch([prompt], model.parts, "logit_diff")
    )
    clean, corrupted = slow.run(prompt.clean_ids, prompt), slow.run(prompt.corrupted_ids, prompt)
    deltas = ablated(clean, corrupted, ablation, "outputs", mean)
    expected = []
    for name in wiring.edge_names().to_pylist():
        source, slot = name.split("->")
        changed = slow.run(prompt.clean_ids, prompt, Change(slot, stream=deltas[source]))
        expected.append(changed.metric - clean.metric)
    close(found.edge[0], np.array(expected), 2e-4)
    assert found.metric_clean[0] == pytest.approx(clean.metric, abs=1e-4)
    assert found.metric_corrupted[0] == pytest.approx(corrupted.metric, abs=1e-4)


@pytest.mark.parametrize("ablation", ["corrupt", "zero"])
@pytest.mark.parametrize("metric", ["logit_diff", "prob_diff", "kl"])
def test_exact_heads_and_attention_agree_with_changing_one_at_a_time(
    family, models, slow_models, prompts, ablation, metric
):
    model, slow, prompt = models[family], slow_models(family), prompts[2]
    found = scorer(model, "exact", wiring_of(model.shape), ("head", "attention"), ablation=ablation)(
        Batch([prompt], model.parts, metric)
    )
    clean, corrupted = (slow.run(ids, prompt) for ids in (prompt.clean_ids, prompt.corrupted_ids))
    reference = slow.run(prompt.clean_ids, prompt, metric=metric, clean=clean).metric

    def effect(head, z):
        return slow.run(prompt.clean_ids, prompt, Change(head, z=z), metric, clean=clean).metric - reference

    heads = {head: effect(head, delta) for head, delta in ablated(clean, corrupted, ablation, "z").items()}
    close(found.head[0], np.array(list(heads.values())), 2e-4)
    messages = ablated(clean, corrupted, ablation, "messages")
    length = len(prompt.clean_ids)
    expected = np.zeros((model.shape.layers, model.shape.heads, length * (length + 1) // 2))
    for layer in range(model.shape.layers):
        for head in range(model.shape.heads):
            for pair, (i, j) in enumerate(zip(*np.tril_indices(length), strict=True)):
                node = f"a{layer}.h{head}"
                z = torch.zeros_like(clean.z[node])
                z[i] = messages[node][i, j]
                expected[layer, head, pair] = effect(node, z)
    close(found.attention[0].score, expected, 2e-4)


@pytest.mark.parametrize("method", ["eap", "eap-ig-2"])
def test_first_order_scores_are_slopes_of_the_metric(family, models, slow_models, prompts, method):
    """Finite differences along each edge, each head and each message, at the clean input or on the way to it."""
    model, slow, prompt = models[family], slow_models(family), prompts[0]
    wiring = wiring_of(model.shape)
    found = scorer(model, method, wiring, ("edge", "head", "attention"))(
        Batch([prompt], model.parts, "logit_diff")
    )
    clean, corrupted = slow.run(prompt.clean_ids, prompt), slow.run(prompt.corrupted_ids, prompt)
    embed = slow.model.get_input_embeddings()
    start, end = (embed(torch.tensor([ids])) for ids in (prompt.corrupted_ids, prompt.clean_ids))
    known_share = 0.5 if "gated" in family or family == "olmo" else 0.9
    inputs = [end] if method == "eap" else [start, (start + end) / 2]

    def slope(slot, **change):
        """NaN where a small step and a smaller one disagree: there is a jump between them, of a gate or a clip."""
        steps = (0.001, 0.0004) if "gated" in family or family == "olmo" else (0.006, 0.002)
        rough, fine = (difference(step, slot, change) for step in steps)
        return fine if abs(fine - rough) < 0.006 + 0.006 * abs(fine) else np.nan

    def difference(step, slot, change):
        total = 0.0
        for at in inputs:
            up, down = (
                slow.run(
                    prompt.clean_ids,
                    prompt,
                    Change(slot, **{key: sign * step * delta for key, delta in change.items()}),
                    embeddings=at,
                ).metric
                for sign in (1, -1)
            )
            total += (up - down) / (2 * step) / len(inputs)
        return total

    outputs = ablated(clean, corrupted, "corrupt", "outputs")
    names = wiring.edge_names().to_pylist()
    some = list(range(0, len(names), 4))
    expected = [slope(names[i].split("->")[1], stream=outputs[names[i].split("->")[0]]) for i in some]
    close(found.edge[0][some], np.array(expected), 6e-3, known_share)
    # all edges into a slot together: the slope along the sum of what their sources change
    for slot in ("a1.h2<k>", "m1", "logits"):
        into = [i for i, name in enumerate(names) if name.endswith(f"->{slot}")]
        whole = sum(outputs[names[i].split("->")[0]] for i in into)
        expected = slope(slot, stream=whole)
        assert np.isnan(expected) or found.edge[0][into].sum() == pytest.approx(expected, rel=2e-2, abs=2e-3)
    z = ablated(clean, corrupted, "corrupt", "z")
    close(found.head[0], np.array([slope(head, z=delta) for head, delta in z.items()]), 6e-3, known_share)
    messages = ablated(clean, corrupted, "corrupt", "messages")
    pairs = list(zip(*np.tril_indices(len(prompt.clean_ids)), strict=True))
    chosen = [(0, 1, 7), (0, 3, 20), (1, 0, 15), (1, 2, 18), (1, 3, 20), (0, 2, 16)]
    expected = []
    for layer, head, pair in chosen:
        i, j = pairs[pair]
        change = torch.zeros_like(clean.z[f"a{layer}.h{head}"])
        change[i] = messages[f"a{layer}.h{head}"][i, j]
        expected.append(slope(f"a{layer}.h{head}", z=change))
    ours = np.array([found.attention[0].score[unit] for unit in chosen])
    tolerance = {"rtol": 2e-2, "atol": 4e-3 * np.abs(found.attention[0].score).max()}
    known = np.isfinite(expected)
    assert known.sum() > 2
    np.testing.assert_allclose(ours[known], np.array(expected)[known], **tolerance)


@pytest.mark.parametrize(("key", "method"), [("eap", "eap"), ("eap-ig-5", "eap-ig-5")])
def test_scores_equal_those_of_the_reference_implementation(tiny, key, method):
    model = load_model(str(tiny / "model"), device=find_device())
    prompts = encode_pairs(read_pairs(tiny / "prompts.jsonl"), model.vocabulary)
    reference = json.loads((tiny / "reference.json").read_text())
    wiring = wiring_of(model.shape)
    found = scorer(model, method, wiring, ("edge",))(Batch(prompts, model.parts, "logit_diff"))
    expected = np.array([reference[key][name] for name in wiring.edge_names().to_pylist()])
    assert len(expected) == reference["edges"]
    close(found.edge.mean(0), expected, 1e-4)
    np.testing.assert_allclose(found.metric_clean, reference["metric_clean"], atol=1e-5)
    np.testing.assert_allclose(found.metric_corrupted, reference["metric_corrupted"], atol=1e-5)
