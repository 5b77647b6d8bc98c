"""Prompt pairs: what is read, what is refused, and what of them is in the store.

The toy tokenizer has a token for each lower-case letter and for each letter with a space before it, so that
an answer is one token after a prompt, and two tokens where a text begins.
"""

import json
import re
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirescope.data import (
    TABLES,
    Prompt,
    TextPair,
    Vocabulary,
    encode_pairs,
    prompt_table,
    prompts_hash,
    read_pairs,
)
from wirescope.graphs import InputError

TEXT = {"clean": "a b", "corrupted": "a c", "correct": [" b", " d"], "wrong": [" c"]}
IDS = {"clean_ids": [1, 2], "corrupted_ids": [1, 3], "correct_ids": [2, 4], "wrong_ids": [3]}
PAIR = TextPair("a b", "a c", (" b", " d"), (" c",))
PROMPT = Prompt(clean_ids=(1, 2), corrupted_ids=(1, 3), correct_ids=(2, 4), wrong_ids=(3,))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = 0


def encode(text: str) -> list[int]:
    """A letter is 1 to 26, a letter after a space 27 to 52; the space that begins a text stands alone."""
    ids = []
    for at, letter in enumerate(text):
        if letter != " ":
            ids.append(1 + LETTERS.index(letter) + (26 if at > 1 and text[at - 1] == " " else 0))
        elif at == 0:
            ids.append(SPACE)
    return ids


TOY = Vocabulary(size=53, context=8, encode=encode, name=lambda token: f"<{token}>")


@pytest.fixture
def write(tmp_path):
    """Write lines into a file: texts as they are, others as JSON."""
    file = tmp_path / "pairs.jsonl"

    def written(*lines):
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return file

    return written


def test_a_line_is_a_pair_of_texts_or_of_token_ids(write):
    assert read_pairs(write(TEXT, IDS)) == [PAIR, PROMPT]


def test_token_ids_are_taken_where_a_line_has_both(write):
    assert read_pairs(write(TEXT | IDS)) == [PROMPT]


def test_what_else_a_line_says_is_left_alone(write):
    assert read_pairs(write(TEXT | {"source": "mine"}, IDS | {"clean": None})) == [PAIR, PROMPT]


def test_a_single_text_is_an_answer_too(write):
    assert read_pairs(write(TEXT | {"correct": " b", "wrong": " c"})) == [replace(PAIR, correct=(" b",))]


def test_blank_lines_are_skipped_and_counted(write):
    assert read_pairs(write("", TEXT, "  \t", IDS, "")) == [PAIR, PROMPT]
    with pytest.raises(InputError, match=r"^Line 3 of '.*pairs\.jsonl' is not JSON"):
        read_pairs(write("", TEXT, "{"))


def test_a_limit_takes_the_first(write):
    file = write(TEXT, IDS, TEXT)
    assert read_pairs(file, limit=2) == [PAIR, PROMPT]
    assert read_pairs(file, limit=9) == [PAIR, PROMPT, PAIR]


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85"], ids=ascii)
def test_a_separator_within_a_text_does_not_end_the_line(write, letter):
    line = json.dumps(TEXT | {"clean": f"a{letter}b"}, ensure_ascii=False)
    assert read_pairs(write(line)) == [replace(PAIR, clean=f"a{letter}b")]


def test_lines_may_end_as_on_windows(tmp_path):
    (tmp_path / "w.jsonl").write_bytes(f"{json.dumps(TEXT)}\r\n\r\n{json.dumps(IDS)}\r\n".encode())
    assert read_pairs(tmp_path / "w.jsonl") == [PAIR, PROMPT]


