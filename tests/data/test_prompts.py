"""Prompt pairs: what is read, what is refused, and what of them is in the store.

The toy tokenizer has a token for each lower-case letter and for each letter with a space before it, so that
an answer is one token after a prompt, and two tokens where a text begins.
"""

import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

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
    pair_files,
    pair_lines,
    prompt_table,
    prompts_hash,
    read_pairs,
    trailing_spaces,
)
from wirescope.errors import InputError

TEXT = {"clean": "a b", "corrupted": "a c", "correct": [" b", " d"], "wrong": [" c"]}
IDS = {"clean_ids": [1, 2], "corrupted_ids": [1, 3], "correct_ids": [2, 4], "wrong_ids": [3]}
ANSWERS = {"correct_answers": [[2], [4]], "wrong_answers": [[3]]}
PAIR = TextPair("a b", "a c", (" b", " d"), (" c",))
PROMPT = Prompt(clean_ids=(1, 2), corrupted_ids=(1, 3), correct_answers=((2,), (4,)), wrong_answers=((3,),))
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
    json.dumps(TEXT | {"correct": {}}): "'correct' in line 2 of '{file}' is {{}}",
    json.dumps(TEXT | {"wrong": [" b", 7]}): "'wrong' in line 2 of '{file}' is [' b', 7]",
    json.dumps(TEXT | {"wrong": ""}): "'wrong' in line 2 of '{file}' is ['']",
    json.dumps(IDS | {"clean_ids": "12"}): "'clean_ids' in line 2 of '{file}' is '12'",
    json.dumps(IDS | {"corrupted_ids": [1, 2.0]}): "'corrupted_ids' in line 2 of '{file}' is [1, 2.0]",
    json.dumps(IDS | {"correct_ids": [True]}): "'correct_ids' in line 2 of '{file}' is [True]",
    json.dumps(IDS | {"wrong_ids": [[]]}): "'wrong_ids' in line 2 of '{file}' is [[]]",
    json.dumps(IDS | {"wrong_ids": [[3, True]]}): "'wrong_ids' in line 2 of '{file}' is [[3, True]]",
    json.dumps(IDS | {"wrong_ids": [[[3]]]}): "'wrong_ids' in line 2 of '{file}' is [[[3]]]",
    json.dumps(IDS | {"clean_ids": []}): "'clean_ids' in line 2 of '{file}' is []",
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
        lines = str(error).splitlines()
        assert len(lines) == 1 or re.match(r"\d+ of \d+ pairs of prompts cannot be used:$", lines[0])
        assert len(lines) <= 12
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
        clean_ids=(1, 28),
        corrupted_ids=(1, 29),
        correct_answers=((28,), (30,)),
        wrong_answers=((29,),),
        text=PAIR,
    )


def test_an_answer_is_all_the_tokens_that_it_adds():
    (prompt,) = encode_pairs([replace(PAIR, wrong=(" bc", " c"))], TOY)
    assert prompt.wrong_answers == ((28, 3), (29,))
    assert prompt.wrong_ids == (28, 29)


@pytest.mark.parametrize(
    ("answer", "advice"),
    [("c", "choose another answer, or let it begin with a space."), (" c", "choose another answer.")],
)
def test_an_answer_that_changes_the_prompts_own_tokens_is_refused(answer, advice):
    def merging(text: str) -> list[int]:  # "b" and what follows are a token of their own
        return encode(re.sub("b ?c", "z", text))

    with pytest.raises(InputError) as caught:
        encode_pairs([PROMPT, replace(PAIR, correct=(answer,), wrong=())], replace(TOY, encode=merging))
    assert str(caught.value) == (
        "Prompt 1 has an answer that the tokenizer does not tell from the prompt: "
        f"{answer!r} turns its end from ['<28>'] into ['<52>']; {advice}"
    )


def test_an_answer_without_a_token_is_refused():
    with pytest.raises(InputError, match=r"Prompt 0 .* ' ' adds no token to it; choose another answer"):
        encode_pairs([replace(PAIR, wrong=(" ",))], TOY)


