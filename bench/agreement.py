"""How well first-order scores agree with doing it: the strongest edges of some prompts, ablated one by one.

Also what the strongest edges explain together, ranked by their mean score: single edges can be scored well, and
many of them still be needed. Prints a table; how well it goes depends on the model.

    python bench/agreement.py [--model smollm2] [--task ioi] [--prompts 4] [--edges 24] [--steps 5 --steps 30]
"""

import argparse

import numpy as np
from timing import heading, row
from wirescope.data import make_task
from wirescope.extract import find_device, load_model
from wirescope.extract.ablated import ablate
from wirescope.extract.attribution import Attributor, Batch, to_array
from wirescope.extract.circuits import Row
from wirescope.extract.edge_circuits import EdgeCircuits
from wirescope.graphs import Wiring, ranking
from wirescope.graphs.wiring import Mask

SHARES = (0.01, 0.1, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--edges", type=int, default=24)
    parser.add_argument("--steps", type=int, action="append", help="of eap-ig; more than once to compare")
    options = parser.parse_args()
    model = load_model(options.model, device=find_device())
    prompts = make_task(options.task, model.vocabulary, options.prompts)
    wiring = Wiring(model.shape)
    batch = Batch(prompts, model.parts, "logit_diff")
    ablated = ablate(model.taps, batch, ("edge",), "corrupt", None)
    circuits = EdgeCircuits(model.taps, wiring)

    def measured(prompt: int, kept: Mask) -> float:
        return float(to_array(circuits(ablated, [Row(prompt, kept)]))[0])

    heading(f"{options.model} on {options.task}, {options.prompts} prompts, {wiring.n_edges:,} edges")
    everyone = range(options.prompts)
    nothing, everything = (np.full(wiring.n_edges, kept) for kept in (False, True))
    none, whole = (np.array([measured(p, kept) for p in everyone]) for kept in (nothing, everything))
    for steps in options.steps or (5, 30):
        scores = Attributor(model.taps, wiring, levels=("edge",), steps=steps)(batch).edge
        found = []
        for p, own in zip(everyone, scores, strict=True):
            strongest = ranking(own)[: options.edges]
            done = [measured(p, everything & (np.arange(wiring.n_edges) != e)) - whole[p] for e in strongest]
            found.append(np.corrcoef(own[strongest], done)[0, 1])
        each = ", ".join(f"{value:.2f}" for value in found)
        row(
            f"eap-ig in {steps} steps",
            f"{np.mean(found):.2f}",
            f"Pearson, {options.edges} edges a prompt: {each}",
        )
        for share in SHARES:
            k = round(share * wiring.n_edges)
            kept = circuits.top(ranking(scores.mean(0)), k)
            some = np.array([measured(p, kept) for p in everyone])
            effect = (some - none).sum() / (whole - none).sum()
            row(f"  top {k:,}", f"{effect:.2f}", f"explained together, by {int(kept.sum()):,} kept")


if __name__ == "__main__":
    main()
