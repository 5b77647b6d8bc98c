"""Where the blocks of a model are when one device does not hold them all.

A map says for each block on which device it is. Everything that is in no block (embeddings, the last norm, the
unembedding, rotary angles) is at *home*, on the device of the last block, where scores and circuits are computed as
well. Blocks run one after the other: what goes into one is moved to it (`Taps`), and what a layer keeps stays with it
until it is needed.

Blocks are put where they belong by Wirescope itself: accelerate's hooks stand in for the `forward` of modules, as taps
do, and would move tensors behind their backs. Nothing is offloaded to slower memory.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError
from .parts import Parts

AUTO = "auto"
_TORCHRUN = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))


def accelerators() -> list[torch.device]:
    """The accelerators of this process: all that are here, or its share if there are several processes."""
    kind, count = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
    rank, processes = (int(os.environ.get(name, default)) for name, default in _TORCHRUN)
    own = count // processes
    if kind is None or own < 2:
        each = f" for each of {processes} processes" if processes > 1 else ""
        raise InputError(
            f"--device-map spreads a model over several accelerators{each}, but there are {count} here; --plan "
            "--device-map auto --devices 2 says what two would need."
        )
    return [torch.device(kind.type, rank * own + i) for i in range(own)]


def find_devices(device: str, device_map: str) -> list[torch.device]:
    """The devices for a map; several processes meet on the last one, which is home."""
    if device != "auto":
        raise InputError(
            f"--device {device} and --device-map exclude each other: a map is over all accelerators."
        )
    if device_map != AUTO and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "A map from a file is for one process; with several, --device-map auto gives each its share of devices."
        )
    return accelerators()


def find_map(device_map: str, parts: Parts, count: int) -> list[int]:
    """The number of each block's device, of so many devices: `auto`, or a file."""
    if device_map == AUTO:
        numbers = spread(*weight_sizes(parts), count)
        unused = (
            count - 1 - numbers[-1]
        )  # where blocks are fewer than devices; the last one is home in any case
        return [unused + number for number in numbers]
    numbers = _read_map(Path(device_map), len(parts.blocks))
    if max(numbers) >= count:
        raise InputError(
            f"The map '{device_map}' has a device {max(numbers)}, but there are {count}, counted from 0."
        )
    return numbers


def spread(blocks: Sequence[int], rest: int, count: int) -> list[int]:
    """Blocks of these sizes in their order on so many devices, alike in all; the last one has the rest as well.

    >>> spread([4, 4, 4, 4], 0, 2)
    [0, 0, 1, 1]
    >>> spread([4, 4, 4, 4], 4, 2)
    [0, 0, 0, 1]
    """
    count = min(count, len(blocks))
    devices: list[int] = []
    left, load, device = sum(blocks) + rest, 0, 0
    for i, size in enumerate(blocks):
        share = left / (count - device)
        full = (load and load + size / 2 > share) or len(blocks) - i <= count - 1 - device
        if full and device < count - 1:
            left, load, device = left - load, 0, device + 1
        devices.append(device)
        load += size
    return devices


def weight_sizes(parts: Parts) -> tuple[list[int], int]:
    """The bytes of each block's weights, and of all that are in none; what is tied counts once."""
    blocks = [list(block.module.parameters()) for block in parts.blocks]
    inside = {id(weight) for block in blocks for weight in block}
    others = {id(w): w for module in (parts.base, parts.unembed) for w in module.parameters()}
    return (
        [sum(weight.nbytes for weight in block) for block in blocks],
        sum(weight.nbytes for key, weight in others.items() if key not in inside),
    )


def place(model: nn.Module, parts: Parts, devices: Sequence[torch.device]) -> None:
    """Put each block on its device, and all else where the last one is. Parts found before hold on to what was."""
    where = {
        module: device
        for block, device in zip(parts.blocks, devices, strict=True)
        for module in block.module.modules()
    }
    moved: dict[int, tuple[Tensor, Tensor]] = {}  # what is tied stays so
    for module in model.modules():
        device = where.get(module, devices[-1])
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    _, there = moved.setdefault(id(tensor), (tensor, _on(device, tensor)))
                    own[name] = there  # type: ignore[assignment]


def _on(device: torch.device, tensor: Tensor) -> Tensor:
    there = tensor.detach().to(device)
    return nn.Parameter(there, requires_grad=False) if isinstance(tensor, nn.Parameter) else there


def _read_map(file: Path, layers: int) -> list[int]:
    """A map as transformers keeps it: a JSON object of module names and devices; a block's name ends in its number."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no file '{file}' with a map; --device-map auto makes one.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"The map '{file}' cannot be read as JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"The map '{file}' is not a JSON object: write {{\"model.layers.0\": 0, ...}}.")
    numbers: dict[int, int] = {}
    for name, device in found.items():
        where = re.fullmatch(r"(?:[a-z]+:)?(\d+)", str(device))
        if where is None:
            raise InputError(
                f"The map '{file}' puts {name} on '{device}': blocks are on accelerators, by number (0, 1, ...); "
                "nothing is offloaded."
            )
        if layer := re.fullmatch(r"(?:.*\.)?(\d+)", name):
            numbers[int(layer[1])] = int(where[1])
    if sorted(numbers) != list(range(layers)):
        lacking = sorted({*range(layers)} - {*numbers}) or sorted({*numbers} - {*range(layers)})
        raise InputError(
            f"The map '{file}' is not of the model's {layers} blocks: look at block {lacking[0]}."
        )
    return [numbers[layer] for layer in range(layers)]
