"""A sparse twin as a small file: what its weights are more than its dense model's, in a few bits each.

With w of the twin and w' of the dense model, a row of a matrix (or a vector) is kept as whole numbers n and one step s,

    w ~ w' + s n,        s = max |w - w'| / 7,        n in -7 .. 7

compressed, and beside it what the twin's config says more. The weights that are added to must be the very ones: the
file has their checksum. What comes out is not the twin to the last digit, so judge what you share as it comes out.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig

from ..data import brief, new_folder, replacing
from ..errors import InputError
from .models import Loaded, load_untapped, quiet_unless_terminal, saving
from .sizes import check_gates

_LEVELS = 7
_CONFIG, _STEP = "config", ".step"
_MORE = ("gate_bias", "known_names")
_MOST = 1 << 30
"""Bytes of a file."""


def write_difference(twin: Path | str, base: Path | str, out: Path | str) -> int:
    """Write what a twin's folder is more than its dense model's; how many bytes that takes."""
    mine, theirs = (load_untapped(str(folder), device=torch.get_default_device()) for folder in (twin, base))
    weights, before = _weights(mine), _weights(theirs)
    if weights.keys() != before.keys() or any(weights[name].shape != before[name].shape for name in weights):
        raise InputError(
            f"'{twin}' and '{base}' are models of different shapes, or one alone has tied weights: a twin has those "
            "of its dense model."
        )
    changed = [name for name in weights if not torch.equal(weights[name], before[name])]
    arrays: dict[str, NDArray[Any]] = {}
    for name in changed:
        more = (weights[name].float() - before[name].float()).numpy()
        step = np.abs(more).max(-1, keepdims=True) / _LEVELS
        arrays[name] = np.rint(more / np.where(step, step, 1)).astype(np.int8)
        arrays[name + _STEP] = step.astype(np.float32)
    config = {key: getattr(mine.model.config, key) for key in _MORE if hasattr(mine.model.config, key)}
    config["crc32"] = _checksum(before, changed)
    arrays[_CONFIG] = np.frombuffer(json.dumps(config).encode(), np.uint8)
    with replacing(Path(out)) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return Path(out).stat().st_size


def apply_difference(file: Path | str, out: Path | str, *, base: str) -> PretrainedConfig:
    """Write the folder of the twin that a file makes of a dense model."""
    config, arrays = _read(Path(file))
    dense = load_untapped(base, device=torch.get_default_device())
    weights = _weights(dense)
    names = [name for name in arrays if not name.endswith(_STEP)]
    fits = all(name in weights and weights[name].shape == arrays[name].shape for name in names)
    if not fits or _checksum(weights, names) != config.pop("crc32", None):
        raise InputError(
            f"'{file}' is a difference from other weights than those of '{base}': give the dense model that its twin "
            "was made from, unchanged, as --base."
        )
    check_gates(str(file), config.get("gate_bias"), dense.family.sizes(dense.model.config))
    with torch.no_grad():
        for name in names:
            more = torch.from_numpy(arrays[name].astype(np.float32) * arrays[name + _STEP])
            weights[name] += more.to(weights[name])
    dense.model.config.update(config | {"base_model": base})
    quiet_unless_terminal()
    with new_folder(Path(out)) as folder, saving(Path(out)):
        dense.model.save_pretrained(folder)
        if dense.tokenizer is not None:
            dense.tokenizer.save_pretrained(folder)
    return dense.model.config


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What the config says more, and the arrays; nothing that a file contains is run."""
    try:
        with path.open("rb") as file, NpzFile(file, allow_pickle=False) as saved:
            assert saved.zip is not None
            size = sum(info.file_size for info in saved.zip.infolist())
            arrays = {name: np.asarray(saved[name]) for name in saved.files} if size <= _MOST else {}
        config = json.loads(arrays.pop(_CONFIG).tobytes()) if size <= _MOST else {}
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{path}'.") from error
    except Exception as error:  # a broken file can make it fail in any way
        raise InputError(f"'{path}' is no difference between models, as .npz.") from error
    if size > _MOST:
        raise InputError(f"'{path}' is larger inside, {size:,} bytes, than any difference: it is refused.")
    if not isinstance(config, dict) or not config.keys() <= {*_MORE, "crc32"} or not _are_names(config):
        raise InputError(
            f"'{path}' is no difference between models, as .npz: its config says something else."
        )
    names = [name for name in arrays if not name.endswith(_STEP)]
    if arrays.keys() != {*names, *(name + _STEP for name in names)}:
        raise InputError(
            f"'{path}' is no difference between models, as .npz: its numbers or steps are missing."
        )
    if wrong := [name for name in names if not _is_change(arrays[name], arrays[name + _STEP])]:
        raise InputError(
            f"'{path}' is no difference between models, as .npz: {brief(wrong[0])} is not whole numbers of one byte "
            "with one step a row."
        )
    return config, arrays


def _are_names(config: Mapping[str, Any]) -> bool:
    """Whether the names that the model knows, if it says which, are names."""
    names = config.get("known_names", [])
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _is_change(numbers: NDArray[Any], step: NDArray[Any]) -> bool:
    """Whether two arrays say how much is added to a weight."""
    return (
        numbers.dtype == np.int8
        and step.dtype == np.float32
        and step.shape == (*numbers.shape[:-1], 1)
        and bool(np.isfinite(step).all())
    )


def _weights(loaded: Loaded) -> dict[str, Tensor]:
    """By name; tied ones once, by their first name, or what is added would be added twice."""
    return {name: weight.detach() for name, weight in loaded.model.named_parameters()}


def _checksum(weights: Mapping[str, Tensor], names: list[str]) -> str:
    found = 0
    for name in sorted(names):
        found = zlib.crc32(weights[name].contiguous().float().numpy().tobytes(), found)
    return f"{found:08x}"
