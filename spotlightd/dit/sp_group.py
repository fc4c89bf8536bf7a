"""Process groups of a VM's workers: small, made on demand, cheap to throw away.

Nothing here touches torch's default group, whose members would have to live and die together. A
group is made by its members alone through a store that the agent holds, under a name that no other
group ever had, so a message of an older one has no way in.

Collectives are plain ones with a short timeout. The first error of any kind breaks a group: it is
closed at once, because only closed sockets let the other members fail fast too.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from spotlightd.errors import SpotlightError

c10d: Any = dist
"""Torch's type stubs do not name what groups outside its default one are made of."""
LOOPBACK = "127.0.0.1"


class GroupBrokenError(SpotlightError):
    """A member died, hung or left: the step is void, and so is the group."""


class Place(NamedTuple):
    """Where a group meets, and this process's place in it."""

    name: str
    """Unique for the store's life."""
    rank: int
    degree: int


class SpGroup:
    """Collectives of one group. Raises GroupBrokenError; from then on the group is closed."""

    def __init__(self, place: Place, control: Any, data: Any, device: torch.device) -> None:
        self.name, self.rank, self.degree = place
        self._control: Any = control
        """gloo: words on the CPU."""
        self._data: Any = data
        """NCCL for tensors on a GPU; else the same as `_control`."""
        self._device = device

    @property
    def closed(self) -> bool:
        return self._control is None

    def exchange(self, sent: Tensor, sent_sizes: list[int], sizes: list[int]) -> Tensor:
        """All-to-all of consecutive elements; returns what came, in rank order."""
        received = sent.new_empty(sum(sizes))
        with self._breaking() as (_, data):
            work = data.alltoall_base(received, sent, sizes, sent_sizes, c10d.AllToAllOptions())
            work.wait()
        return received

    def gather(self, mine: Tensor) -> Tensor:
        """Return [P, *mine.shape]."""
        everyone = mine.new_empty((self.degree, *mine.shape))
        with self._breaking() as (_, data):
            data._allgather_base(everyone.flatten(), mine.flatten()).wait()
        return everyone

    def announce(self, word: int) -> int:
        """Return rank 0's word on every rank."""
        words = torch.tensor([word], dtype=torch.int64)
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        with self._breaking() as (control, _):
            control.broadcast([words], options).wait()
        return int(words)

    def agree(self) -> None:
        """Return once every member is here."""
        with self._breaking() as (control, data):
            control.allreduce([torch.zeros(1)]).wait()
            if data is not control:
                data.allreduce([torch.zeros(1, device=self._device)]).wait()
                torch.cuda.synchronize(self._device)

    def settle(self) -> None:
        """Wait until what was queued on a GPU has ended well on every rank; on a CPU it has.

        An aborted NCCL collective leaves whatever was in its buffer, and no error here.
        """
        with self._breaking() as (control, data):
            if data is not control:
                torch.cuda.synchronize(self._device)
                control.allreduce([torch.zeros(1)]).wait()

    def close(self) -> None:
        """Close all connections. May be called again."""
        control, data, self._control, self._data = self._control, self._data, None, None
        if control is None:
            return
        for part in {id(control): control, id(data): data}.values():
            with contextlib.suppress(RuntimeError):
                part.abort() if part is not control else part.shutdown()

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[tuple[Any, Any]]:
        if self.closed:
            raise GroupBrokenError(f"group {self.name} is closed")
        try:
            yield self._control, self._data
        except RuntimeError as error:
            self.close()
            reason = str(error).partition("\n")[0][:300]
            raise GroupBrokenError(f"group {self.name} broke: {reason}") from None


def make_store() -> Any:
    """Return a store on a port of this host that the system chose (`.port`)."""
    return c10d.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)


class GroupMaker:
    """Makes groups through the agent's store, and keeps each until it is told to forget it.

    What to keep is for the agent to say: one member that forgot a group which the others kept
    would wait for them in vain.

    Args:
        port: of the agent's store, on this host.
        timeout_s: of a collective, and of meeting.

    Raises:
        GroupBrokenError: the store does not answer.
    """

    def __init__(self, port: int, device: torch.device, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._device = device
        try:
            self._store = c10d.TCPStore(
                LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=self._timeout
            )
        except RuntimeError as error:
            raise GroupBrokenError(f"the agent's store does not answer: {error}") from None
        self._groups: dict[str, SpGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def enter(self, place: Place) -> SpGroup:
        """Return the group, made now or before, once every member has entered it.

        Raises GroupBrokenError where not all come in time.
        """
        group = self._groups.get(place.name)
        if group is None:
            group = self._groups[place.name] = self._make(place)
        try:
            group.agree()
        except GroupBrokenError:
            self.forget(place.name)
            raise
        return group

    def forget(self, name: str) -> None:
        """Close a group that will not be entered again."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.close()

    def close(self) -> None:
        for name in list(self._groups):
            self.forget(name)

    def _make(self, place: Place) -> SpGroup:
        store = c10d.PrefixStore(place.name, self._store)
        try:
            control = _gloo(c10d.PrefixStore("control", store), place, self._timeout)
            data = control
            if self._device.type == "cuda":
                data = _nccl(c10d.PrefixStore("data", store), place, self._timeout)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0][:300]
            raise GroupBrokenError(f"group {place.name} did not meet: {reason}") from None
        return SpGroup(place, control, data, self._device)


def _gloo(store: Any, place: Place, timeout: timedelta) -> Any:
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._threads = 1
    # The host's own name may lead anywhere; all members are on this host.
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    return c10d.ProcessGroupGloo(store, place.rank, place.degree, options)


def _nccl(store: Any, place: Place, timeout: timedelta) -> Any:
    """Untested: written without a node of several GPUs (docs/sequence-parallel.md)."""
    # A failed collective is to end in an abort, not in the end of the process.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    # A blocking communicator would hold its thread past the abort of the group.
    options.config.blocking = 0
    return c10d.ProcessGroupNCCL(store, place.rank, place.degree, options)
