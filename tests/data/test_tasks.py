"""Tasks, with tokenizers for which a word is a token."""

import random
import re
import signal
from collections.abc import Collection
from math import perm
from pathlib import Path

import pytest
from wirescope.data import MAIN_TASKS, TASKS, Vocabulary, example, make_task, pair_lines, read_pairs, tasks
from wirescope.data import words as lists
from wirescope.errors import InputError

WORD = re.compile(r"\d\d|\w+|[^\w\s]")
FIVE = ("Mary", "John", "Anna", "Paul", "Tom")
# who is named, in the order of the text: two, and then one of them again
NAMED = re.compile(r"^(?:Then,|When|After|While|Friends) (\w+) and (\w+) .*[.,] (\w+) (?:gave|decided)")


def words(known: Collection[str] | None = None) -> Vocabulary:
    """A tokenizer with a token for each word; of names, it has the known ones and spells the others."""
    ids: dict[str, int] = {}
    unknown = set() if known is None else set(lists.NAMES) - set(known)

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
    assert set(lists.PLACES) <= drawn
    assert set(lists.OBJECTS) <= drawn
    assert len(set(lists.NAMES) & drawn) > 100
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
        seen = ("<unk>" if word in lists.NAMES and word not in known else word for word in WORD.findall(text))
        return [ids.setdefault(word, len(ids)) for word in seen]

    if len(known) < 5:
        with pytest.raises(InputError, match="needs five names that are one token each"):
            make_task("ioi", Vocabulary(1000, 64, encode), 3)
    else:
        made = make_task("ioi", Vocabulary(1000, 64, encode), 100)
        assert not any(ids.get("<unk>") in prompt.clean_ids + prompt.corrupted_ids for prompt in made)


def test_an_unknown_task_gets_the_nearest_name():
    with pytest.raises(
        InputError, match=r"There is no task 'iio'; the tasks are greater-than, ioi,.* Did you mean 'ioi'\?"
    ):
        make_task("iio", words(), 3)
    assert set(MAIN_TASKS) < set(TASKS)


def test_a_task_needs_a_tokenizer():
    with pytest.raises(InputError, match="The task 'ioi' is made of text, but the model has no tokenizer"):
        make_task("ioi", Vocabulary(1000, 64, None), 3)


def test_prompts_that_the_model_cannot_take_are_refused():
    with pytest.raises(InputError, match=r"Prompt \d+ has 1\d tokens, more than the 12 that the model takes"):
        make_task("ioi", Vocabulary(1000, 12, words().encode), 100)


@pytest.fixture
def few(monkeypatch):
    """One template, place and thing: of five names, 240 prompts."""
    monkeypatch.setitem(TASKS, "ioi", tasks._ioi_task("ioi", "", lists.IOI[:1]))
    monkeypatch.setattr(lists, "PLACES", lists.PLACES[:1])
    monkeypatch.setattr(lists, "OBJECTS", lists.OBJECTS[:1])
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
    with pytest.raises(InputError, match=rf"'ioi' has {few} different prompts .*: {many:,} are too many\."):
        make_task("ioi", words(FIVE), many)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("task", TASKS)
def test_a_thousand_million_pairs_are_refused_at_once(task):
    with pytest.raises(
        InputError, match=rf"'{task}' has [\d,]+ different prompts .*: 1,000,000,000 are too many"
    ):
        make_task(task, words(), 10**9)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_knows_how_many_pairs_it_has(monkeypatch, task):
    """Drawn until nothing new comes, of short lists."""
    for name in ("IOI", "IOI_LONG", "PLACES", "OBJECTS", "EVENTS", "FUNCTIONS"):
        monkeypatch.setattr(lists, name, getattr(lists, name)[: 1 if "IOI" in name else 2])
    monkeypatch.setattr(lists, "NAMES", lists.NAMES[:5])
    monkeypatch.setattr(lists, "MEANWHILE", lists.MEANWHILE[:3])
    monkeypatch.setattr(tasks, "_first_years", lambda years: years[2:6])
    templates, between = (lists.IOI_LONG, 1) if "long" in task else (lists.IOI, 0)
    own = tasks._ioi_task(task, "", templates, between=between, swap="swap" in task)
    made = own if "ioi" in task else TASKS[task]
    vocabulary = words()
    if task == "docstring":  # eight arguments and seven words are too many to draw all of
        arguments, about = len(lists.ARGUMENTS), len(lists.DESCRIPTIONS)
        assert made.count(vocabulary) == 2 * perm(arguments, 8) * perm(about, 7)
        return
    drawn = made.pairs(random.Random(1), vocabulary)
    count = made.count(vocabulary)
    assert len({next(drawn) for _ in range(15 * count)}) == count


def differing(prompt) -> list[tuple[str, str]]:
    pair = (WORD.findall(text) for text in (prompt.text.clean, prompt.text.corrupted))
    return [(a, b) for a, b in zip(*pair, strict=True) if a != b]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_drawn_by_seed_and_of_one_length(task):
    made = make_task(task, words(), 200)
    assert len({prompt.text for prompt in made}) == 200
    assert all(len(prompt.clean_ids) == len(prompt.corrupted_ids) for prompt in made)
    assert all(prompt.clean_ids != prompt.corrupted_ids for prompt in made)
    assert make_task(task, words(), 50) == made[:50]
    assert make_task(task, words(), 50, seed=1) != made[:50]
    assert "{" not in "".join(prompt.text.clean + prompt.text.corrupted for prompt in made)


@pytest.mark.parametrize("task", ["ioi", "ioi-long"])
def test_in_a_swap_the_two_names_change_roles(task):
    for plain, swap in zip(make_task(task, words(), 50), make_task(f"{task}-swap", words(), 50), strict=True):
        assert (plain.text.clean, plain.text.correct) == (swap.text.clean, swap.text.correct)
        (right,), (wrong,) = swap.text.correct, swap.text.wrong
        assert differing(swap) == [(wrong.strip(), right.strip())]