WRONG = {
    "{": "Line 2 of '{file}' is not JSON",
    "[" * 100_000: "Line 2 of '{file}' is not JSON",
    "3": "Line 2 of '{file}' is not a pair of prompts: it needs clean, corrupted, correct, wrong, or",
    '["clean"]': "Line 2 of '{file}' is not a pair of prompts",
    '{"clean": "a"}': "Line 2 of '{file}' is not a pair of prompts",
    json.dumps(TEXT | {"clean": 5}): "'clean' in line 2 of '{file}' is 5",
    json.dumps(TEXT | {"corrupted": ["a"]}): "'corrupted' in line 2 of '{file}' is ['a']",
    json.dumps(TEXT | {"correct": []}): "'correct' in line 2 of '{file}' is []",
    json.dumps(TEXT | {"correct": None}): "'correct' in line 2 of '{file}' is None",
    json.dumps(TEXT | {"wrong": [" b", 7]}): "'wrong' in line 2 of '{file}' is [' b', 7]",
    json.dumps(TEXT | {"wrong": ""}): "'wrong' in line 2 of '{file}' is ['']",
    json.dumps(IDS | {"clean_ids": "12"}): "'clean_ids' in line 2 of '{file}' is '12'",
    json.dumps(IDS | {"corrupted_ids": [1, 2.0]}): "'corrupted_ids' in line 2 of '{file}' is [1, 2.0]",
    json.dumps(IDS | {"correct_ids": [True]}): "'correct_ids' in line 2 of '{file}' is [True]",
    json.dumps(IDS | {"wrong_ids": []}): "'wrong_ids' in line 2 of '{file}' is []",
    json.dumps(IDS | {"wrong_ids": 3}): "'wrong_ids' in line 2 of '{file}' is 3",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items(), ids=[line[:40] for line in WRONG])
