"""Text to train on."""

import pytest
from wirescope.data import Prompt, read_documents, task_documents
from wirescope.errors import InputError


def encode(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_a_text_is_cut_into_stretches_of_equal_length(tmp_path):
    (tmp_path / "a.txt").write_text("a bb ccc dddd eeeee\nffffff ggggggg")
    assert read_documents(tmp_path / "a.txt", encode, 3) == [(1, 2, 3), (4, 5, 6)]


def test_a_line_of_json_is_a_document_and_long_ones_are_cut(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a bb ccc"}\n\n{"text": "a"}\n{"text": "a bb ccc dddd", "x": 1}\n'
    )
    assert read_documents(tmp_path / "a.jsonl", encode, 8) == [(1, 2, 3), (1, 2, 3, 4)]
    assert read_documents(tmp_path / "a.jsonl", encode, 2) == [
        (1, 2),
        (1, 2),
        (3, 4),
    ]  # of one token: no document


def test_a_task_is_its_prompts_with_right_answers_in_turns():
    prompts = [
        Prompt(clean_ids=(1, 2), corrupted_ids=(3, 4), correct_answers=correct, wrong_answers=((9,),))
        for correct in (((5,),), ((5,), (6,)), ((5,), (6,), (7, 8)))
    ]
    assert task_documents(prompts) == [(1, 2, 5), (1, 2, 6), (1, 2, 7, 8)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "short.txt",
            "a bb ccc",
            "has 3 tokens, fewer than one stretch of 4: give more text, or a smaller --context",
        ),
        ("empty.jsonl", "\n", "has no documents"),
        ("one.jsonl", '{"text": "a"}', "has no documents"),
        ("bad.jsonl", '{"text": "a bb"}\n{', "Line 2 of '.*' is not JSON"),
        ("other.jsonl", '{"words": "a bb"}', 'Line 1 of \'.*\' is no document: write {"text": "..."}'),
        ("latin.txt", b"\xff\xfe\xfa", "cannot be read as text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        read_documents(tmp_path / name, encode, 4)


def test_a_text_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"There is no text '.*nowhere.txt'"):
        read_documents(tmp_path / "nowhere.txt", encode, 4)


def test_lines_may_end_as_on_windows(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a bb\r\nccc")
    seen = []
    read_documents(tmp_path / "a.txt", lambda text: seen.append(text) or [1, 2], 2)
    assert seen == ["a bb\nccc"]


def test_what_has_no_end_is_not_read_to_it(tmp_path):
    with pytest.raises(InputError, match="'/dev/zero' is not a file, but a pipe or a device"):
        read_documents("/dev/zero", encode, 4)
    with (tmp_path / "holes.txt").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(InputError, match="has more than 1,024 MB, the most that is read"):
        read_documents(tmp_path / "holes.txt", encode, 4)
