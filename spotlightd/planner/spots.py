"""The agents that may be given exploration, and what they amount to together. Pure.

Each decision asks for sums over a fleet of thousands, of which one agent has changed since the last
one: the sums are kept. They are whole numbers, so that they are exact, and the same whatever the
order of events.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from spotlightd.planner.seeds import keyed_hash

UNIT = 2**32
"""A worker of mean speed in the sum that `Strength` keeps."""


@dataclass(frozen=True)
class Spot:
    """One agent that may be given work."""

    workers: int
    slots: int
    """Leases that it can hold at once, those that it holds included."""


class Spots(Mapping[str, Spot]):
    """Agents by id.

    Invariants (see `validate`): `slots` and `workers` are the sums over all agents; `crew` is equal
    exactly where the same agents are there with the same workers, but for one pair in 2**64.
    """

    def __init__(self, spots: Mapping[str, Spot] | None = None) -> None:
        self.slots = self.workers = self.crew = 0
        self.restaffed: set[str] = set()
        """Agents that came, went or changed their workers since `counted_by` looked."""
        self.counted_by: Strength | None = None
        self._spots: dict[str, Spot] = {}
        for agent_id, spot in (spots or {}).items():
            self.put(agent_id, spot)

    def __getitem__(self, agent_id: str) -> Spot:
        return self._spots[agent_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spots)

    def __len__(self) -> int:
        return len(self._spots)

    def put(self, agent_id: str, spot: Spot | None) -> None:
        """An agent is there like this now; None: it is not."""
        before = self._spots.get(agent_id)
        if spot == before:
            return
        if before is not None:
            self.slots -= before.slots
        if spot is not None:
            self.slots += spot.slots
            self._spots[agent_id] = spot
        else:
            del self._spots[agent_id]
        if before is None or spot is None or before.workers != spot.workers:
            for one, sign in ((before, -1), (spot, 1)):
                if one is not None:
                    self.workers += sign * one.workers
                    self.crew ^= keyed_hash(agent_id, one.workers)
            self.restaffed.add(agent_id)

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        again = Spots(self._spots)
        assert (self.slots, self.workers, self.crew) == (again.slots, again.workers, again.crew)


class Strength:
    """The sum of speed x workers over a fleet, in workers of mean speed.

    Invariant: between two calls of `of` with the same fleet only agents in `judged` have another
    speed.
    """

    def __init__(self) -> None:
        self.judged: set[str] = set()
        """Agents whose speed was measured since."""
        self._parts: dict[str, int] = {}
        self._total = 0

    def of(self, agents: Spots, speed: Callable[[str], float]) -> float:
        if agents.counted_by is self:
            changed = self.judged | agents.restaffed
        else:
            agents.counted_by = self
            self._parts, self._total, changed = {}, 0, set(agents)
        for agent_id in changed:
            spot = agents.get(agent_id)
            part = 0 if spot is None else round(speed(agent_id) * spot.workers * UNIT)
            self._total += part - self._parts.pop(agent_id, 0)
            if part:
                self._parts[agent_id] = part
        self.judged, agents.restaffed = set(), set()
        return self._total / UNIT
