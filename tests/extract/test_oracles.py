"""Scores against a slow, obvious model that changes one thing at a time.

`Slow` runs the Hugging Face model as it is, on one prompt, in terms of its own code: it learns what a head's query is
by watching what transformers hands to the attention function, and what a head writes by giving the output projection
that head's z alone. It shares nothing with what it tests but the weights and the names of nodes.
"""

import json
import re
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface
from wirescope.data import Prompt, encode_pairs, read_pairs
from wirescope.extract import find_device, load_model
from wirescope.extract.attribution import Attributor, Batch, Means
from wirescope.extract.exact import Exact
from wirescope.extract.taps import Tape
from wirescope.graphs import Inputs, Shape, Wiring

PARTS = {  # layers, norm, attention, output projection, second norm, MLP, last norm
    "gpt2": ("transformer.h", "ln_1", "attn", "c_proj", "ln_2", "mlp", "transformer.ln_f"),
    "gpt_neox": (
        "gpt_neox.layers",
        "input_layernorm",
        "attention",
        "dense",
        "post_attention_layernorm",
        "mlp",
        "gpt_neox.final_layer_norm",
    ),
}
LLAMA_LIKE = (
    "model.layers",
    "input_layernorm",
    "self_attn",
    "o_proj",
    "post_attention_layernorm",
    "mlp",
    "model.norm",
)
LETTERS = "qkv"


@dataclass
class Change:
    """What to do to one run: add to what `slot` reads, or to the z of a head."""

    slot: str = ""  # a1.h2<q>, a1.h2 (all three), m1, logits, or a1.h2 with z
    stream: Tensor | None = None  # [position, d_model]
    z: Tensor | None = None  # [position, d_head]


