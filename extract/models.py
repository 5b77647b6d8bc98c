"""Load a model by hub name, folder or name of the embedded pair, with what its prompts are checked against."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import CRITICAL, getLogger
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.utils.logging import disable_progress_bar

from ..data import PAIR, Vocabulary
from ..errors import InputError, StoreError, did_you_mean
from ..graphs import Shape
from . import gpt2, llama, neox, olmo
from .attention import NAME
from .knowledge import known_words
from .parts import Parts
from .placement import find_map, place
from .sizes import Sizes, check_gates, check_sizes
from .taps import Taps

FAMILIES: Mapping[str, ModuleType] = {
    model_type: family for family in (gpt2, llama, olmo, neox) for model_type in family.MODEL_TYPES
}
"""By the model type that a Hugging Face config names."""
DTYPES = ("auto", "float32", "bfloat16", "float16")
_SAMPLE = 1 << 20
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class Model:
    """A model that is ready to be scored."""

    name: str
    model_type: str
    revision: str | None
    config: Mapping[str, Any]
    parts: Parts
    taps: Taps
    vocabulary: Vocabulary
    dtype: torch.dtype
    device: torch.device

    @property
    def places(self) -> list[torch.device]:
        """The devices that its blocks are on, in the order of the blocks."""
        return list(dict.fromkeys(self.parts.device(layer) for layer in range(self.shape.layers)))

    @property
    def dtype_name(self) -> str:
        """Such as float32."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def shape(self) -> Shape:
        """Its shape, as its wiring needs it."""
        return self.parts.shape


@dataclass(frozen=True)
class Loaded:
    """A model as transformers loads it, on a device, with Wirescope's attention."""

    name: str
    model: PreTrainedModel
    family: ModuleType
    device: torch.device
    tokenizer: Any = None

    @property
    def parts(self) -> Parts:
        """Its parts."""
        parts: Parts = self.family.parts(self.model)
        return parts

    @property
    def revision(self) -> str | None:
        """What tells its weights from others of the same name."""
        return getattr(self.model.config, "_commit_hash", None) or _fingerprint(Path(_source(self.name)))


def load_model(
    name: str,
    *,
    device: torch.device,
    dtype: str = "auto",
    device_map: str | None = None,
    devices: Sequence[torch.device] = (),
) -> Model:
    """Load a model, ready to be scored; whatever stands in the way is an error that says what to do.

    The dtype `auto` is the checkpoint's on an accelerator, and float32 elsewhere. A map spreads blocks over devices.
    """
    loaded = load_untapped(name, device=device, dtype=dtype, device_map=device_map, devices=devices)
    return tap_model(loaded)


def load_untapped(
    name: str,
    *,
    device: torch.device,
    dtype: str = "auto",
    device_map: str | None = None,
    devices: Sequence[torch.device] = (),
) -> Loaded:
    """Load a model as it is, frozen: a hub name, a folder, or one of the embedded pair."""
    source = _source(name)
    _check_folder(name, Path(source))
    config, family, _ = _config(name, source)
    quiet_unless_terminal()
    model, info = attempt(
        name,
        lambda: AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype="float32" if dtype == "auto" and not is_accelerator(device) else dtype,
            attn_implementation=NAME,
            trust_remote_code=False,
            output_loading_info=True,
        ),
    )
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise InputError(
            f"The model '{name}' lacks {len(missing)} of its weights, {missing[0]} among them: get it again, whole."
        )
    blocks = None
    if device_map is not None:
        parts: Parts = family.parts(model)
        blocks = [devices[number] for number in find_map(device_map, parts, len(devices))]
    return prepared(model, name, family, device, _tokenizer(name, source), blocks)


def load_sketch(name: str, *, dtype: str = "auto", accelerator: bool = False) -> Model:
    """A model without numbers, on the meta device: its shape, and the sizes of everything, from its config alone."""
    source = _source(name)
    _check_folder(name, Path(source), weights=False)
    config, family, _ = _config(name, source)
    if dtype == "auto":
        dtype = str(config.dtype or "float32").removeprefix("torch.") if accelerator else "float32"
    tokenizer = _tokenizer(name, source)
    made: Model = attempt(name, lambda: sketch(config, name, getattr(torch, dtype), family, tokenizer))
    return made


