"""Which names a model knows: those that it can repeat; tasks are made of them."""

import copy
import json
import math
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import CONFIGS, new_model
from torch import nn
from wirescope.data import PAIR, TASKS, Vocabulary, known_names, make_task, words
from wirescope.extract import FAMILIES, find_device, load_vocabulary
from wirescope.extract import models as models_module
from wirescope.extract.knowledge import chances_of, known_words
from wirescope.extract.models import load_untapped, prepared, tap_model, vocabulary_of

KNOWN = ["Adam", "Alice", "Amy", "Jack", "Kate", "Mary"]
IDS: dict[str, int] = {}


def encode(text: str) -> list[int]:
    """A token for each word, mark and pair of digits."""
    return [IDS.setdefault(word, len(IDS)) for word in re.findall(r"\d\d|\w+|\S", text)]


class Copying(nn.Module):
    """Of the word that followed an earlier `Then`, it says that it comes next, with a chance that each word has."""

    SIZE = 400

    def __init__(self, chances: dict[str, float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.chances, self.lengths = chances, []

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        assert not use_cache
        self.lengths.append(len(input_ids))
        names, then = {token: word for word, token in IDS.items()}, IDS["Then"]
        states = torch.zeros(*input_ids.shape, self.SIZE)
        for document, row in enumerate(input_ids.tolist()):
            assert row[-1] == then
            token = row[row.index(then, 1) + 1]
            assert row.index(then, 1) < len(row) - 1  # it has stood there before
            chance = self.chances.get(names[token], 0.0)
            logit = math.log(chance / (1 - chance) * (self.SIZE - 1)) if chance else -9.0
            states[document, -1, token] = logit
        return SimpleNamespace(last_hidden_state=states)


def copying(chances: dict[str, float]) -> SimpleNamespace:
    return SimpleNamespace(base=Copying(chances), unembed=nn.Identity())


def test_a_word_is_known_that_the_model_repeats():
    asked = ["Zoe", *KNOWN, "Max"]
    assert known_words(copying(dict.fromkeys(KNOWN, 0.9)), encode, asked) == KNOWN
    assert known_words(copying({}), encode, asked) == []
    assert known_words(copying({}), encode, []) == []


def test_a_word_is_known_from_a_chance_of_a_twentieth_on():
    parts = copying({"Adam": 0.051, "Amy": 0.049, "Jack": 0.5})
    assert known_words(parts, encode, ["Amy", "Jack", "Adam"]) == ["Jack", "Adam"]


def test_many_words_are_asked_for_a_few_at_a_time():
    parts = copying({"Victoria": 0.5, "Aaron": 0.5})
    assert known_words(parts, encode, words.NAMES) == ["Aaron", "Victoria"]
    assert max(parts.base.lengths) == 32
    assert sum(parts.base.lengths) == len(words.NAMES)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_model_knows_does_not_depend_on_what_its_weights_are_kept_in(name):
    words = dict(zip(KNOWN, range(20, 26), strict=True)) | dict(
        zip(["Then", "was", "there", "."], range(4), strict=True)
    )
    narrow = new_model(name).to(torch.bfloat16)
    models = [copy.deepcopy(narrow).float(), narrow]
    wide, own = (
        chances_of(
            tap_model(prepared(model, name, FAMILIES[model.config.model_type], find_device())).parts,
            lambda text: [words[word] for word in re.findall(r"\w+|\S", text)],
            KNOWN,
        )
        for model in models
    )
    assert max(wide) > 1.5 * min(wide)
    assert own == pytest.approx(wide, rel=1e-5)
    assert {weight.dtype for weight in narrow.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("known", "used"), [(KNOWN, KNOWN), (KNOWN[:5], KNOWN[:5]), (KNOWN[:4], words.NAMES)]
)
@pytest.mark.parametrize("task", ["ioi", "ioi-swap", "ioi-long"])
def test_tasks_are_made_of_the_names_that_a_model_knows_if_these_are_enough(task, known, used):
    vocabulary = Vocabulary(1000, 64, encode, known=lambda names: [name for name in names if name in known])
    assert known_names(vocabulary) == list(used)
    seen = set()
    for prompt in make_task(task, vocabulary, 300):
        for text in (prompt.text.clean, prompt.text.corrupted):
            seen |= set(re.findall(r"\w+", text)) & set(words.NAMES)
    assert seen <= set(used)
    assert len(seen) >= min(len(used), 20)


def test_there_are_fewer_pairs_for_a_model_that_knows_fewer_names():
    few, all_names = (
        Vocabulary(1000, 64, encode, known=lambda names, some=some: [name for name in names if name in some])
        for some in (KNOWN, words.NAMES)
    )
    assert TASKS["ioi"].count(few) < TASKS["ioi"].count(all_names)
    assert TASKS["greater-than"].count(few) == TASKS["greater-than"].count(all_names)


def test_a_twin_takes_the_names_of_its_dense_model(tmp_path, monkeypatch):
    shutil.copytree(PAIR["tiny"], tmp_path / "twin")
    config = json.loads((tmp_path / "twin/config.json").read_text())
    names = ["Paul", "Aaron", "Alice", "Jack", "Lisa"]
    (tmp_path / "twin/config.json").write_text(json.dumps(config | {"known_names": names}))

    def asked(*_):
        raise AssertionError("the model was asked")

    monkeypatch.setattr(models_module, "known_words", asked)
    of_model = vocabulary_of(load_untapped(str(tmp_path / "twin"), device=find_device()))
    for vocabulary in (of_model, load_vocabulary(str(tmp_path / "twin"))):
        assert known_names(vocabulary) == sorted(names)


def test_a_model_is_loaded_only_where_its_names_are_asked_for_and_once(monkeypatch):
    loads, load = [], models_module.load_untapped

    def counted(name, **options):
        loads.append(name)
        return load(name, **options)

    monkeypatch.setattr(models_module, "load_untapped", counted)
    vocabulary = load_vocabulary("tiny")
    make_task("greater-than", vocabulary, 5)
    assert loads == []
    listed = make_task("ioi", vocabulary, 20)
    assert loads == ["tiny"]
    monkeypatch.undo()
    assert listed == make_task("ioi", vocabulary_of(load_untapped("tiny", device=find_device())), 20)


def test_a_list_of_names_that_is_none_is_not_taken(tmp_path):
    shutil.copytree(PAIR["tiny"], tmp_path / "twin")
    config = json.loads((tmp_path / "twin/config.json").read_text())
    (tmp_path / "twin/config.json").write_text(json.dumps(config | {"known_names": 5}))
    assert known_names(load_vocabulary(str(tmp_path / "twin"))) == known_names(load_vocabulary("tiny"))
