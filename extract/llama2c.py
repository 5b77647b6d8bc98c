"""A llama2.c file, weights and tokenizer in one, as an ordinary Hugging Face folder of a Llama.

llama2.c keeps a model as plain numbers: seven sizes as int32, then all weights as float32, in a fixed order, each kind
for all layers at once. A vocabulary size below 0 says that the unembedding is apart from the embedding, and is last.
Its tokenizer, a SentencePiece vocabulary, is a file of its own or follows at once, as in packages that hold both.

Rotary embeddings turn pairs of neighbouring dimensions there, and in transformers pairs of half a head apart, so the
rows of the query and key projections are put in another order. A SentencePiece tokenizer merges the pair of pieces
whose merger has the highest score; the tokenizer that is written has these mergers as its list of merges.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ..data import new_folder
from ..errors import InputError
from .models import quiet_unless_terminal, saving

_HEADER = struct.Struct("<7i")
_PIECE = struct.Struct("<fi")
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_MOST = 1 << 24
"""Of each size in a header."""


@dataclass(frozen=True)
class _Sizes:
    """What a header says."""

    d_model: int
    d_mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int

    @classmethod
    def read(cls, head: bytes, name: str) -> tuple["_Sizes", bool]:
        """The sizes, and whether embedding and unembedding are one."""
        if len(head) < _HEADER.size:
            raise InputError(f"'{name}' is no llama2.c file: it has {len(head)} bytes.")
        d_model, d_mlp, layers, heads, kv_heads, vocabulary, context = _HEADER.unpack(head)
        found = cls(d_model, d_mlp, layers, heads, kv_heads, abs(vocabulary), context)
        fits = all(0 < size < _MOST for size in vars(found).values())
        if not (fits and found.d_model % (2 * found.heads) == 0 and found.heads % found.kv_heads == 0):
            raise InputError(f"'{name}' is no llama2.c file: its first numbers are no sizes of a model.")
        return found, vocabulary > 0

    @property
    def d_head(self) -> int:
        """The width of a head."""
        return self.d_model // self.heads

    def weights(self, tied: bool) -> dict[str, tuple[int, ...]]:
        """All weights in their order, each with its shape; those of transformers by its names."""
        d, m, all_layers = self.d_model, self.d_mlp, self.layers
        d_kv, rotary = self.kv_heads * self.d_head, (self.context, self.d_head // 2)
        return {
            "model.embed_tokens": (self.vocabulary, d),
            "input_layernorm": (all_layers, d),
            "self_attn.q_proj": (all_layers, d, d),
            "self_attn.k_proj": (all_layers, d_kv, d),
            "self_attn.v_proj": (all_layers, d_kv, d),
            "self_attn.o_proj": (all_layers, d, d),
            "post_attention_layernorm": (all_layers, d),
            "mlp.gate_proj": (all_layers, m, d),
            "mlp.down_proj": (all_layers, d, m),
            "mlp.up_proj": (all_layers, m, d),
            "model.norm": (d,),
            "cosines": rotary,
            "sines": rotary,
            **({} if tied else {"lm_head": (self.vocabulary, d)}),
        }


def convert_llama2c(file: Path | str, out: Path | str, *, tokenizer: Path | str | None = None) -> LlamaConfig:
    """Read a llama2.c file, write a Llama folder, with its tokenizer if there is one: in the file, or in another."""
    path = Path(file)
    if not path.is_file():
        raise InputError(f"There is no file '{file}'.")
    with new_folder(Path(out)) as folder:
        with path.open("rb") as content:
            sizes, tied = _Sizes.read(content.read(_HEADER.size), str(file))
            shapes = sizes.weights(tied)
            needed = _HEADER.size + 4 * sum(map(prod, shapes.values()))
            if path.stat().st_size < needed:
                raise InputError(
                    f"'{file}' is cut off: its sizes call for {needed:,} bytes, and it has {path.stat().st_size:,}."
                )
            arrays = {name: _array(content.read(4 * prod(shape)), shape) for name, shape in shapes.items()}
            rest = content.read()
        if tokenizer is not None:
            rest = _read_tokenizer(Path(tokenizer))
        config = LlamaConfig(
            vocab_size=sizes.vocabulary,
            hidden_size=sizes.d_model,
            intermediate_size=sizes.d_mlp,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            max_position_embeddings=sizes.context,
            rms_norm_eps=1e-5,
            tie_word_embeddings=tied,
            bos_token_id=1,
            eos_token_id=2,
        )
        model = LlamaForCausalLM(config)
        weights = _named(arrays, sizes)
        if tied:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        quiet_unless_terminal()
        model.load_state_dict(weights)
        with saving(Path(out)):
            model.save_pretrained(folder)
            if rest:
                made = _tokenizer(rest, sizes.vocabulary, str(tokenizer or file))
                _wrapped(made, sizes.context).save_pretrained(folder)
    return config


def _read_tokenizer(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"The tokenizer '{path}' cannot be read: {error.strerror}.") from error


def _array(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.frombuffer(content, dtype="<f4").reshape(shape).astype(np.float32)


def _named(arrays: dict[str, NDArray[np.float32]], sizes: _Sizes) -> dict[str, Tensor]:
    """The weights of a Llama, by transformers' names."""
    found: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if name in ("cosines", "sines"):
            continue
        whole = torch.from_numpy(array)
        if name in ("model.embed_tokens", "model.norm", "lm_head"):
            found[f"{name}.weight"] = whole
            continue
        for layer, weight in enumerate(whole):
            turned = name in ("self_attn.q_proj", "self_attn.k_proj")
            found[f"model.layers.{layer}.{name}.weight"] = _halves(weight, sizes.d_head) if turned else weight
    return found