def sketch(config: Any, name: str, dtype: torch.dtype, family: ModuleType, tokenizer: Any = None) -> Model:
    """A model of a config, without numbers."""
    meta = torch.device("meta")
    with meta:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    return tap_model(prepared(model, name, family, meta, tokenizer))


def prepared(
    model: PreTrainedModel,
    name: str,
    family: ModuleType,
    device: torch.device,
    tokenizer: Any = None,
    blocks: Sequence[torch.device] | None = None,
) -> Loaded:
    """A model that is there, frozen, on a device, or each block on its own, with Wirescope's attention."""
    model.set_attn_implementation(NAME)
    model.eval().requires_grad_(False)
    if blocks is None:
        nn.Module.to(model, device)
    else:
        device = blocks[-1]
        place(model, family.parts(model), blocks)
    _fuse_activations(model)
    return Loaded(name, model, family, device, tokenizer)


def tap_model(loaded: Loaded) -> Model:
    """Put taps on a model."""
    parts = loaded.parts
    return Model(
        name=loaded.name,
        model_type=loaded.model.config.model_type,
        revision=loaded.revision,
        config=_plain(loaded.model.config.to_dict()),
        parts=parts,
        taps=Taps(parts),
        vocabulary=vocabulary_of(loaded),
        dtype=loaded.model.dtype,
        device=loaded.device,
    )


def load_vocabulary(name: str) -> Vocabulary:
    """What a model can read, from its config and tokenizer; it is loaded where a task asks which words it knows."""
    source = _source(name)
    if Path(source).is_dir() and not Path(source, "config.json").is_file():
        raise InputError(f"The folder '{name}' is not a model: it has no config.json.")
    config, _, sizes = _config(name, source)
    vocabulary = _vocabulary(sizes.vocabulary, sizes.context, _tokenizer(name, source))
    return _knowing(vocabulary, config, lambda: load_untapped(name, device=find_device()).parts)


def vocabulary_of(loaded: Loaded) -> Vocabulary:
    """What a model can read, and which words it knows; a sparse twin those of its dense model."""
    parts = loaded.parts
    vocabulary = _vocabulary(len(parts.unembed.weight), parts.context, loaded.tokenizer)  # type: ignore[arg-type]
    return (
        vocabulary
        if loaded.device.type == "meta"
        else _knowing(vocabulary, loaded.model.config, lambda: loaded.parts)
    )


def _knowing(vocabulary: Vocabulary, config: Any, find_parts: Callable[[], Parts]) -> Vocabulary:
    """A vocabulary that can say which words a model knows; the same words are asked for once."""
    encode, listed = vocabulary.encode, getattr(config, "known_names", None)
    if encode is None:
        return vocabulary
    asked: dict[tuple[str, ...], list[str]] = {}

    def known(words: Sequence[str]) -> list[str]:
        if isinstance(listed, list):
            return [word for word in words if word in listed]
        if tuple(words) not in asked:
            asked[tuple(words)] = known_words(find_parts(), encode, words)
        return asked[tuple(words)]

    return replace(vocabulary, known=known)


def _fuse_activations(model: nn.Module) -> None:
    """Let one kernel do GELUs that are written out in eight steps: the same but for rounding, in half the time."""
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, GELUTanh())


def find_device(name: str = "auto", index: int | None = None) -> torch.device:
    """A device by name; `auto` is the accelerator that is there, or else what torch computes on by default.

    Of several accelerators it is the one with this index, unless the name has one.
    """
    try:
        device = (_accelerator() or torch.get_default_device()) if name == "auto" else torch.device(name)
        if index is not None and ":" not in str(device) and is_accelerator(device):
            device = torch.device(device.type, index)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"The device '{name}' cannot be used here ({reason}); --device auto takes what is there."
        ) from error
    return device


def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator(check_available=True)


def is_accelerator(device: torch.device) -> bool:
    """Whether it is the accelerator that is there."""
    accelerator = _accelerator()
    return accelerator is not None and accelerator.type == device.type


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Around what transformers writes: weights that cannot be written are an error that says so."""
    try:
        yield
    except SafetensorError as error:
        raise StoreError(f"Writing '{folder}' failed: {error}.") from error


def quiet_unless_terminal() -> None:
    """Keep transformers' progress bars for terminals."""
    if sys.stderr is None or not sys.stderr.isatty():
        disable_progress_bar()


