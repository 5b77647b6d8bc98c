"""A slow, obvious model, to test fast ones against.

`Slow` runs the Hugging Face model as it is, on one prompt, in terms of its own code: it learns what a head's query is
by watching what transformers hands to the attention function, and what a head writes by giving the output projection
that head's z alone. It shares nothing with what it tests but the weights and the names of nodes and edges.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface
from wirescope.data import Prompt
from wirescope.extract.attribution import Means
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
class Kept:
    """A circuit at one level: what a run keeps of its units, and what all others carry instead, by node."""

    edges: Collection[str] | None = None  # their names
    heads: Collection[str] | None = None
    pairs: dict[str, Tensor] | None = None  # by head, [query, key]
    instead: dict[str, Tensor] = field(default_factory=dict)  # outputs, z, or messages
    sources: dict[str, list[str]] = field(default_factory=dict)  # by slot, all nodes that write before it


@dataclass
class Seen:
    """What one run did: outputs of nodes [position, d_model], z and messages of heads."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    z: dict[str, Tensor] = field(default_factory=dict)  # [position, d_head]
    messages: dict[str, Tensor] = field(default_factory=dict)  # [query, key, d_head]
    metric: float = 0.0
    log_probabilities: Tensor | None = None
    logits: Tensor | None = None  # [position, token]


class Slow:
    def __init__(self, model) -> None:
        self.model = model
        layers, norm, attention, out, mlp_norm, mlp, last = PARTS.get(model.config.model_type, LLAMA_LIKE)
        self.heads = model.config.num_attention_heads
        AttentionInterface.register("slow", self.attend)
        model.set_attn_implementation("slow")
        self.norms = [getattr(layer, norm) for layer in model.get_submodule(layers)]
        for i, layer in enumerate(model.get_submodule(layers)):
            layer.register_forward_pre_hook(self.on_block(i))
            getattr(layer, norm).register_forward_hook(self.on_norm(i))
            getattr(layer, attention).register_forward_pre_hook(self.on_attention(i), with_kwargs=True)
            getattr(layer, attention).get_submodule(out).register_forward_hook(self.on_out(i))
            getattr(layer, mlp_norm).register_forward_pre_hook(self.before_norm(f"m{i}"))
            getattr(layer, mlp).register_forward_hook(self.on_mlp(i))
        model.get_submodule(last).register_forward_pre_hook(self.before_norm("logits"))

    @torch.no_grad()
    def run(
        self, ids, prompt: Prompt, change=None, metric="logit_diff", embeddings=None, clean=None, kept=None
    ) -> Seen:
        AttentionInterface.register("slow", self.attend)
        self.change, self.seen, self.capturing, self.captured = change or Change(), Seen(), False, None
        self.kept, self.biases, self.own = kept or Kept(), {}, {}
        ids = torch.tensor([ids])
        embedded = self.model.get_input_embeddings()(ids) if embeddings is None else embeddings
        self.seen.logits = self.model(inputs_embeds=embedded, use_cache=False).logits[0].float()
        logits = self.seen.logits[-1]
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

    def whole(self, ids, prompt: Prompt, does=lambda answer: {}, metric="logit_diff") -> float:
        """The metric of answers of any length: each is run behind the prompt, and all its tokens are looked up.

        `does` says what is done to the run of an answer.
        """

        def log_p(answer):
            seen = self.run((*ids, *answer[:-1]), prompt, **does(answer))
            steps = seen.logits.log_softmax(-1)[len(ids) - 1 :]
            return sum(steps[at, token] for at, token in enumerate(answer))

        correct, wrong = (
            torch.stack([log_p(answer) for answer in answers])
            for answers in (prompt.correct_answers, prompt.wrong_answers)
        )
        if metric == "prob_diff":
            return float(correct.exp().sum() - wrong.exp().sum())
        return float(correct.logsumexp(0) - wrong.logsumexp(0))

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
        for (head, letter), read in self.own.items():
            (query, key, value)[letter][:, head] = read
        i, j = torch.meshgrid(torch.arange(query.shape[2]), torch.arange(query.shape[2]), indexing="ij")
        visible = (j <= i) & (j > i - (sliding_window or 1_000))
        biases = getattr(module.config, "gate_bias", None)
        z = torch.zeros_like(query)
        for head in range(self.heads):
            logits = query[0, head] @ key[0, head].T * scaling  # [query, key]
            weights = torch.where(visible, logits, -torch.inf).softmax(-1)
            if biases is not None:
                weights = torch.where(logits + biases[layer][head] > 0, weights, 0.0)
            name = f"a{layer}.h{head}"
            messages = weights[:, :, None] * value[0, head]
            if self.kept.pairs is not None:
                own = self.kept.pairs[name][:, :, None]
                messages = torch.where(own, messages, self.kept.instead[name])
            self.seen.messages[name] = messages
            z[0, head] = messages.sum(1)
            if self.kept.heads is not None and name not in self.kept.heads:
                z[0, head] = self.kept.instead[name]
            if self.change.slot == name and self.change.z is not None:
                z[0, head] += self.change.z
            self.seen.z[name] = z[0, head]
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
                self.capture(module, self.other_input, args, kwargs)
            if self.kept.edges is not None:
                self.own = {}
                for head in range(self.heads):
                    for letter in range(3):
                        normed = self.norms[layer].forward(self.stream(f"a{layer}.h{head}", letter)[None])
                        self.capture(module, normed, args, kwargs)
                        self.own[head, letter] = self.captured[letter][:, head]

        return hook

    def capture(self, module, normed, args, kwargs):
        """See what attention would be handed if it read this instead."""
        self.capturing = True
        if args:
            module.forward(normed, *args[1:], **kwargs)
        else:
            module.forward(**kwargs | {"hidden_states": normed})
        self.capturing = False

    def stream(self, node, letter=0):
        """What a slot reads in a circuit of edges: what each node before it does here, or carries instead."""
        slot = node if node in self.kept.sources else f"{node}<{LETTERS[letter]}>"
        before = self.kept.sources[slot]
        total = sum(
            (self.seen.outputs if f"{source}->{slot}" in self.kept.edges else self.kept.instead)[source]
            for source in before
        )
        layers = {int(source[1:].partition(".")[0]) for source in before if source.startswith("a")}
        return total + sum(self.biases[layer] for layer in layers)

    def on_out(self, layer):
        def hook(module, args, output):
            if self.capturing:
                return
            z = args[0].unflatten(-1, (self.heads, -1))
            nothing = module.forward(torch.zeros_like(args[0]))
            self.biases[layer] = nothing[0]
            for head in range(self.heads):
                alone = torch.zeros_like(z)
                alone[:, :, head] = z[:, :, head]
                self.seen.outputs[f"a{layer}.h{head}"] = (module.forward(alone.flatten(-2)) - nothing)[0]

        return hook

    def before_norm(self, slot):
        def hook(module, args):
            if self.kept.edges is not None:
                return self.stream(slot)[None]
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


def slow_means(outputs: dict, z: dict, shape: Shape) -> Means:
    heads = range(shape.heads)
    return Means(
        outputs["input"],
        [torch.cat([z[f"a{layer}.h{head}"] for head in heads], dim=-1) for layer in range(shape.layers)],
        [outputs[f"m{layer}"] for layer in range(shape.layers)],
    )


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
