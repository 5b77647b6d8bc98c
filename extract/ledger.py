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
        self._now: Counter[str] = Counter()
        self.at_peak: dict[str, int] = {}
        """Bytes by what made them, when they were most."""

    @property
    def peak(self) -> int:
        """The most bytes that were alive at a time."""
        return sum(self.at_peak.values())

    def begin(self) -> None:
        """Forget the peak: what is alive now is the most so far."""
        self.at_peak = dict(self._now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and write down what is new."""
        result = self.do(func, args, kwargs or {})
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.device.type in self._types:
                self._enter(made.untyped_storage(), given)
        return result

    def do(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives."""
        return func(*args, **kwargs)

    def _enter(self, storage: Any, given: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in given or key in self._alive or not size:
            return
        maker = self._maker()

        def freed(_: object) -> None:
            del self._alive[key]
            self._now[maker] -= size

        self._alive[key] = weakref.ref(storage, freed)
        self._now[maker] += size
        if self._now.total() > self.peak:
            self.at_peak = dict(self._now)

    def _maker(self) -> str:
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            if name := self._names.get(frame.f_code.co_qualname):
                return name
            frame = frame.f_back
        return OTHER