def _config(name: str, source: str) -> tuple[Any, ModuleType, Sizes]:
    """The config of a model, its family and its sizes; what cannot be a model is refused before any of it is built."""
    config = attempt(name, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False))
    family = family_of(name, config.model_type)
    sizes = check_sizes(name, attempt(name, lambda: family.sizes(config)))
    check_gates(name, getattr(config, "gate_bias", None), sizes)
    return config, family, sizes


def _source(name: str) -> str:
    """What transformers is asked for: of the embedded pair the folder, else the name itself."""
    try:
        is_folder = Path(name).is_dir()
    except (OSError, ValueError) as error:  # too long, or with a character that no name has
        short = name if len(name) < 80 else f"{name[:60]}... ({len(name):,} letters)"
        raise InputError(
            f"{short!r} cannot be the name of a model: {getattr(error, 'strerror', None) or error}."
        ) from error
    if name in PAIR and is_folder:
        raise InputError(
            f"'{name}' is a model of the package and a folder here: write ./{name} for the folder, or call it from "
            "elsewhere for the other."
        )
    return str(PAIR.get(name, name))


def _check_folder(name: str, folder: Path, *, weights: bool = True) -> None:
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")
    if not folder.is_dir():
        if looks_like_path or folder.exists():
            raise InputError(f"There is no model folder '{name}'.")
        return
    if not (folder / "config.json").is_file():
        raise InputError(f"The folder '{name}' is not a model: it has no config.json.")
    if weights and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise InputError(f"The folder '{name}' has no weights: it needs a model.safetensors.")


def attempt(name: str, get: Callable[[], Any]) -> Any:
    """What transformers loads, without what it says meanwhile; whatever it fails with is a sentence."""
    loggers = [getLogger(package) for package in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(CRITICAL)
    try:
        return get()
    except (torch.OutOfMemoryError, InputError, StoreError):
        raise
    except Exception as error:  # a broken file can make it fail in any way
        reason = reason_of(error)
        if Path(_source(name)).exists():
            raise InputError(f"The model in '{name}' cannot be loaded: {reason}.") from error
        raise InputError(
            f"The model '{name}' cannot be had from the hub: it does not exist, is gated and needs a login, or there "
            f"is no network ({reason}). A local folder works as well: --model FOLDER."
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def reason_of(error: Exception) -> str:
    """Why something could not be loaded: the first line of what a library says, less its advice to trust the file."""
    if isinstance(error, UnpicklingError):
        return "it is damaged, or a pickle of more than tensors and plain values, which could run code"
    if "trust_remote_code" in str(error):
        return "it needs code of its own, which is never run: choose a model of one of the families"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(
        line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1]
    )  # what, and then why
    return said.rstrip(".:!")


def _fingerprint(folder: Path) -> str | None:
    """What tells a folder's weights from others: SHA-256 of the names, sizes and samples of its weight files."""
    digest = hashlib.sha256()
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for at in (0, size // 2, max(0, size - _SAMPLE)):
                file.seek(at)
                digest.update(file.read(_SAMPLE))
    return f"sampled-sha256:{digest.hexdigest()}" if files else None


def family_of(name: str, model_type: str) -> ModuleType:
    """The family of a model type; one that there is none for is an error that names those that there are."""
    if model_type not in FAMILIES:
        raise InputError(
            f"The model '{name}' is of the family '{model_type}', which is not supported; supported are "
            f"{', '.join(FAMILIES)}.{did_you_mean(model_type, FAMILIES)}"
        )
    return FAMILIES[model_type]


def _tokenizer(name: str, source: str) -> Any:
    if Path(source).is_dir() and not any(Path(source, file).is_file() for file in _TOKENIZER_FILES):
        return None
    return attempt(name, lambda: AutoTokenizer.from_pretrained(source, trust_remote_code=False))


def _vocabulary(size: int, context: int, tokenizer: Any) -> Vocabulary:
    if tokenizer is None:
        return Vocabulary(size, context, None)
    return Vocabulary(
        size,
        context,
        encode=lambda text: list(tokenizer(text)["input_ids"]),
        name=lambda token: tokenizer.decode([token]),
    )


def _plain(value: Any) -> Any:
    """A config as plain JSON values."""
    if isinstance(value, Mapping):
        return {
            str(key): _plain(item)
            for key, item in value.items()
            if not str(key).startswith("_") and key != "transformers_version"
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