@pytest.mark.parametrize("side", ["correct", "wrong"])
def test_answers_may_be_left_out_or_empty_where_the_metric_needs_none(write, side):
    without = {key: value for key, value in TEXT.items() if key != side}
    bare = {key: value for key, value in IDS.items() if key != f"{side}_ids"}
    lines = [without, TEXT | {side: []}, TEXT | {side: None}, bare, IDS | {f"{side}_ids": []}]
    pairs = read_pairs(write(*lines))
    assert pairs[:3] == [replace(PAIR, **{side: ()})] * 3
    assert pairs[3:] == [replace(PROMPT, **{f"{side}_answers": ()})] * 2
    assert len(encode_pairs(pairs, TOY, metric="kl")) == 5
    for metric in ("logit_diff", "prob_diff"):
        with pytest.raises(InputError) as caught:
            encode_pairs(pairs, TOY, metric=metric)
        assert len(str(caught.value).splitlines()) == 6
        assert f"Prompt 0 has no {side} answer, and the metric {metric} needs one: add" in str(caught.value)


def test_the_first_tokens_of_answers_can_be_taken():
    several = replace(PROMPT, correct_answers=((5, 6), (5, 7), (8,)), wrong_answers=((9, 5),))
    (cut,) = encode_pairs([several], TOY, first_token=True)
    assert (cut.correct_answers, cut.wrong_answers) == (((5,), (8,)), ((9,),))
    clash = replace(several, wrong_answers=((8, 1),))
    assert encode_pairs([clash], TOY) == [clash]
    with pytest.raises(
        InputError, match="Prompt 1 has correct answers and wrong ones with the same first token, '<8>'"
    ):
        encode_pairs([several, clash], TOY, first_token=True)


def test_an_answer_must_fit_behind_the_prompt():
    long = replace(PROMPT, clean_ids=(1,) * 7, corrupted_ids=(2,) * 7, wrong_answers=((3, 4),))
    assert encode_pairs([long], TOY) == [long]  # nothing is read after the last token
    with pytest.raises(InputError, match="Prompt 0 has 7 tokens and an answer of 3, more than the 8"):
        encode_pairs([replace(long, wrong_answers=((3, 4, 5),))], TOY)


def test_all_that_is_wrong_is_one_error_of_ten_lines_at_most(write):
    file = write(*[TEXT, "{"] * 12)
    with pytest.raises(InputError) as caught:
        read_pairs(file)
    said = str(caught.value).splitlines()
    assert said[0] == "12 of 24 pairs of prompts cannot be used:"
    assert said[1:11] == [
        f"Line {2 * i} of '{file}' is not JSON: {said[1].partition('JSON: ')[2]}" for i in range(1, 11)
    ]
    assert said[11:] == ["And 2 more."]


def test_a_long_value_is_not_repeated_in_full(write):
    with pytest.raises(InputError) as caught:
        read_pairs(write(TEXT | {"clean": ["x" * 100_000]}))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_is_a_list_of_pairs(tmp_path, indent):
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps([TEXT, IDS], indent=indent))
    assert read_pairs(file) == [PAIR, PROMPT]
    assert read_pairs(file, limit=1) == [PAIR]
    file.write_text(json.dumps([TEXT, 3, IDS], indent=indent))
    line = 1 + file.read_text().partition("3,")[0].count("\n")
    with pytest.raises(InputError, match=rf"^Item 2 \(line {line}\) of '.*pairs\.json' is not a pair"):
        read_pairs(file)


@pytest.mark.parametrize("text", ["[", "[{}", "[{},", "[{}]]", "[{} {}]", "[{]", "[1e999999]x"])
def test_a_list_that_does_not_end_as_one_is_refused(tmp_path, text):
    file = tmp_path / "pairs.json"
    file.write_text(text.replace("{}", json.dumps(TEXT)))
    with pytest.raises(InputError, match=r"pairs\.json'"):
        read_pairs(file)