def test_between_the_names_of_a_long_prompt_are_three_sentences_that_name_nobody():
    for prompt in make_task("ioi-long", words(), 100):
        text = prompt.text.clean
        found = [sentence for sentence in lists.MEANWHILE if sentence in text]
        assert len(found) == 3
        assert not set(lists.NAMES) & set(WORD.findall(" ".join(found)))
        (right,), (wrong,) = prompt.text.correct, prompt.text.wrong
        named = [word for word in WORD.findall(text) if word in lists.NAMES]
        assert sorted(named) == sorted([right.strip(), wrong.strip(), wrong.strip()])
        before, after = text[: text.index(found[0])], text[text.index(found[-1]) :]
        assert right.strip() not in after.split()
        assert right in before


def test_a_year_is_right_if_it_is_later_in_the_same_century():
    starts = set()
    for prompt in make_task("greater-than", words(), 300):
        event, century, year, again = re.fullmatch(
            r"The (\w+) lasted from the year (\d\d)(\d\d) to the year (\d\d)", prompt.text.clean
        ).groups()
        assert event in lists.EVENTS
        assert century == again
        assert prompt.text.correct == tuple(f"{later:02d}" for later in range(int(year) + 1, 100))
        assert prompt.text.wrong == tuple(f"{earlier:02d}" for earlier in range(int(year) + 1))
        assert differing(prompt) == [(year, "01")]
        starts.add(int(year))
    assert min(starts) >= 2
    assert max(starts) == 98


@pytest.mark.parametrize(
    ("pattern", "tokens"), [(r"\d|\w+|[^\w\s]", 4), (r"\d+|\w+|[^\w\s]", 1)], ids=["digits", "whole"]
)
def test_a_tokenizer_that_makes_other_tokens_of_years_is_told_so(pattern, tokens):
    ids: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        return [ids.setdefault(word, len(ids)) for word in re.findall(pattern, text)]

    with pytest.raises(
        InputError, match=rf"'greater-than' needs years .* this tokenizer makes {tokens} of 1732"
    ):
        make_task("greater-than", Vocabulary(1000, 64, encode), 3)


def test_years_that_a_tokenizer_has_as_a_whole_are_neither_asked_for_nor_answers():
    ids: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        return [ids.setdefault(word, len(ids)) for word in re.findall(r"17[5-7]\d|\d\d|\w+|\S", text)]

    for prompt in make_task("greater-than", Vocabulary(1000, 64, encode), 500):
        if "year 17" in prompt.text.clean:
            numbers = {*prompt.text.correct, *prompt.text.wrong}
            assert numbers == {f"{year:02d}" for year in range(100) if not 50 <= year < 80}
            assert not 50 <= int(re.search(r"17(\d\d)", prompt.text.clean)[1]) < 80


def test_a_docstring_names_the_third_argument_next_and_only_the_definition_is_corrupted():
    for prompt in make_task("docstring", words(), 200):
        clean, corrupted = (
            re.match(r"def \w+\(self, (.*)\):", text)[1].split(", ")
            for text in (prompt.text.clean, prompt.text.corrupted)
        )
        assert len({*clean, *corrupted}) == 8
        assert prompt.text.correct == (f" {clean[2]}",)
        assert prompt.text.wrong == tuple(f" {clean[i]}" for i in (0, 1, 3))
        assert re.findall(r":param (\w+):", prompt.text.corrupted) == clean[:2]
        assert prompt.text.clean.endswith(":param")
        assert differing(prompt) == list(zip(clean, corrupted, strict=True))


def test_a_tokenizer_with_few_arguments_is_told_which():
    ids: dict[str, int] = {}
    unknown = set(lists.ARGUMENTS[7:])

    def encode(text: str) -> list[int]:
        seen = ("<unk>" if word in unknown else word for word in WORD.findall(text))
        return [ids.setdefault(word, len(ids)) for word in seen]

    with pytest.raises(InputError, match=r"eight names of arguments .* has 7 of its \d+ \(load, size, files"):
        make_task("docstring", Vocabulary(1000, 64, encode), 3)


@pytest.mark.parametrize("task", TASKS)
def test_pairs_are_written_as_they_are_read(task, tmp_path):
    made = make_task(task, words(), 20)
    (tmp_path / "pairs.jsonl").write_bytes(pair_lines(made))
    assert read_pairs(tmp_path / "pairs.jsonl") == [prompt.text for prompt in made]
    assert example(task) in [prompt.text for prompt in made]


TOKENIZERS = Path(__file__).parents[3] / "shared/tokenizers"


@pytest.mark.slow
@pytest.mark.skipif(not TOKENIZERS.is_dir(), reason="the tokenizers are not there")
@pytest.mark.parametrize("tokenizer", ["gpt2", "olmo"])
@pytest.mark.parametrize("task", TASKS)
def test_real_tokenizers_have_a_thousand_different_pairs(tokenizer, task):
    from transformers import AutoTokenizer

    real = AutoTokenizer.from_pretrained(TOKENIZERS / tokenizer)
    made = make_task(task, Vocabulary(len(real), 1024, lambda text: list(real(text)["input_ids"])), 1000)
    assert len({prompt.text for prompt in made}) == 1000
    assert len({(prompt.clean_ids, prompt.corrupted_ids) for prompt in made}) == 1000
    for prompt in made[:50]:
        end = real.decode(prompt.clean_ids) + real.decode(prompt.correct_ids[:1])
        assert end == prompt.text.clean + prompt.text.correct[0]
