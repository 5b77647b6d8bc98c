"""What curves cost: circuits in forward passes of the bare model, measured in turns; memory above the model's own.

GPT-2 small's shape with random weights, 8 pairs x 16 tokens that begin with one token in common. What a circuit of
edges costs depends on which edges it has, so there are two rankings: by the scores of this very model (its weights are
random: MLPs and values come first), and by the published ones of GPT-2 small on IOI. The bare forward is that of the
blocks, without logits; the plain one is the model's own call, with logits at every position.

    python bench/curves.py [--rounds 5] [--layers N]
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from timing import by_round, heading, memory_during, row
from wirescope.data import EMBEDDED, read_circuit
from wirescope.extract.ablated import Ablated, ablate
from wirescope.extract.attribution import Attributor
from wirescope.extract.circuits import AttentionCircuits, Circuits, HeadCircuits, Row
from wirescope.extract.curves import rows_at_a_time
from wirescope.extract.edge_circuits import EdgeCircuits
from wirescope.extract.job import PROMPTS_AT_A_TIME
from wirescope.graphs import Wiring, ranking

from extract import bare_model, batch, make, make_prompts

POINTS = 20
ROWS = rows_at_a_time(PROMPTS_AT_A_TIME)
LEVELS = ("edge", "head", "attention")
Job = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, help="fewer layers, to try it out")
    parser.add_argument("--memory", choices=LEVELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    bench = Bench(options.layers)
    if options.memory:
        print(memory_during(bench.curve(options.memory, bench.shuffled(options.memory))))
        return
    heading(f"curves, GPT-2 small, {bench.wiring.n_edges:,} edges, 8 pairs x 16 tokens, {POINTS} sizes")
    for level in LEVELS:
        arguments = ["--memory", level, *(["--layers", str(options.layers)] if options.layers else [])]
        done = subprocess.run(
            [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
        )
        row(f"{level} curve, memory", f"{float(done.stdout):.0f} MB", "above the model, at the peak")
    before = torch.get_num_threads()
    for threads in dict.fromkeys((1, before)):
        torch.set_num_threads(threads)
        bench.measure(options.rounds, f"{threads} thread{'s' if threads > 1 else ''}")
    torch.set_num_threads(before)


class Bench:
    """A model, and eight prompts."""

    def __init__(self, layers: int | None) -> None:
        self.layers, self.model = layers, make("small", layers)
        self.wiring, self.taps = Wiring(self.model.shape), self.model.taps
        self.prompts = make_prompts(16, same=1)
        heads = self.model.shape.layers * self.model.shape.heads
        self.units = {"edge": self.wiring.n_edges, "head": heads, "attention": heads * 16 * 17 // 2}
        self.circuits: dict[str, Circuits] = {
            "edge": EdgeCircuits(self.taps, self.wiring),
            "head": HeadCircuits(self.taps),
            "attention": AttentionCircuits(self.taps),
        }

    def ablated(self, level: str, ablation: str = "corrupt") -> Ablated:
        return ablate(self.taps, batch(self.prompts, self.model), (level,), ablation, None)

    def shuffled(self, level: str) -> list[np.ndarray]:
        return [np.random.default_rng(0).permutation(self.units[level])] * 8

    def curve(self, level: str, orders: Sequence[np.ndarray], ablation: str = "corrupt") -> Job:
        """A curve as extraction does it, its ablated run included: small circuits first, some rows at a time."""

        def job() -> None:
            ablated, rows = self.ablated(level, ablation), []
            distinct = {id(order): order for order in orders}
            for k in self.sizes(level):
                masks = {own: self.circuits[level].top(order, k) for own, order in distinct.items()}
                rows += [Row(i, masks[id(order)]) for i, order in enumerate(orders)]
            rows = [own for own in rows if own.kept.any() and not own.kept.all()]  # the others are known
            for first in range(0, len(rows), ROWS):
                self.circuits[level](ablated, rows[first : first + ROWS])

        return job

    def small(self, order: np.ndarray) -> Job:
        """The largest circuit of the curve with at most 100 edges, without the ablated run."""
        k = max(k for k in self.sizes("edge") if k <= 100)
        ablated, kept = self.ablated("edge"), self.circuits["edge"].top(order, k)
        return lambda: self.circuits["edge"](ablated, [Row(i, kept) for i in range(8)])

    def sizes(self, level: str) -> list[int]:
        return np.unique(np.geomspace(1, self.units[level], POINTS).round().astype(int)).tolist()

    def measure(self, rounds: int, said: str) -> None:
        """Time the curves and the passes of the bare model in turns."""
        bare = bare_model("small", self.layers)
        ids = torch.tensor([prompt.corrupted_ids for prompt in self.prompts])
        scores = Attributor(self.taps, self.wiring, levels=LEVELS, steps=5)(batch(self.prompts, self.model))
        zero = Attributor(self.taps, self.wiring, levels=("edge",), steps=5, ablation="zero")(
            batch(self.prompts, self.model)
        )
        each, each_zero = ([ranking(s) for s in found.edge] for found in (scores, zero))
        own, published = ranking(scores.edge.mean(0)), read_circuit(EMBEDDED)
        theirs = ranking(published.scores) if published.wiring == self.wiring else own
        edges, heads = len(self.sizes("edge")), len(self.sizes("head"))
        curves: dict[str, tuple[Job, int]] = {
            "edge": (self.curve("edge", [own] * 8), edges),
            "edge, published ranking": (self.curve("edge", [theirs] * 8), edges),
            "edge, each prompt's ranking": (self.curve("edge", each), edges),
            "edge, each prompt's ranking, zero": (self.curve("edge", each_zero, "zero"), edges),
            "at most 100 edges": (self.small(own), 1),
            "  published ranking": (self.small(theirs), 1),
            "head": (self.curve("head", [ranking(scores.head.mean(0))] * 8), heads),
            "attention": (
                self.curve("attention", [ranking(s.score.ravel()) for s in scores.attention]),
                len(self.sizes("attention")),
            ),
        }
        passes: list[Job] = [
            lambda: bare.transformer(ids, use_cache=False),
            lambda: bare(ids, use_cache=False),
        ]
        jobs = [*passes, *(job for job, _ in curves.values())]
        with torch.no_grad():
            for job in jobs:
                job()  # the first time is slower
            one, with_logits, *ours = by_round(jobs, rounds)
        row(
            f"bare forward, {said}",
            f"{median(one):.3f} s",
            f"plain, with logits: {median(with_logits):.3f} s",
        )
        for (name, (_, circuits)), times in zip(curves.items(), ours, strict=True):
            ratios = [
                median(t / circuits / f for t, f in zip(times, unit, strict=True))
                for unit in (one, with_logits)
            ]
            row(
                f"  {name}",
                f"{median(times):.3f} s",
                "a circuit {:.2f} x bare, {:.2f} x plain".format(*ratios),
            )


if __name__ == "__main__":
    main()
