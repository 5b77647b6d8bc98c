"""One process or several: who does which shard, and waiting for each other.

``torchrun`` says in the environment how many processes there are and which one this is. They take the shards in turn; a
shard's numbers do not depend on who does it, so with the same batch size and threads, any number of processes write the
same files.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

_PATIENCE = timedelta(days=7)
"""How long one waits for another: as long as the other may have to work."""


@dataclass(frozen=True)
class Workers:
    """The processes at work, seen from one of them."""

    rank: int
    size: int
    device: torch.device

    def does(self, shard: int) -> bool:
        """Whether a shard is this process's."""
        return shard % self.size == self.rank

    def wait(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            distributed.barrier()

    def agree(self, ok: bool) -> bool:
        """What the first process says, on all."""
        return bool(self.share(torch.tensor(float(ok), device=self.device), 0))

    def share(self, tensor: Tensor, shard: int) -> Tensor:
        """A tensor that the process of a shard has, on all; the others give one of the same shape."""
        if self.size > 1:
            distributed.broadcast(tensor, src=shard % self.size)
        return tensor


def local_rank() -> int | None:
    """Which of this machine's processes this is; None if it is on its own."""
    return int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else None


@contextmanager
def all_workers(device: torch.device) -> Iterator[Workers]:
    """Meet the other processes, if there are any."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Workers(0, 1, device)
        return
    backend = distributed.get_default_backend_for_device(device)
    own = None if device.index is None else device
    if own is not None:
        torch.accelerator.set_device_index(own)
    distributed.init_process_group(backend, timeout=_PATIENCE, device_id=own)
    yield Workers(distributed.get_rank(), distributed.get_world_size(), device)
    distributed.destroy_process_group()  # after a failure the others may never come to do the same