@dataclass
class Seen:
    """What one run did: outputs of nodes [position, d_model], z and messages of heads."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    z: dict[str, Tensor] = field(default_factory=dict)  # [position, d_head]
    messages: dict[str, Tensor] = field(default_factory=dict)  # [query, key, d_head]
    metric: float = 0.0
    log_probabilities: Tensor | None = None


class Slow:
    def __init__(self, model) -> None:
        self.model = model
        layers, norm, attention, out, mlp_norm, mlp, last = PARTS.get(model.config.model_type, LLAMA_LIKE)
        self.heads = model.config.num_attention_heads
        AttentionInterface.register("slow", self.attend)
        model.set_attn_implementation("slow")
        for i, layer in enumerate(model.get_submodule(layers)):
            layer.register_forward_pre_hook(self.on_block(i))
            getattr(layer, norm).register_forward_hook(self.on_norm(i))
            getattr(layer, attention).register_forward_pre_hook(self.on_attention(i), with_kwargs=True)
            getattr(layer, attention).get_submodule(out).register_forward_hook(self.on_out(i))
            getattr(layer, mlp_norm).register_forward_pre_hook(self.before_norm(f"m{i}"))
            getattr(layer, mlp).register_forward_hook(self.on_mlp(i))
        model.get_submodule(last).register_forward_pre_hook(self.before_norm("logits"))

    @torch.no_grad()
    def run(self, ids, prompt: Prompt, change=None, metric="logit_diff", embeddings=None, clean=None) -> Seen:
        AttentionInterface.register("slow", self.attend)
        self.change, self.seen, self.capturing, self.captured = change or Change(), Seen(), False, None
        ids = torch.tensor([ids])
        embedded = self.model.get_input_embeddings()(ids) if embeddings is None else embeddings
        logits = self.model(inputs_embeds=embedded, use_cache=False).logits[0, -1].float()
        correct, wrong = list(prompt.correct_ids), list(prompt.wrong_ids)
        self.seen.log_probabilities = logits.log_softmax(-1)
        if metric == "logit_diff":
            value = logits[correct].logsumexp(-1) - logits[wrong].logsumexp(-1)
        elif metric == "prob_diff":
            value = logits.softmax(-1)[correct].sum() - logits.softmax(-1)[wrong].sum()
        else:
            p = self.seen.log_probabilities if clean is None else clean.log_probabilities
            value = (p.exp() * (p - self.seen.log_probabilities)).sum()
        self.seen.metric = float(value)
        return self.seen

    def attend(self, module, query, key, value, mask, scaling, sliding_window=None, **_):
        layer = module.layer_idx
        key, value = (x.repeat_interleave(self.heads // x.shape[1], dim=1) for x in (key, value))
        if self.capturing:
            self.captured = (query, key, value)
            return query.transpose(1, 2), None
        query, key, value = query.clone(), key.clone(), value.clone()
        match = re.fullmatch(rf"a{layer}\.h(\d+)(?:<(.)>)?", self.change.slot)
        if match and self.change.stream is not None:
            for letter, own, other in zip(LETTERS, (query, key, value), self.captured, strict=True):
                if match[2] in (None, letter):
                    own[:, int(match[1])] = other[:, int(match[1])]
        i, j = torch.meshgrid(torch.arange(query.shape[2]), torch.arange(query.shape[2]), indexing="ij")
        visible = (j <= i) & (j > i - (sliding_window or 1_000))
        biases = getattr(module.config, "gate_bias", None)
        z = torch.zeros_like(query)
        for head in range(self.heads):
            logits = query[0, head] @ key[0, head].T * scaling  # [query, key]
            weights = torch.where(visible, logits, -torch.inf).softmax(-1)
            if biases is not None:
                weights = torch.where(logits + biases[layer][head] > 0, weights, 0.0)
            messages = weights[:, :, None] * value[0, head]
            self.seen.messages[f"a{layer}.h{head}"] = messages
            z[0, head] = messages.sum(1)
            if self.change.slot == f"a{layer}.h{head}" and self.change.z is not None:
                z[0, head] += self.change.z
            self.seen.z[f"a{layer}.h{head}"] = z[0, head]
        return z.transpose(1, 2), None

    def on_block(self, layer):
        def hook(module, args):
            if layer == 0:
                self.seen.outputs["input"] = args[0][0]

        return hook

    def on_norm(self, layer):
        def hook(module, args, output):
            if self.change.stream is not None and self.change.slot.startswith(f"a{layer}."):
                self.other_input = module.forward(args[0] + self.change.stream)

        return hook

    def on_attention(self, layer):
        def hook(module, args, kwargs):
            if self.change.stream is not None and self.change.slot.startswith(f"a{layer}."):
                others = kwargs | ({} if args else {"hidden_states": self.other_input})
                self.capturing = True
                module.forward(*((self.other_input, *args[1:]) if args else ()), **others)
                self.capturing = False

        return hook

    def on_out(self, layer):
        def hook(module, args, output):
            if self.capturing:
                return
            z = args[0].unflatten(-1, (self.heads, -1))
            nothing = module.forward(torch.zeros_like(args[0]))
            for head in range(self.heads):
                alone = torch.zeros_like(z)
                alone[:, :, head] = z[:, :, head]
                self.seen.outputs[f"a{layer}.h{head}"] = (module.forward(alone.flatten(-2)) - nothing)[0]

        return hook

    def before_norm(self, slot):
        def hook(module, args):
            return args[0] + self.change.stream if self.change.slot == slot else None

        return hook

    def on_mlp(self, layer):
        def hook(module, args, output):
            self.seen.outputs[f"m{layer}"] = output[0]

        return hook


def ablated(clean: Seen, corrupted: Seen, ablation: str, what: str, mean: dict | None = None) -> dict:
    """By node: what it changes to, minus what it was."""
    was, other = getattr(clean, what), getattr(corrupted, what)
    if ablation == "mean":
        return {node: mean[node][: len(was[node])] - was[node] for node in was}
    return {node: (other[node] if ablation == "corrupt" else 0) - was[node] for node in was}


def mean_of(seen: list[Seen], what: str) -> dict:
    longest = max(len(s.outputs["input"]) for s in seen)
    return {
        node: torch.stack(
            [
                torch.stack([getattr(s, what)[node][i] for s in seen if len(s.outputs["input"]) > i]).mean(0)
                for i in range(longest)
            ]
        )
        for node in getattr(seen[0], what)
    }


def wiring_of(shape: Shape, merged: bool = False) -> Wiring:
    return Wiring(
        Shape(
            shape.layers,
            shape.heads,
            shape.kv_heads,
            shape.parallel,
            Inputs.MERGED if merged else Inputs.SPLIT,
        )
    )


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


@pytest.fixture(scope="session")
def slow_models(make_model):
    made = {}

    def get(name):
        if name not in made:
            made[name] = Slow(make_model(name))
        return made[name]

    return get


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


def slow_means(outputs: dict, z: dict, shape: Shape) -> Means:
    heads = range(shape.heads)
    return Means(
        outputs["input"],
        [torch.cat([z[f"a{layer}.h{head}"] for head in heads], dim=-1) for layer in range(shape.layers)],
        [outputs[f"m{layer}"] for layer in range(shape.layers)],
    )


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
