"""llama2.c files, converted: the folder's model computes what llama2.c does, and its tokenizer cuts as its does."""

import math
import random
import struct
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from wirescope.errors import InputError
from wirescope.extract import convert

LAYERS, HEADS, KV_HEADS, D, D_MLP, CONTEXT = 2, 4, 2, 16, 24, 32
D_HEAD = D // HEADS
LETTERS = ["▁", *"abcdefgh", "é"]
MERGED = ["ab", "▁a", "▁ab", "cd", "abcd", "▁abcd", "ba", "bab", "▁▁", "de", "cde"]
"""By score: the earlier, the higher."""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, *MERGED, *LETTERS]
SCORES = [0.0] * 259 + [-float(i) for i in range(len(MERGED))] + [-1e9] * len(LETTERS)
IDS = [1, 262, 260, 275, 262, 261]


def weights(*, tied: bool) -> dict[str, np.ndarray]:
    """By llama2.c's names, in the order of its file."""
    rng = np.random.default_rng(5)
    d_kv = KV_HEADS * D_HEAD

    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 0.4).astype(np.float32)

    found = {
        "embedding": draw(len(PIECES), D),
        "att_norm": 1 + draw(LAYERS, D),
        "q": draw(LAYERS, D, D),
        "k": draw(LAYERS, d_kv, D),
        "v": draw(LAYERS, d_kv, D),
        "o": draw(LAYERS, D, D),
        "mlp_norm": 1 + draw(LAYERS, D),
        "gate": draw(LAYERS, D_MLP, D),
        "down": draw(LAYERS, D, D_MLP),
        "up": draw(LAYERS, D_MLP, D),
        "norm": 1 + draw(D),
        "cosines": draw(CONTEXT, D_HEAD // 2),
        "sines": draw(CONTEXT, D_HEAD // 2),
    }
    return found if tied else found | {"unembedding": draw(len(PIECES), D)}


def pieces(*, raw_bytes: bool = False) -> bytes:
    """A tokenizer as llama2.c keeps it; some write byte pieces as the byte itself."""
    named = list(PIECES)
    if raw_bytes:
        named[3:259] = map(chr, range(256))
    named[1:3] = ["\n<s>\n", "\n</s>\n"]
    content = [struct.pack("<i", 8)]
    for piece, score in zip(named, SCORES, strict=True):
        text = piece.replace("▁", " ").encode()
        content.append(struct.pack("<fi", score, len(text)) + text)
    return b"".join(content)


def header(vocabulary: int) -> bytes:
    return struct.pack("<7i", D, D_MLP, LAYERS, HEADS, KV_HEADS, vocabulary, CONTEXT)


def model_file(*, tied: bool) -> bytes:
    return header(len(PIECES) if tied else -len(PIECES)) + b"".join(
        w.tobytes() for w in weights(tied=tied).values()
    )


def forward(w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """The logits at the last position as llama2.c computes them: a token at a time, neighbours turned as a pair."""

    def normed(x, gain):
        return gain * x / math.sqrt(float(np.mean(x * x)) + 1e-5)

    def turned(x, position):
        x = x.copy()
        for i in range(0, len(x), 2):
            angle = position / 10_000 ** ((i % D_HEAD) / D_HEAD)
            a, b = x[i], x[i + 1]
            x[i] = a * math.cos(angle) - b * math.sin(angle)
            x[i + 1] = a * math.sin(angle) + b * math.cos(angle)
        return x

    keys, values = ([[] for _ in range(LAYERS)] for _ in range(2))
    for position, token in enumerate(ids):
        x = w["embedding"][token].astype(np.float64)
        for layer in range(LAYERS):
            y = normed(x, w["att_norm"][layer])
            q = turned(w["q"][layer] @ y, position)
            keys[layer].append(turned(w["k"][layer] @ y, position))
            values[layer].append(w["v"][layer] @ y)
            out = np.zeros(D)
            for head in range(HEADS):
                own = slice(head * D_HEAD, (head + 1) * D_HEAD)
                shared = head // (HEADS // KV_HEADS)
                other = slice(shared * D_HEAD, (shared + 1) * D_HEAD)
                logits = np.array([q[own] @ k[other] / math.sqrt(D_HEAD) for k in keys[layer]])
                chances = np.exp(logits - logits.max())
                chances /= chances.sum()
                out[own] = sum(p * v[other] for p, v in zip(chances, values[layer], strict=True))
            x = x + w["o"][layer] @ out
            y = normed(x, w["mlp_norm"][layer])
            gate = w["gate"][layer] @ y
            x = x + w["down"][layer] @ (gate / (1 + np.exp(-gate)) * (w["up"][layer] @ y))
    return w.get("unembedding", w["embedding"]) @ normed(x, w["norm"])


def cut(text: str) -> list[int]:
    """The ids of a text as llama2.c finds them: letters, then the best merger of neighbours, again and again."""
    known = {piece: i for i, piece in enumerate(PIECES)}
    ids = []
    for letter in "▁" + text.replace(" ", "▁"):
        ids += [known[letter]] if letter in known else [3 + byte for byte in letter.encode()]
    while True:
        pairs = [(PIECES[a] + PIECES[b], i) for i, (a, b) in enumerate(pairwise(ids))]
        best = max(((SCORES[known[p]], -i) for p, i in pairs if p in known), default=None)
        if best is None:
            return [1, *ids]
        at = -best[1]
        ids[at : at + 2] = [known[PIECES[ids[at]] + PIECES[ids[at + 1]]]]


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_computes_what_llama2c_does(tmp_path, tied):
    (tmp_path / "model.bin").write_bytes(model_file(tied=tied))
    convert(tmp_path / "model.bin", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0, -1]
    np.testing.assert_allclose(logits, forward(weights(tied=tied), IDS), atol=2e-4)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize("raw_bytes", [True, False])
def test_texts_are_cut_as_llama2c_cuts_them(tmp_path, raw_bytes):
    (tmp_path / "both.data").write_bytes(model_file(tied=True) + pieces(raw_bytes=raw_bytes))
    convert(tmp_path / "both.data", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    rng = random.Random(0)
    texts = ["".join(rng.choice("abcde é!") for _ in range(rng.randint(1, 14))) for _ in range(300)]
    texts += ["abcd", "a abcd", "bab  cde"]
    assert {token for text in texts for token in cut(text)} > {PIECES.index(piece) for piece in MERGED}
    for text in texts:
        assert tokenizer(text)["input_ids"] == cut(text), text


def test_a_tokenizer_may_be_a_file_of_its_own(tmp_path, cli):
    (tmp_path / "model.bin").write_bytes(model_file(tied=True))
    (tmp_path / "tokenizer.bin").write_bytes(pieces())
    result = cli(
        "convert",
        tmp_path / "model.bin",
        "--tokenizer",
        tmp_path / "tokenizer.bin",
        "--out",
        tmp_path / "out",
    )
    assert (result.status, result.out) == (0, "")
    assert "a model of the family llama, 2 layers x 4 heads" in result.err
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("abcd")["input_ids"] == cut("abcd")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"few", "is no llama2.c file: it has 3 bytes"),
        (struct.pack("<7i", *[2**30] * 7), "first numbers are no sizes"),
        (struct.pack("<7i", D, D_MLP, LAYERS, 0, KV_HEADS, 9, CONTEXT), "first numbers are no sizes"),
        (struct.pack("<7i", 2**22, 2**22, 9, 2, 2, 2**22, 9), "is cut off"),
        (model_file(tied=True)[:-1], "is cut off"),
        (model_file(tied=True) + pieces()[:-2], "cut off after"),
        (model_file(tied=True) + pieces().replace(b"bab", b"b\xffb"), "is no text"),
        (model_file(tied=True) + pieces().replace(b"bab", b"cde"), "has a piece twice"),
    ],
)
def test_other_and_damaged_files_are_refused_and_nothing_is_written(tmp_path, content, message):
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "model.bin", tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["model.bin"]
