"""The processes that train together: who this one is, and what they tell each other.

Rank 0 talks to the daemon. Everything that crosses between ranks is a tensor or bytes with a
length; nothing is pickled.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from spotlightd.errors import SpotlightError

PATIENCE = timedelta(days=30)
"""Ranks wait for rank 0's next command however long rollouts take. One that waits for a dead one
is ended by torch.distributed.run, which watches them all."""


@dataclass(frozen=True)
class Ranks:
    """This process among `count`. Alone, every exchange is the identity."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """Whether this is the one that talks to the daemon."""
        return self.rank == 0

    def share(self, data: bytes = b"") -> bytes:
        """Return rank 0's bytes on every rank; the others' argument is ignored."""
        if self.count == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        content = torch.empty(int(length), dtype=torch.uint8)
        if self.leads and data:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def wait(self) -> None:
        """Return when every rank is here."""
        self.share()

    def collect(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, in order, on every rank; all of equal length."""
        if self.count == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(parts, mine)
        return [part.numpy().tobytes() for part in parts]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over ranks."""
        if self.count > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return every rank's rows, concatenated in rank order; all have the same shape."""
        if self.count == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.count)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do at once, and what fails for all: nothing is the fault of the sample in
        hand when another rank is gone, and a rank that failed alone has left the others behind.

        Raises SpotlightError, which ends this process, instead of RuntimeError. Alone, errors pass.
        """
        try:
            yield
        except RuntimeError as error:
            if self.count == 1:
                raise
            raise SpotlightError(f"the ranks cannot go on together: {error}") from error

    def mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (self.count,))


def join_ranks(device: str, sharded: bool) -> Ranks:
    """Find the other ranks, where torch.distributed.run started this process.

    Args:
        device: as configured; `auto` and `cuda` become this rank's own GPU.
        sharded: whether a process that is alone needs a process group, too.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if not dist.is_initialized():
            dist.init_process_group(backend, timeout=PATIENCE)
        return Ranks(dist.get_rank(), dist.get_world_size(), chosen)
    if sharded and not dist.is_initialized():
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return Ranks(device=chosen)


def leave_ranks() -> None:
    """End the process group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
