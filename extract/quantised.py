"""A GGUF file, weights and tokenizer in one, as an ordinary Hugging Face folder.

GGUF is how small models are handed around outside the hub, mostly quantised. transformers turns the weights back into
float32, which takes a while, so it is done once; the folder holds exactly what the quantised weights stand for.
"""

import io
import sys
from contextlib import nullcontext, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from ..data import new_folder
from ..errors import InputError
from .models import attempt, family_of, quiet_unless_terminal, saving

_MAGIC = b"GGUF"


def convert_gguf(file: Path | str, out: Path | str) -> PretrainedConfig:
    """Read a GGUF file of one of the families, write a folder of float32 weights and the tokenizer."""
    path, name = Path(file), str(file)
    if find_spec("gguf") is None:
        raise InputError(f"Reading '{name}' needs gguf: pip install 'wirescope[gguf]'.")
    if not path.is_file():
        raise InputError(f"There is no file '{name}'.")
    with path.open("rb") as start:
        if start.read(len(_MAGIC)) != _MAGIC:
            raise InputError(f"'{name}' is not a GGUF file, whatever its ending says.")
    source: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    with new_folder(Path(out)) as folder:
        config = attempt(name, lambda: AutoConfig.from_pretrained(path.parent, **source))
        family_of(name, config.model_type)
        quiet_unless_terminal()
        tokenizer = attempt(name, lambda: AutoTokenizer.from_pretrained(path.parent, **source))
        with nullcontext() if sys.stderr and sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            # its progress bar does not ask whether there is a terminal
            unpacked = attempt(
                name, lambda: AutoModelForCausalLM.from_pretrained(path.parent, dtype="float32", **source)
            )
        # transformers takes it for quantised still, and does not save such models: its weights go into a plain one
        model = AutoModelForCausalLM.from_config(config, dtype="float32")
        model.load_state_dict(unpacked.state_dict())
        with saving(Path(out)):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return model.config