def test_a_json_file_may_have_lines(tmp_path):
    (tmp_path / "pairs.json").write_text(f"{json.dumps(TEXT)}\n{json.dumps(IDS)}\n")
    assert read_pairs(tmp_path / "pairs.json") == [PAIR, PROMPT]


def test_a_csv_file_has_a_pair_a_row(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(
        'clean,corrupted,correct,wrong,note\na b,a c, b| d, c,x\n\n"a b",a c,"["" b"", "" d""]", c,\n'
    )
    assert read_pairs(file) == [PAIR, PAIR]
    file.write_text("\ufeffcorrupted,clean\r\na c,a b\r\n")
    assert read_pairs(file) == [TextPair("a b", "a c")]
    file.write_text('clean_ids,corrupted_ids,correct_ids,wrong_ids\n"[1, 2]","[1, 3]","[2, 4]",[3]\n')
    assert read_pairs(file) == [PROMPT]


CELLS = {
    "Line 1 of '{file}' does not name the columns": "a,b\n1,2\n",
    "Line 4 of '{file}' has 3 cells, and the first line names 2": 'clean,corrupted\n"a\nb",c\na,b,c\n',
    "'clean_ids' in line 2 of '{file}' is not JSON": "clean_ids,corrupted_ids\n1 2,[1]\n",
    "'correct' in line 2 of '{file}' is not JSON": "clean,corrupted,correct\na,b,[\n",
    "'correct' in line 2 of '{file}' is [' b', '']": "clean,corrupted,correct\na,b, b|\n",
    "Line 2 of '{file}' is not a row": 'clean,corrupted\n"a"b,c\n',
    "'{file}' has no prompts": "clean,corrupted\n",
}


@pytest.mark.parametrize(("message", "text"), CELLS.items(), ids=CELLS)
def test_what_is_no_row_is_named_with_its_line(tmp_path, message, text):
    file = tmp_path / "pairs.csv"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_pairs(file)
    assert str(caught.value).startswith(message.format(file=file))


@pytest.mark.parametrize(
    "text",
    [json.dumps(TEXT), json.dumps([TEXT]), "clean,corrupted,correct,wrong\na b,a c, b| d, c"],
    ids=["lines", "list", "table"],
)
def test_standard_input_is_read_in_any_form(monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert read_pairs("-") == [PAIR]


def test_what_is_wrong_with_standard_input_is_named(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"clean": 3, "corrupted": ""}')))
    with pytest.raises(InputError, match="'clean' in line 1 of standard input is 3"):
        read_pairs("-")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end")
def test_a_file_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(pair_files, "_MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r"^'/dev/zero' is not a file, but a pipe or a device"):
        read_pairs("/dev/zero")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" " * (2 << 20))))
    with pytest.raises(InputError, match=r"^Standard input has more than 1 MB, too much for prompts"):
        read_pairs("-")


def test_pairs_come_back_from_the_lines_that_they_are_written_to(tmp_path):
    """As text or as token ids, with answers of any length, or none."""
    ids = replace(PROMPT, correct_answers=((5, 6), (7,)), wrong_answers=())
    text = encode_pairs([replace(PAIR, correct=(" bc",), wrong=())], TOY)
    (tmp_path / "pairs.jsonl").write_bytes(pair_lines([ids, *text]))
    assert encode_pairs(read_pairs(tmp_path / "pairs.jsonl"), TOY) == [ids, *text]


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
    "has the token id 54 in correct_ids": {"correct_answers": ((54,),)},
    "has the token id 55 in wrong_ids": {"wrong_answers": ((3, 55),)},
    "has '<3>' among the correct answers and among the wrong": {"correct_answers": ((2,), (3,))},
}


@pytest.mark.parametrize(("message", "change"), UNFIT.items(), ids=UNFIT)
def test_a_prompt_that_does_not_fit_the_model_is_named_by_its_number(message, change):
    with pytest.raises(InputError) as caught:
        encode_pairs([PROMPT, replace(PROMPT, **change)], TOY)
    assert str(caught.value).startswith(f"Prompt 1 {message}")


