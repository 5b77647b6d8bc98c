from dataclasses import replace

from wirescope.data import MEMBERSHIP, Run
from wirescope.graphs import Shape
from wirescope.viz.captions import run_facts


def run(**known: object) -> Run:
    return Run(run="a", model="m", shape=Shape(2, 2), prompts=1, levels=("head",), **known)


def test_a_caption_says_of_an_imported_circuit_what_is_known_of_it():
    for known, said in (
        ({"source": "c.json"}, "Scores are of an imported circuit (c.json), method and metric not stated."),
        (
            {"source": "c.json", "method": "EAP-IG"},
            "Scores are by EAP-IG, of an imported circuit (c.json), metric not stated.",
        ),
        (
            {"source": "c.json", "method": "EAP-IG", "metric": "kl"},
            "Scores are by EAP-IG, of the metric kl, of an imported circuit (c.json).",
        ),
        (
            {"source": "c.pth", "sign": MEMBERSHIP},
            "Edges are those of an imported circuit (c.pth), which has no scores.",
        ),
        (
            {"method": "eap-ig", "steps": 5, "metric": "logit_diff", "ablation": "zero"},
            "Scores are by eap-ig in 5 steps, of the metric logit_diff, with the ablation zero.",
        ),
    ):
        assert run_facts([run(**known)], "head") == [said]


def test_where_runs_were_scored_differently_a_caption_says_which_was_how():
    known = {"method": "eap", "metric": "kl"}
    two = [replace(run(ablation=ablation, **known), run=f"a-{ablation}") for ablation in ("zero", "mean")]
    said = "Scores are by eap, of the metric kl, with the ablation {}."
    assert run_facts(two, "head") == [
        f"a-{ablation}: {said.format(ablation)}" for ablation in ("zero", "mean")
    ]
    assert run_facts([two[0], two[0]], "head") == [said.format("zero")]
