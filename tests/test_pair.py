"""The text that a pair is trained on is text of the tasks."""

import random
import re

import pytest
from corpus import CONTEXT, KINDS, make_tokenizer
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
