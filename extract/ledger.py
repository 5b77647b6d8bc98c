"""A ledger of tensor memory: how much of it is alive when most is, and what made it.

Every operation of torch passes by, and what it makes is written down until it is freed: storages, not tensors, so
that a view costs nothing. That is what an allocator is asked for; it rounds up. What made something is the innermost
function on the stack that has a name in the ledger.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OTHER = "other"


class Ledger(TorchDispatchMode):
    """Around some work: the memory of the tensors that it makes on some devices, or on any of a type without number."""

    def __init__(self, devices: Iterable[torch.device], names: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._devices, self._names = set(devices), names or {}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now: Counter[str] = Counter()
        """The bytes that are alive, by what made them."""
        self.begin()

    def begin(self) -> None:
        """Forget the peak: what is alive now is the most so far."""
        self.at_peak = dict(self.now)
        """The bytes that were alive when they were most."""
        self.peak = self.now.total()

    def entered(self) -> None:
        """Something was written down."""
        if (now := self.now.total()) > self.peak:
            self.peak, self.at_peak = now, dict(self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and write down what is new."""
        result = self.do(func, args, kwargs or {})
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and self._devices & {made.device, torch.device(made.device.type)}:
                storage = made.untyped_storage()
                if storage._cdata not in self._alive and not _given(storage, (args, kwargs)):
                    self._enter(storage)
        return result

    def do(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives."""
        return func(*args, **kwargs)

    def _enter(self, storage: Any) -> None:
        key, size, maker = storage._cdata, storage.nbytes(), self._maker()

        def freed(_: object) -> None:
            del self._alive[key]
            self.now[maker] -= size

        self._alive[key] = weakref.ref(storage, freed)
        self.now[maker] += size
        self.entered()

    def _maker(self) -> str:
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            if name := self._names.get(frame.f_code.co_qualname):
                return name
            frame = frame.f_back
        return OTHER


def _given(storage: Any, arguments: Any) -> bool:
    """Whether an operation got it, and made a view of it."""
    tensors = (x for x in tree_leaves(arguments) if isinstance(x, Tensor))
    return any(x.untyped_storage()._cdata == storage._cdata for x in tensors)
