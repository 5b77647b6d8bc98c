"""What torch saved, read without running anything that it contains, and no larger inside than outside.

A file is read with ``weights_only=True``: tensors and plain containers. torch puts them into a zip archive that it
never compresses, so one whose parts are more than the file is not torch's. A tensor can still say that it has more
numbers than were saved: a sparse one, a view that repeats them, one of the meta device. Such are not `plain`.
"""

import stat
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError


def load_saved(file: Path | str, most: int | None = None) -> Any:
    """The content of a file of at most so many bytes; what torch cannot read is whatever torch raises."""
    path = Path(file)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"'{file}' is not a file, but a folder, pipe or device: give the name of a file.")
    if most is not None and status.st_size > most:
        raise InputError(
            f"'{file}' has more than {most >> 20:,} MB, the most that is read: is it the right file?"
        )
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = archive.infolist()
        packed = any(part.compress_type != zipfile.ZIP_STORED for part in inside)
        if packed or sum(part.file_size for part in inside) > status.st_size:
            raise InputError(f"'{file}' is larger inside than outside, which nothing is that torch saves.")
    try:
        with warnings.catch_warnings(action="ignore"):  # of a plain pickle, which is refused in our words
            return torch.load(path, map_location=torch.get_default_device(), weights_only=True)
    except MemoryError as error:
        raise InputError(f"'{file}' is more than fits into the memory of this machine.") from error


def is_plain(value: Any) -> bool:
    """Whether something is a tensor of real numbers that are all there, each once."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested or value.is_complex())
        and value.nbytes <= value.untyped_storage().nbytes()
    )
