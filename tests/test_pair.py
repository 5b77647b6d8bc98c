"""How a pair is trained: on text of the tasks, by a script that can be run again."""

import json
import random
import re
from dataclasses import replace

import compare
import pytest
import torch
import train
from corpus import CONTEXT, KINDS, make_tokenizer
from safetensors.torch import load_file
from wirescope.data import LEVELS, MAIN_TASKS, PAIR, TASKS, Vocabulary, make_task


@pytest.fixture(autouse=True)
def threads():
    """The scripts take one thread; bytes of what other tests write depend on how many there are."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("between", ["to the year", "to"])
def test_every_year_occurs_also_that_of_corrupted_prompts(between):
    rng, starts = random.Random(0), set()
    for _ in range(1_000):
        text = KINDS["greater-than"](rng)
        for century, year, again, later in re.findall(rf"(\d\d)(\d\d) {between} (\d\d)(\d\d)", text):
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


@pytest.mark.slow
def test_models_are_compared_with_their_dense_model_at_all_levels_and_a_copy_of_it_needs_as_much(
    tmp_path, monkeypatch, capsys
):
    pair = tmp_path / "pair"
    for name, target in (("tiny", "tiny"), ("tiny-sparse", "tiny-sparse"), ("tiny", "tiny-control")):
        train.copy(PAIR[name], pair / target, base=str(pair / "tiny"))
    config = json.loads((pair / "tiny-control/config.json").read_text())
    (pair / "tiny-control/config.json").write_text(json.dumps(config | {"base_model": str(pair / "tiny")}))
    monkeypatch.setattr(compare, "PROMPTS", 6)
    monkeypatch.setattr("sys.argv", ["compare.py", str(pair), "--tasks", "greater-than"])
    compare.main()
    said = capsys.readouterr().out.splitlines()
    headed = [line.split(" | ")[0].lstrip("| ") for line in said if line and not line.startswith("|---")]
    levels = [f"greater-than, {level}" for level in LEVELS]
    assert headed == [
        label
        for protocol in ("published", "contrast")
        for model in ("tiny-sparse", "tiny-control")
        for label in (f"{protocol}, {model}", *levels)
    ]
    cells = [line.split(" | ")[1].removesuffix(" |") for line in said if "greater-than," in line]
    assert all(re.fullmatch(r"\d+/\d+ = [\d.]+x \([\w. ]+\)", cell) for cell in cells), cells
    times = [float(cell.split(" = ")[1].split("x")[0]) for cell in cells]
    assert times[3:6] == times[9:12] == [1.0] * 3
    assert times[0] > 2 and times[6] != 1.0


def test_a_pair_that_is_embedded_is_one_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "EMBEDDED", tmp_path / "data/models")
    for name, config in (("tiny", {}), ("tiny-sparse", {"base_model": "pairs/seed-5/tiny"})):
        (tmp_path / "trained" / name).mkdir(parents=True)
        (tmp_path / "trained" / name / "config.json").write_text(json.dumps(config))
        (tmp_path / "trained" / name / "weights").write_text(name)
    for _ in range(2):  # also over one that is there
        train.embed(tmp_path / "trained/tiny", tmp_path / "trained/tiny-sparse")
    embedded = tmp_path / "data/models"
    assert json.loads((embedded / "tiny/config.json").read_text()) == {}
    assert json.loads((embedded / "tiny-sparse/config.json").read_text()) == {"base_model": "tiny"}
    assert (embedded / "tiny-sparse/weights").read_text() == "tiny-sparse"


def test_the_embedded_pair_is_small_and_names_its_dense_model():
    files = [file for folder in PAIR.values() for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < 2_000_000
    dense, sparse = (json.loads((folder / "config.json").read_text()) for folder in PAIR.values())
    assert "gate_bias" not in dense
    assert sparse["base_model"] == "tiny"
    assert [len(row) for row in sparse["gate_bias"]] == [sparse["n_head"]] * sparse["n_layer"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIR)
def test_the_embedded_pair_does_the_tasks_and_the_sparse_one_with_few_open_gates(name):
    rng = random.Random("held out")
    found = dict(
        train.measures(PAIR[name], {kind: [make(rng) for _ in range(50)] for kind, make in KINDS.items()})
    )
    for task in MAIN_TASKS:
        assert found[f"accuracy, {task}"] > 0.95
        assert found[f"top1, {task}"] > 0.95
    assert found["prob_diff, greater-than"] >= 0.8
    if name == "tiny-sparse":
        assert found["open gates"] <= 0.02
    else:
        assert found["open gates"] == 1