def test_a_prompt_may_fill_the_context_and_use_every_token():
    widest = replace(
        PROMPT,
        clean_ids=(0, 52) * 4,
        corrupted_ids=(52, 0) * 4,
        correct_answers=((52,),),
        wrong_answers=((0,),),
    )
    assert encode_pairs([widest], TOY) == [widest]


def test_the_hash_changes_with_every_token_id():
    def hashes():
        for key in ("clean_ids", "corrupted_ids"):
            ids = getattr(PROMPT, key)
            for at in range(len(ids)):
                yield prompts_hash([replace(PROMPT, **{key: (*ids[:at], ids[at] + 1, *ids[at + 1 :])})])
            yield prompts_hash([replace(PROMPT, **{key: (*ids, 0)})])
        for key in ANSWERS:
            answers = getattr(PROMPT, key)
            for at, (token,) in enumerate(answers):
                for other in ((token + 1,), (token, 0)):
                    yield prompts_hash([replace(PROMPT, **{key: (*answers[:at], other, *answers[at + 1 :])})])
            yield prompts_hash([replace(PROMPT, **{key: (*answers, (0,))})])
        yield prompts_hash([PROMPT])
        yield prompts_hash([PROMPT, PROMPT])
        yield prompts_hash([])

    found = list(hashes())
    assert len(set(found)) == len(found) == 6 + 8 + 3


def test_the_hash_of_one_token_answers_is_what_it_always_was():
    """So that a run that is there is known again."""
    assert prompts_hash([PROMPT]) == hashlib.sha256(b"[[[1, 2], [1, 3], [2, 4], [3]]]").hexdigest()


def test_the_hash_does_not_depend_on_text():
    assert prompts_hash([replace(PROMPT, text=PAIR)]) == prompts_hash([PROMPT])


def test_the_hash_depends_on_the_order():
    other = replace(PROMPT, wrong_answers=((5,),))
    assert prompts_hash([PROMPT, other]) != prompts_hash([other, PROMPT])


def test_spaces_at_the_end_of_a_prompt_are_counted_where_they_are_tokens():
    letters = Vocabulary(size=256, context=99, encode=lambda text: [*text.encode()])
    words = replace(letters, encode=lambda text: [len(word) for word in text.split()])
    pairs = [
        TextPair(f"{text}{end}", f"{text}{end}", (" b",), (" c",)) for text, end in (("a", ""), ("a", " "))
    ]
    for vocabulary, expected in ((letters, 1), (words, 0)):
        prompts = [
            Prompt(
                clean_ids=tuple(vocabulary.encode(pair.clean)),
                corrupted_ids=(),
                text=pair,
            )
            for pair in pairs
        ]
        assert trailing_spaces(prompts, vocabulary) == expected


def test_the_prompt_table_is_the_stores():
    with_text = replace(PROMPT, text=PAIR)
    judged = {"is_right": [None, True], "answer_rank": [None, 3]}
    table = prompt_table([PROMPT, with_text], 7, [0.5, 1.5], [-0.5, 2.5], name="<{}>".format, **judged)
    tokens = {"clean_tokens": [f"<{token}>" for token in PROMPT.clean_ids]}
    assert table.schema.equals(TABLES["prompts"])
    assert table["metric_clean"].type == pa.float32()
    rows = table.to_pylist()
    assert rows[1] == TEXT | IDS | ANSWERS | tokens | {
        "prompt_id": 8,
        "metric_clean": 1.5,
        "metric_corrupted": 2.5,
        "is_right": True,
        "answer_rank": 3,
    }
    assert rows[0] == dict.fromkeys(TEXT) | IDS | ANSWERS | tokens | {
        "prompt_id": 7,
        "metric_clean": 0.5,
        "metric_corrupted": -0.5,
        "is_right": None,
        "answer_rank": None,
    }
