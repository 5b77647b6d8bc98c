"""How a pair is trained: on text of the tasks, by a script that can be run again."""

import json
import random
import re
from dataclasses import replace

import pytest
import torch
import train
from corpus import CONTEXT, KINDS, make_tokenizer
from safetensors.torch import load_file
from wirescope.data import TASKS, Vocabulary, make_task


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_of_known_words_and_fit_the_context(kind, tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        ids = tokenizer(KINDS[kind](rng))["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert 2 <= len(ids) <= CONTEXT


@pytest.mark.parametrize("task", TASKS)
def test_the_tasks_run_on_its_tokenizer_unchanged(task, tokenizer):
    vocabulary = Vocabulary(len(tokenizer), CONTEXT, lambda text: list(tokenizer(text)["input_ids"]))
    for prompt in make_task(task, vocabulary, 1_000):
        assert tokenizer.unk_token_id not in prompt.clean_ids + prompt.corrupted_ids


def test_every_year_occurs_also_that_of_corrupted_prompts():
    rng, starts = random.Random(0), set()
    for _ in range(500):
        text = KINDS["greater-than"](rng)
        for century, year, again, later in re.findall(r"year (\d\d)(\d\d) to the year (\d\d)(\d\d)", text):
            assert century == again
            assert year < later
            starts.add(int(year))
    assert starts == set(range(99))


@pytest.mark.slow
def test_the_script_trains_all_three_models_and_makes_nothing_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "DENSE_STEPS", 4)
    monkeypatch.setattr(train, "ECHO_STEPS", 2)
    monkeypatch.setattr(train, "DOCUMENTS", 20)
    monkeypatch.setattr(train, "HELD_OUT", 4)
    monkeypatch.setattr(train, "RECIPE", replace(train.RECIPE, steps=2, evaluate_every=1, epsilon=5.0))
    monkeypatch.setattr("sys.argv", ["train.py", "--out", str(tmp_path / "pair")])
    tables = []
    for _ in range(2):
        train.main()
        tables.append(capsys.readouterr().out.splitlines()[:-1])  # but the time
    assert tables[0] == tables[1]
    header, *rows = tables[0]
    assert header.split() == ["tiny", "tiny-sparse", "tiny-control"]
    assert rows[-1].split()[:3] == ["open", "gates", "1.0000"]
    for name in ("tiny", "tiny-sparse", "tiny-control"):
        assert (
            load_file(tmp_path / "pair" / name / "model.safetensors")["transformer.wte.weight"].dtype
            == torch.float16
        )
        config = json.loads((tmp_path / "pair" / name / "config.json").read_text())
        assert ("gate_bias" in config) == (name == "tiny-sparse")
        assert config.get("base_model") == (None if name == "tiny" else str(tmp_path / "pair/tiny"))
