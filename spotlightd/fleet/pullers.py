"""Processes that pull work: their credit, and what they hold. Pure."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from spotlightd.wire.messages import Role

Line = OrderedDict[str, None]
"""Names in order; any of them leaves in constant time."""


@dataclass
class Puller:
    role: Role
    credit: int = 0
    versions: frozenset[int] = frozenset()
    held: set[str] = field(default_factory=set)
    backups: set[str] = field(default_factory=set)
    """Requests that it works on under a second lease."""

    @property
    def idle(self) -> bool:
        return self.credit > 0 and not self.held and not self.backups


class Pullers(dict[str, Puller]):
    """By agent id. `hungry` are exactly those with credit, longest without first.

    `touched` are those whose credit, versions or leases may have changed since whoever reads it has
    cleared it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hungry = Line()
        self.touched: set[str] = set()

    def join(self, agent_id: str, puller: Puller) -> None:
        self[agent_id] = puller
        self.touched.add(agent_id)

    def leave(self, agent_id: str) -> Puller:
        """Forget a puller; an empty one stands for a stranger."""
        self.hungry.pop(agent_id, None)
        self.touched.add(agent_id)
        return self.pop(agent_id, None) or Puller("agent")

    def give(self, agent_id: str, credit: int, versions: Iterable[int]) -> None:
        puller = self.get(agent_id)
        if puller is not None:
            puller.credit += credit
            puller.versions = frozenset(versions)
            self.touched.add(agent_id)
            if puller.credit:
                self.hungry[agent_id] = None

    def revoke_credit(self, agent_id: str) -> None:
        if agent_id in self:
            self[agent_id].credit = 0
            self.touched.add(agent_id)
            self.hungry.pop(agent_id, None)

    def hold(self, agent_id: str, request_id: str) -> None:
        """It works on the request, under its first lease."""
        self[agent_id].held.add(request_id)
        self.touched.add(agent_id)

    def spend(self, agent_id: str) -> None:
        puller = self[agent_id]
        puller.credit -= 1
        self.touched.add(agent_id)
        if not puller.credit:
            del self.hungry[agent_id]

    def holds(self, agent_id: str | None, request_id: str) -> bool:
        """Return whether this puller is there, and holds the request under its first lease."""
        puller = self.get(agent_id or "")
        return puller is not None and request_id in puller.held

    def release(self, agent_id: str | None, request_id: str) -> None:
        """It works on the request no more, under whichever lease."""
        puller = self.get(agent_id or "")
        if puller is not None:
            puller.held.discard(request_id)
            puller.backups.discard(request_id)
            self.touched.add(agent_id or "")

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for agent_id, puller in self.items():
            assert puller.credit >= 0, puller
            assert (agent_id in self.hungry) == (puller.credit > 0), puller
        assert self.hungry.keys() <= self.keys()
