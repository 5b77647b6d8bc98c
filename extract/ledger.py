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
    """Around some work: the memory of the tensors that it makes on devices of some types."""

    def __init__(self, devices: Iterable[torch.device], names: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._types, self._names = {device.type for device in devices}, names or {}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._by_maker: Counter[str] = Counter()
        self._now = 0
        self.peak = 0
        """The most bytes that were alive at a time."""
        self.at_peak: dict[str, int] = {}
        """These bytes, by what made them."""

    def begin(self) -> None:
        """Forget the peak: what is alive now is the most so far."""
        self.peak, self.at_peak = self._now, dict(self._by_maker)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and write down what is new."""
        result = self.do(func, args, kwargs or {})
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.device.type in self._types:
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
            self._now -= size
            self._by_maker[maker] -= size

        self._alive[key] = weakref.ref(storage, freed)
        self._now += size
        self._by_maker[maker] += size
        if self._now > self.peak:
            self.begin()

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