def test_what_is_no_pair_is_named_with_its_line(write, line, message):
    file = write(TEXT, line)
    with pytest.raises(InputError) as caught:
        read_pairs(file)
    assert str(caught.value).startswith(message.format(file=file))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_prompts_is_named(tmp_path, write):
    with pytest.raises(InputError, match=r"^There is no file '.*none\.jsonl'"):
        read_pairs(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=rf"^'{re.escape(str(tmp_path))}' cannot be read"):
        read_pairs(tmp_path)
    with pytest.raises(InputError, match=r"pairs\.jsonl' has no prompts"):
        read_pairs(write("", " "))
    (tmp_path / "latin").write_bytes('{"clean": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match="latin' cannot be read"):
        read_pairs(tmp_path / "latin")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
nearly = st.fixed_dictionaries(dict.fromkeys(TEXT, values)) | st.fixed_dictionaries(
    dict.fromkeys(IDS, st.lists(st.integers() | st.booleans(), max_size=3) | values)
)


def parsed(file):
    """The pairs of a file, or None where it is refused; whatever else happens, happens to the test."""
    try:
        return read_pairs(file)
    except InputError as error:
        assert "\n" not in str(error)
        return None


@given(content=st.binary(max_size=200))
def test_any_bytes_are_pairs_or_refused(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    file.write_bytes(content)
    assert parsed(file) is None


@given(line=st.text(max_size=200) | (nearly | values).map(json.dumps))
def test_any_line_is_a_pair_or_refused(tmp_path_factory, line):
    file = tmp_path_factory.getbasetemp() / "line.jsonl"
    file.write_text(line, encoding="utf-8", errors="replace", newline="")
    for pair in parsed(file) or ():
        assert isinstance(pair, TextPair | Prompt)
        try:
            encode_pairs([pair], replace(TOY, encode=lambda text: [ord(letter) % 53 for letter in text]))
        except InputError:
            continue
        assert isinstance(pair, TextPair) or all(0 <= token < 53 for token in pair.clean_ids)


def test_answers_are_tokenised_after_the_prompt():
    assert encode(" b") == [SPACE, 2]  # alone it would be two tokens
    (prompt,) = encode_pairs([PAIR], TOY)
    assert prompt == Prompt(
        clean_ids=(1, 28), corrupted_ids=(1, 29), correct_ids=(28, 30), wrong_ids=(29,), text=PAIR
    )


@pytest.mark.parametrize(("answer", "tokens"), [(" bc", "['<28>', '<3>']"), (" ", "[]")])
def test_an_answer_that_is_not_one_token_is_named_with_its_tokens(answer, tokens):
    with pytest.raises(InputError) as caught:
        encode_pairs([PAIR, replace(PAIR, wrong=(answer,))], TOY)
    assert str(caught.value).startswith(
        f"Prompt 1 has an answer that is not one token after the prompt: {answer!r} "
    )
    assert tokens in str(caught.value)


def test_an_answer_that_changes_the_prompts_own_tokens_is_refused():
    def merging(text: str) -> list[int]:  # "bc" is a token of its own
        return encode(text.replace("bc", "z"))

    with pytest.raises(InputError, match=r"Prompt 0 .* 'c' makes its end \['<52>'\]"):
        encode_pairs([replace(PAIR, correct=("c",))], replace(TOY, encode=merging))


def test_text_needs_a_tokenizer_and_token_ids_need_none():
    wordless = replace(TOY, encode=None)
    assert encode_pairs([PROMPT], wordless) == [PROMPT]
    with pytest.raises(InputError, match="Prompt 1 is text, but the model has no tokenizer"):
        encode_pairs([PROMPT, PAIR], wordless)


UNFIT = {
    "has 2 tokens clean and 3 corrupted": {"corrupted_ids": (1, 2, 3)},
    "is empty": {"clean_ids": (), "corrupted_ids": ()},
    "has 9 tokens, more than the 8": {"clean_ids": (1,) * 9, "corrupted_ids": (2,) * 9},
    "has the token id 53 in clean_ids; the model knows 0 to 52": {"clean_ids": (1, 53)},
    "has the token id -1 in corrupted_ids": {"corrupted_ids": (-1, 1)},
    "has the token id 54 in correct_ids": {"correct_ids": (54,)},
    "has the token id 55 in wrong_ids": {"wrong_ids": (3, 55)},
    "has '<3>' among the correct answers and among the wrong": {"correct_ids": (2, 3)},
}


@pytest.mark.parametrize(("message", "change"), UNFIT.items(), ids=UNFIT)
def test_a_prompt_that_does_not_fit_the_model_is_named_by_its_number(message, change):
    with pytest.raises(InputError) as caught:
        encode_pairs([PROMPT, replace(PROMPT, **change)], TOY)
    assert str(caught.value).startswith(f"Prompt 1 {message}")


def test_a_prompt_may_fill_the_context_and_use_every_token():
    widest = replace(
        PROMPT, clean_ids=(0, 52) * 4, corrupted_ids=(52, 0) * 4, correct_ids=(52,), wrong_ids=(0,)
    )
    assert encode_pairs([widest], TOY) == [widest]


def test_the_hash_changes_with_every_token_id():
    def hashes():
        for key in IDS:
            ids = getattr(PROMPT, key)
            for at in range(len(ids)):
                yield prompts_hash([replace(PROMPT, **{key: (*ids[:at], ids[at] + 1, *ids[at + 1 :])})])
            yield prompts_hash([replace(PROMPT, **{key: (*ids, 0)})])
        yield prompts_hash([PROMPT])
        yield prompts_hash([PROMPT, PROMPT])
        yield prompts_hash([])

    found = list(hashes())
    assert len(set(found)) == len(found) == 7 + 4 + 3


def test_the_hash_does_not_depend_on_text():
    assert prompts_hash([replace(PROMPT, text=PAIR)]) == prompts_hash([PROMPT])


def test_the_hash_depends_on_the_order():
    other = replace(PROMPT, wrong_ids=(5,))
    assert prompts_hash([PROMPT, other]) != prompts_hash([other, PROMPT])


def test_the_prompt_table_is_the_stores():
    with_text = replace(PROMPT, text=PAIR)
    table = prompt_table([PROMPT, with_text], 7, [0.5, 1.5], [-0.5, 2.5], name="<{}>".format)
    tokens = {"clean_tokens": [f"<{token}>" for token in PROMPT.clean_ids]}
    assert table.schema.equals(TABLES["prompts"])
    assert table["metric_clean"].type == pa.float32()
    rows = table.to_pylist()
    assert rows[1] == TEXT | IDS | tokens | {"prompt_id": 8, "metric_clean": 1.5, "metric_corrupted": 2.5}
    assert rows[0] == dict.fromkeys(TEXT) | IDS | tokens | {
        "prompt_id": 7,
        "metric_clean": 0.5,
        "metric_corrupted": -0.5,
    }
