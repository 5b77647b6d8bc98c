"""Tasks, with tokenizers for which a word is a token."""

import re
import signal
from collections.abc import Collection

import pytest
from wirescope.data import TASKS, Vocabulary, make_task, tasks
from wirescope.graphs import InputError

WORD = re.compile(r"\w+|[^\w\s]")
FIVE = ("Mary", "John", "Anna", "Paul", "Tom")
# who is named, in the order of the text: two, and then one of them again
NAMED = re.compile(r"^(?:Then,|When|After|While|Friends) (\w+) and (\w+) .*[.,] (\w+) (?:gave|decided)")


def words(known: Collection[str] | None = None) -> Vocabulary:
    """A tokenizer with a token for each word; of names, it has the known ones and spells the others."""
    ids: dict[str, int] = {}
    unknown = set() if known is None else set(tasks._NAMES) - set(known)

    def encode(text: str) -> list[int]:
        tokens = []
        for word in WORD.findall(text):
            tokens += [word[:1], word[1:]] if word in unknown else [word]
        return [ids.setdefault(token, len(ids)) for token in tokens]

    return Vocabulary(1000, 64, encode)


@pytest.fixture(scope="module")
def prompts():
    return make_task("ioi", words(), 300)


def test_there_are_as_many_different_prompts_as_asked_for(prompts):
    assert len(prompts) == 300
    assert len({prompt.text for prompt in prompts}) == 300


def test_clean_and_corrupted_are_of_one_length(prompts):
    assert all(len(prompt.clean_ids) == len(prompt.corrupted_ids) for prompt in prompts)


def test_the_name_that_is_repeated_is_wrong_and_the_other_correct(prompts):
    places = set()
    for prompt in prompts:
        first, second, again = NAMED.match(prompt.text.clean).groups()
        assert first != second
        assert again in (first, second)
        other = second if again == first else first
        assert prompt.text.wrong == (f" {again}",)
        assert prompt.text.correct == (f" {other}",)
        places.add(again == first)
    assert places == {True, False}  # either may be named first


def test_answers_are_tokens_of_the_clean_prompt_alone(prompts):
    for prompt in prompts:
        assert prompt.clean_ids.count(*prompt.correct_ids) == 1
        assert prompt.clean_ids.count(*prompt.wrong_ids) == 2
        assert not {*prompt.correct_ids, *prompt.wrong_ids} & set(prompt.corrupted_ids)


def test_the_corrupted_prompt_differs_in_three_other_names_only(prompts):
    for prompt in prompts:
        clean, corrupted = (WORD.findall(text) for text in (prompt.text.clean, prompt.text.corrupted))
        names = {*NAMED.match(prompt.text.clean).groups()}
        others = NAMED.match(prompt.text.corrupted).groups()
        assert len(names | set(others)) == 5
        assert [(a, b) for a, b in zip(clean, corrupted, strict=True) if a != b] == list(
            zip(NAMED.match(prompt.text.clean).groups(), others, strict=True)
        )


def test_all_templates_names_places_and_things_are_drawn(prompts):
    text = " ".join(prompt.text.clean for prompt in prompts)
    assert set(re.findall("Then|When|After|While|Friends|talk", text)) == {
        "Then",
        "When",
        "After",
        "While",
        "Friends",
        "talk",
    }
    drawn = set(WORD.findall(text))
    assert set(tasks._PLACES) <= drawn
    assert set(tasks._OBJECTS) <= drawn
    assert len(set(tasks._NAMES) & drawn) > 100
    assert "{" not in text


def test_a_seed_gives_the_same_prompts_again(prompts):
    assert make_task("ioi", words(), 300) == prompts
    assert make_task("ioi", words(), 300, seed=0) == prompts


def test_a_longer_list_begins_with_the_shorter(prompts):
    assert make_task("ioi", words(), 40) == prompts[:40]


def test_another_seed_gives_other_prompts(prompts):
    other = make_task("ioi", words(), 300, seed=1)
    assert len({prompt.text for prompt in other} & {prompt.text for prompt in prompts}) < 3


def test_names_are_those_that_are_one_token():
    for prompt in make_task("ioi", words(FIVE), 50):
        named = NAMED.match(prompt.text.clean).groups() + NAMED.match(prompt.text.corrupted).groups()
        assert set(named) == set(FIVE)


@pytest.mark.parametrize("known", [FIVE[:4], FIVE[:1], ()], ids=len)
def test_a_tokenizer_that_knows_fewer_than_five_names_is_told_which(known):
    with pytest.raises(InputError) as caught:
        make_task("ioi", words(known), 3)
    assert "'ioi' needs five names that are one token each" in str(caught.value)
    assert f"has {len(known)} of" in str(caught.value)
    assert all(name in str(caught.value) for name in known or ["none"])


@pytest.mark.parametrize("known", [FIVE[:4], (*FIVE, "Peter")], ids=["too few", "enough"])
def test_names_that_a_tokenizer_does_not_tell_apart_are_no_names(known):
    """A tokenizer may have a token for whatever it does not know, the same for each of these names."""
    ids: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        seen = (
            "<unk>" if word in tasks._NAMES and word not in known else word for word in WORD.findall(text)
        )
        return [ids.setdefault(word, len(ids)) for word in seen]

    if len(known) < 5:
        with pytest.raises(InputError, match="needs five names that are one token each"):
            make_task("ioi", Vocabulary(1000, 64, encode), 3)
    else:
        made = make_task("ioi", Vocabulary(1000, 64, encode), 100)
        assert not any(ids.get("<unk>") in prompt.clean_ids + prompt.corrupted_ids for prompt in made)


def test_an_unknown_task_gets_the_nearest_name():
    with pytest.raises(
        InputError, match=r"There is no task 'iio'; the tasks are ioi,.* Did you mean 'ioi'\?"
    ):
        make_task("iio", words(), 3)
    assert list(TASKS) == ["ioi"]


def test_a_task_needs_a_tokenizer():
    with pytest.raises(InputError, match="The task 'ioi' is made of text, but the model has no tokenizer"):
        make_task("ioi", Vocabulary(1000, 64, None), 3)


def test_prompts_that_the_model_cannot_take_are_refused():
    with pytest.raises(InputError, match=r"Prompt \d+ has 1\d tokens, more than the 12 that the model takes"):
        make_task("ioi", Vocabulary(1000, 12, words().encode), 100)


@pytest.fixture
def few(monkeypatch):
    """One template, place and thing: of five names, 240 prompts."""
    monkeypatch.setattr(tasks, "_IOI", tasks._IOI[:1])
    monkeypatch.setattr(tasks, "_PLACES", tasks._PLACES[:1])
    monkeypatch.setattr(tasks, "_OBJECTS", tasks._OBJECTS[:1])
    return 5 * 4 * 3 * 2 * 1 * 2


@pytest.fixture
def impatient():
    """No test here has a reason to take this long."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_all_prompts_that_there_are_can_be_had(few):
    assert len({prompt.text for prompt in make_task("ioi", words(FIVE), few)}) == few


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("many", [241, 10**9])
def test_asking_for_more_than_there_are_says_how_many_there_are(few, many):
    with pytest.raises(InputError, match=rf"'ioi' has only about {few} different prompts .* not {many}\."):
        make_task("ioi", words(FIVE), many)
