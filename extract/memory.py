"""As much at a time as fits into memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from ..errors import ExtractionError
from .settings import Listener

_TRY = (
    "try --dtype bfloat16, a smaller --batch-size, shorter prompts, --merge-qkv, several devices (--device-map auto), "
    "or one with more memory"
)
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Room:
    """How many things are done at a time; they become fewer where memory is short."""

    def __init__(self, size: int, device: torch.device, listener: Listener) -> None:
        self.size, self._device, self._listener = size, device, listener

    def over(
        self,
        items: Sequence[_Item],
        work: Callable[[Sequence[_Item]], _Result],
        what: str,
        tokens: Callable[[Sequence[_Item]], int],
    ) -> Iterator[tuple[Sequence[_Item], _Result]]:
        """Do work on all items, some at a time; in case one does not fit, its name and its tokens are said."""
        done = 0
        while done < len(items):
            some = items[done : done + self.size]
            result = self.tried(partial(work, some), len(some), what, partial(tokens, some))
            if result is not None:
                done += len(some)
                yield some, result

    def tried(
        self, work: Callable[[], _Result], count: int, what: str, tokens: Callable[[], int]
    ) -> _Result | None:
        """The result of work on so many things, or None where it takes more memory than there is."""
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        if count == 1:
            raise ExtractionError(
                f"There is not enough memory on {self._device} for one {what} of {tokens()} tokens: {_TRY}."
            )
        self.size = count // 2
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        some = f"{self.size} {what}{'s' if self.size > 1 else ''}"
        self._listener.note(f"Out of memory: going on with {some} at a time (--batch-size {self.size}).")
        return None


def no_room(device: torch.device) -> ExtractionError:
    """What is said where not even the model fits."""
    return ExtractionError(f"There is not enough memory on {device} for the model: {_TRY}.")


def out_of_memory(error: BaseException) -> bool:
    """Whether that is what an error is about."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(words in text for words in _NO_MEMORY)
