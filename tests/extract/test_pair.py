"""The embedded pair: what is said of it is so, of the very files in the package."""

import json

import pytest
import torch
from wirescope.data import MAIN_TASKS, MODELS, make_task
from wirescope.extract import Settings, extract, find_device
from wirescope.extract.accuracy import accuracy
from wirescope.extract.models import load_untapped, vocabulary_of
from wirescope.extract.training import Student
from wirescope.queries import open_store


@pytest.fixture(scope="module", params=list(MODELS))
def loaded(request):
    return load_untapped(request.param, device=find_device())


@pytest.mark.parametrize("task", MAIN_TASKS)
def test_both_models_do_every_task(loaded, task):
    found = accuracy(loaded.parts, make_task(task, vocabulary_of(loaded), 500, seed=11))
    assert found.accuracy > 0.95
    if task == "greater-than":  # always saying a high number would do for accuracy
        assert found.prob_diff >= 0.8


def test_few_gates_are_open_on_prompts_and_the_models_are_small():
    sparse = load_untapped("tiny-sparse", device=find_device())
    student = Student(sparse.model, sparse.parts, 0.0).eval()
    student.gates.bias.data.copy_(torch.tensor(sparse.model.config.gate_bias))
    counts = torch.zeros(2)
    with torch.no_grad():
        for task in MAIN_TASKS:
            for prompt in make_task(task, vocabulary_of(sparse), 100, seed=11):
                ids = torch.tensor([prompt.clean_ids])
                student(ids, torch.ones_like(ids, dtype=torch.bool))
                counts += torch.stack(student.gates.counts())
    assert counts[0] / counts[1] <= 0.02
    files = [file for model in MODELS.values() for file in model.folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < 2 << 20


def test_the_report_of_its_training_meets_its_constraint():
    report = json.loads((MODELS["tiny-sparse"].folder / "sparsify.json").read_text())
    assert report["open_gates"] <= 0.02
    assert all(sparse <= dense + report["epsilon"] for dense, sparse in report["losses"].values())


def test_corrupted_years_are_no_strangers_to_the_model():
    """01 is an ordinary year to it: also there, later years are likelier than earlier ones."""
    dense = load_untapped("tiny", device=find_device())
    vocabulary = vocabulary_of(dense)
    for prompt in make_task("greater-than", vocabulary, 20, seed=11):
        ids = torch.tensor([prompt.corrupted_ids])
        with torch.no_grad():
            chances = dense.model(ids, use_cache=False).logits[0, -1].softmax(-1)
        years = [vocabulary.encode(f"{year:02d}")[0] for year in range(100)]
        assert chances[years[2:]].sum() > 0.9
        assert chances[years[2:]].max() < 0.2  # nor does it know one answer by heart


def test_the_twins_runs_are_paired(tmp_path):
    for model in MODELS:
        extract(
            model=model,
            task="ioi",
            store=tmp_path / "store",
            limit=4,
            settings=Settings(levels=("head",), method="eap", split=0.5),
        )
    rows = open_store(tmp_path / "store").sql("select * from multipliers").fetchall()
    assert {row[4:6] for row in rows} == {("tiny-sparse-ioi", "tiny-ioi")}


def test_gates_are_in_the_store(tmp_path):
    for model in MODELS:
        extract(
            model=model,
            task="ioi",
            store=tmp_path / "store",
            limit=2,
            settings=Settings(levels=("attention",), method="eap", curves=False),
        )
    shares = dict(
        open_store(tmp_path / "store")
        .sql("select run, avg(gate) from attention_scores group by run")
        .fetchall()
    )
    assert 0 < shares["tiny-sparse-ioi"] < 0.05
    assert shares["tiny-ioi"] in (None, 1.0)
