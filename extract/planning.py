"""Planning a call: what it would do and need, and how much of it at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..data import Prompt
from ..errors import InputError, one_of
from .asked import ask
from .job import at_a_time
from .models import DTYPES, Model, find_device, is_accelerator, load_sketch
from .placement import find_map
from .plan import Plan, largest_batch, make_plan, one_after_the_other, weights_by_device
from .settings import Listener, Settings
from .workers import Workers

_DEFAULT = Settings()


@dataclass(frozen=True)
class Planned:
    """A plan, and whether there is room for it."""

    model: str
    model_type: str
    plan: Plan
    lengths: tuple[int, int]
    """Of the shortest and the longest prompt, in tokens."""
    memory: int | None
    """Of a device, in bytes, where it is known."""
    largest: int | None
    """The largest batch size that fits it, up to the plan's; None if not even one prompt does."""


def plan_extraction(
    *,
    model: str,
    prompts: Path | str | None = None,
    task: str | None = None,
    settings: Settings = _DEFAULT,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    devices: int | None = None,
    memory: int | None = None,
) -> Planned:
    """What `extract` would do and need. Of the model, its config and tokenizer are read, no weights.

    With `memory`, in bytes, or `devices`, it is planned for so many accelerators with so much each, whether there are
    any here or not; without, for what is here.
    """
    return plan_each(
        model=model,
        prompts=prompts,
        task=task,
        settings={"": settings},
        limit=limit,
        seed=seed,
        device=device,
        dtype=dtype,
        device_map=device_map,
        devices=devices,
        memory=memory,
    )


def plan_each(
    *,
    model: str,
    settings: Mapping[str, Settings],
    prompts: Path | str | None = None,
    task: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    devices: int | None = None,
    memory: int | None = None,
) -> Planned:
    """The same of `extract_each`: the work and the disk of all runs together, and the phases of each."""
    for own in settings.values():
        own.check()
    one_of("dtype", dtype, DTYPES)
    asked = ask(model, prompts, task, limit, seed, next(iter(settings.values())))
    if device_map is not None and device != "auto":
        raise InputError(f"--device-map says where the model is: leave out --device {device}.")
    if devices is not None and device_map is None:
        raise InputError("--devices is for --device-map: without one, a process works on one device.")
    here = find_device(device)
    imagined = device == "auto" and (memory is not None or devices is not None)
    sketch = load_sketch(model, dtype=dtype, accelerator=imagined or is_accelerator(here))
    given = asked.encoded(sketch.vocabulary)
    options: dict[str, Any] = {"accelerator": imagined or is_accelerator(here)}
    if device_map is not None:
        count = devices or torch.accelerator.device_count()
        if not count:
            raise InputError(
                "There are no accelerators here to plan a --device-map for: say with --devices how many."
            )
        options["devices"] = find_map(device_map, sketch.parts, count)
    memory = free_memory(here) if memory is None else memory
    plans = {ending: make_plan(sketch, given, own, **options) for ending, own in settings.items()}
    made = one_after_the_other(plans)
    lengths = [len(prompt.clean_ids) for prompt in given]
    fitting = None
    if memory is not None:
        rooms = [memory] * len(made.blocks)
        each = [
            largest_batch(plans[ending], sketch, given, own, rooms, **options) or 0
            for ending, own in settings.items()
        ]
        fitting = min(each) or None
    return Planned(model, sketch.model_type, made, (min(lengths), max(lengths)), memory, fitting)


def with_room(
    settings: Settings, prompts: Sequence[Prompt], model: Model, workers: Workers, listener: Listener
) -> Settings:
    """Settings with a smaller batch size, where an accelerator has no room for the default.

    All processes take the size that the first one finds, because files depend on it.
    """
    if settings.batch_size is not None or free_memory(model.device) is None:
        return settings
    size = 0
    if workers.rank == 0:
        sketch = load_sketch(model.name, dtype=model.dtype_name)
        places = model.places
        numbers = [places.index(model.parts.device(layer)) for layer in range(model.shape.layers)]
        loaded = weights_by_device(sketch, numbers)
        rooms = [(free_memory(device) or 0) + own for device, own in zip(places, loaded, strict=True)]
        options: dict[str, Any] = {"accelerator": True, "devices": numbers}
        made = make_plan(sketch, prompts, settings, **options)
        size = largest_batch(made, sketch, prompts, settings, rooms, **options) or 1
    size = int(workers.share(torch.tensor(float(size), device=model.device), 0))
    if size == at_a_time(settings):
        return settings
    listener.note(f"There is room for {size} at a time on {model.device} (--batch-size {size}).")
    return replace(settings, batch_size=size)


def free_memory(device: torch.device) -> int | None:
    """How many bytes are free on an accelerator; None for other devices."""
    return torch.accelerator.get_memory_info(device)[0] if is_accelerator(device) else None