def _halves(weight: Tensor, d_head: int) -> Tensor:
    """Rows [head * d_head, d_model] in pairs of neighbours, put so that partners are half a head apart."""
    return weight.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2)


def _tokenizer(content: bytes, count: int, name: str) -> Tokenizer:
    """The tokenizer of a vocabulary of pieces with scores."""
    pieces, scores = _pieces(content, count, name)
    pieces[:3] = [_UNKNOWN, _BEGIN, _END]
    if pieces[3:259] == [chr(byte).replace(" ", "▁") for byte in range(256)]:  # as some write single bytes
        pieces[3:259] = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    if len(vocabulary) < count:
        raise InputError(f"The tokenizer in '{name}' has a piece twice: it is damaged.")
    merges = []
    for i, piece in enumerate(pieces):
        halves = [(piece[:at], piece[at:]) for at in range(1, len(piece))] if i > 2 else []
        known = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(-scores[i], pair) for pair in known]
    merges.sort(key=lambda merge: merge[0])  # stable: pieces with one score stay in their order
    made = Tokenizer(
        models.BPE(
            vocabulary, [pair for _, pair in merges], unk_token=_UNKNOWN, fuse_unk=True, byte_fallback=True
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(
        single=f"{_BEGIN} $A", pair=f"{_BEGIN} $A {_BEGIN}:1 $B:1", special_tokens=[(_BEGIN, 1)]
    )
    made.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in (_UNKNOWN, _BEGIN, _END)]
    )
    return made


def _pieces(content: bytes, count: int, name: str) -> tuple[list[str], list[float]]:
    """Pieces and their scores; behind the length of the longest."""
    pieces: list[str] = []
    scores: list[float] = []
    at = 4
    for _ in range(count):
        score, length = _PIECE.unpack_from(content, at) if at + _PIECE.size <= len(content) else (0.0, -1)
        end = at + _PIECE.size + length
        if length < 0 or end > len(content):
            raise InputError(
                f"The tokenizer in '{name}' is cut off after {len(pieces):,} of {count:,} pieces."
            )
        piece, at = content[at + _PIECE.size : end], end
        try:
            pieces.append(piece.decode().replace(" ", "▁"))
        except UnicodeDecodeError as error:
            raise InputError(
                f"The tokenizer in '{name}' is damaged: piece {len(pieces):,} is no text."
            ) from error
        scores.append(score)
    return pieces, scores


def _wrapped(tokenizer: Tokenizer, context: int) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=_UNKNOWN,
        bos_token=_BEGIN,
        eos_token=_END,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
