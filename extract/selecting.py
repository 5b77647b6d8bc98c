"""Selecting prompts: those alone that the model gets right."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data import Prompt
from ..errors import InputError
from .accuracy import judge
from .attribution import Batch
from .job import PROMPTS_AT_A_TIME
from .memory import Room
from .metrics import longest_context
from .models import Model
from .settings import Listener, Settings
from .taps import Tape
from .workers import Workers

_TOGETHER = 256
"""Prompts that one process judges before the next one's turn."""


def right_prompts(
    model: Model, prompts: Sequence[Prompt], settings: Settings, workers: Workers, listener: Listener
) -> list[Prompt]:
    """The prompts that a model gets right, in their order; all processes help, and find the same."""
    if not all(prompt.correct_answers for prompt in prompts):
        raise InputError(
            "--only-correct needs the correct answers of every prompt: add them, or leave it out."
        )
    room = Room(min(settings.batch_size or PROMPTS_AT_A_TIME, PROMPTS_AT_A_TIME), model.device, listener)
    by_length = sorted(range(len(prompts)), key=lambda p: longest_context(prompts[p], settings.metric))

    def judged(some: Sequence[int]) -> Tensor:
        batch = Batch([prompts[p] for p in some], model.parts, settings.metric)
        final = model.taps.run(batch.clean, Tape(last=batch.last())).final
        return judge(model.parts, final, batch.prompts, batch.contexts)[0]

    right: set[int] = set()
    for turn, first in enumerate(range(0, len(prompts), _TOGETHER)):
        own = by_length[first : first + _TOGETHER]
        found = torch.zeros(len(own), device=model.device)
        if workers.does(turn):
            each = room.over(
                own, judged, "prompt", lambda some: longest_context(prompts[some[-1]], settings.metric)
            )
            found = torch.cat([verdict.to(found) for _, verdict in each])
        is_right = (workers.share(found, turn) == 1).tolist()
        right |= {p for p, yes in zip(own, is_right, strict=True) if yes}
    if not right:
        raise InputError(
            f"Of {len(prompts):,} prompts the model gets none right, and --only-correct leaves nothing to score: look "
            "at the answers, or leave it out."
        )
    return [prompt for p, prompt in enumerate(prompts) if p in right]
