"""Model files of other programs as ordinary Hugging Face folders: which converter a file is for."""

from pathlib import Path

from transformers import PretrainedConfig

from ..errors import InputError
from .difference import apply_difference
from .llama2c import convert_llama2c
from .quantised import convert_gguf
from .transformer_lens import convert_state_dict

_LLAMA2C = (".bin", ".data")


def convert(
    file: Path | str,
    out: Path | str,
    *,
    base: str | None = None,
    gated: bool = False,
    vocabulary: int | None = None,
    tokenizer: Path | str | None = None,
) -> PretrainedConfig:
    """Write the folder of a model that another program saved; the file's ending says which.

    Args:
        file: ``.gguf``; ``.bin`` or ``.data`` of llama2.c; ``.npz``, a twin's difference from its dense model; or a
            state dict of TransformerLens, ``.pt`` or ``.safetensors``.
        out: The folder.
        base: The dense model of a gated state dict or of a difference.
        gated: Whether attention of the state dict is gated.
        vocabulary: How many tokens of the state dict are real.
        tokenizer: The tokenizer of a llama2.c model, if it is not in its file.

    """
    ending = Path(file).suffix
    given = {"--vocabulary": vocabulary is not None, "--gated": gated, "--base": base is not None}
    kinds = {
        "--vocabulary": "state dicts",
        "--gated": "state dicts",
        "--base": "state dicts and .npz files",
        "--tokenizer": "llama2.c files, .bin or .data",
    }
    if ending in (".gguf", ".npz", *_LLAMA2C):
        _refuse(
            [option for option in given if given[option] and (ending, option) != (".npz", "--base")], kinds
        )
    if tokenizer is not None and ending not in _LLAMA2C:
        _refuse(["--tokenizer"], kinds)
    if ending == ".gguf":
        return convert_gguf(file, out)
    if ending in _LLAMA2C:
        return convert_llama2c(file, out, tokenizer=tokenizer)
    if ending == ".npz":
        if base is None:
            raise InputError(f"'{file}' is a twin's difference from its dense model: name that with --base.")
        return apply_difference(file, out, base=base)
    return convert_state_dict(file, out, vocabulary=vocabulary, gated=gated, base=base)


def _refuse(options: list[str], kinds: dict[str, str]) -> None:
    if options:
        raise InputError(f"{options[0]} is for {kinds[options[0]]}: leave it out.")
