"""A worker's seat in sequence-parallel views: which generation it serves, and with whom.

Enter -> Entered -> at each boundary the leader announces: go on, or stop -> Left

A worker outside any view sits alone at generation 0. Only the leader hears from the agent within a
view; its announcement is what lets all members stop at the same boundary.
"""

import zlib
from collections.abc import Sequence

import torch

from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.sequence_parallel import SequenceParallel
from spotlightd.dit.sp_group import GroupBrokenError, GroupMaker, Place, SpGroup
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer
from spotlightd.wire.messages import HeldLease

Leased = tuple[w.Sample, Sequence[Buffer]]


class Seat:
    """Invariant: `together` exactly while the model computes with a group."""

    def __init__(self, model: DiffusionModel) -> None:
        self._model = model
        self.generation = 0
        self.parting = False
        """The agent asked this leader to end the view at the next boundary."""
        self._rank = 0
        self._group: SpGroup | None = None
        self._parallel: SequenceParallel | None = None
        self._maker: GroupMaker | None = None
        self._store_port = 0
        self._arrived: list[Leased] = []

    @property
    def together(self) -> bool:
        return self._group is not None

    @property
    def leads(self) -> bool:
        return self._rank == 0

    @property
    def degree(self) -> int:
        return self._group.degree if self._group is not None else 1

    def expect(self, message: w.Sample, frames: Sequence[Buffer]) -> None:
        """Keep a lease of a view that will be entered next."""
        self._arrived = [kept for kept in self._arrived if kept[0].generation == message.generation]
        self._arrived.append((message, frames))

    def enter(self, message: w.Enter) -> list[Leased]:
        """Take the place and return the view's leases, once all members are there.

        Raises GroupBrokenError where they do not come in time.
        """
        arrived, self._arrived = self._arrived, []
        self.generation, self._rank, self.parting = message.generation, message.rank, False
        if self._maker is not None:
            for name in message.forget:
                self._maker.forget(name)
        if message.degree > 1:
            place = Place(message.name, message.rank, message.degree)
            self._group = self._makes_groups(message).enter(place)
            self._share().group = self._group
        return [leased for leased in arrived if leased[0].generation == message.generation]

    def compare(self, held: Sequence[tuple[HeldLease, int]]) -> None:
        """Check that all members of a view hold the same trajectories at the same steps.

        Raises GroupBrokenError: a member that took steps of its own would spoil everybody's.
        """
        if self._group is None:
            return
        ours = zlib.crc32(repr([(h.request_id, h.fence, step) for h, step in held]).encode())
        if self._group.announce(ours) != ours:
            self._group.close()
            raise GroupBrokenError(f"group {self._group.name}: members hold different trajectories")

    def goes_on(self, stop: bool) -> bool:
        """Return the leader's decision for this boundary; `stop` is the leader's own.

        Raises GroupBrokenError.
        """
        assert self._group is not None
        word = self._group.announce(2 * self.generation + (not stop))
        if word // 2 != self.generation:
            name = self._group.name
            self._group.close()
            raise GroupBrokenError(f"group {name}: the leader is at generation {word // 2}")
        return bool(word % 2)

    def leave(self, broken: bool) -> None:
        """Sit alone again; a broken group is closed for good."""
        group, self._group, self._rank, self.parting = self._group, None, 0, False
        if self._parallel is not None:
            self._parallel.group = None
        if group is not None and broken:
            group.close()
            assert self._maker is not None
            self._maker.forget(group.name)

    def _share(self) -> SequenceParallel:
        if self._parallel is None:
            self._parallel = SequenceParallel(self._model.transformer)
        return self._parallel

    def _makes_groups(self, message: w.Enter) -> GroupMaker:
        if self._maker is None or message.store_port != self._store_port:
            if self._maker is not None:
                self._maker.close()
            device = torch.device(self._model.device)
            self._maker = None
            self._maker = GroupMaker(message.store_port, device, message.timeout_s)
            self._store_port = message.store_port
        return self._maker
