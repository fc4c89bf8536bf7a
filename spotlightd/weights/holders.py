"""Who has what, and whom a receiver is pointed to: the daemon's decisions, pure.

A receiver gets a few peers drawn at random, most of them in its own zone. The daemon itself is
named to a few receivers only: they bring each chunk into the swarm once, and everybody else takes
it from them. Whoever is starved is pointed to the daemon in any case, so a transfer always ends
while the daemon lives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

Key = tuple[str, int]
"""(kind, version)."""

NEAR_PEERS, FAR_PEERS = 12, 4
SEEDS = 16
"""Receivers of one version that are pointed to the daemon at the same time."""
REPORTERS_NEEDED = 2
"""Receivers that must have had bad chunks of a peer before it is named to nobody. One alone could
be lying, and has dropped that peer for itself anyway."""


@dataclass
class Crowd:
    """A set to draw from at random. Invariant: `place[x]` is x's index in `members`."""

    members: list[str] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)

    def add(self, member: str) -> None:
        if member not in self.place:
            self.place[member] = len(self.members)
            self.members.append(member)

    def discard(self, member: str) -> None:
        index = self.place.pop(member, None)
        if index is None:
            return
        last = self.members.pop()
        if last != member:
            self.members[index], self.place[last] = last, index

    def draw(self, count: int, rng: Random, but: Sequence[str] = ()) -> list[str]:
        """Return up to `count` members, none of them in `but`."""
        left_out = sum(1 for member in but if member in self.place)
        size = min(count + left_out, len(self.members))
        drawn = [member for member in rng.sample(self.members, size) if member not in but]
        return drawn[:count]


@dataclass(frozen=True)
class Pointed:
    """Whom a receiver is pointed to."""

    near: tuple[str, ...]
    far: tuple[str, ...]
    daemon: bool
    reason: str
    """Why the daemon is among them, or is not."""


@dataclass
class Holders:
    """Every agent that serves chunks of a version, wholly or in part.

    Invariants (see `validate`): an agent stands in the crowd of its own zone; seeds are agents
    that do not have everything yet.
    """

    rng: Random
    zones: dict[str, str] = field(default_factory=dict)
    """Agent -> zone."""
    chunks: dict[Key, dict[str, int]] = field(default_factory=dict)
    """Version -> agent -> chunks it has; -1 for all of them."""
    crowds: dict[Key, dict[str, Crowd]] = field(default_factory=dict)
    """Version -> zone -> agents."""
    seeds: dict[Key, set[str]] = field(default_factory=dict)
    reports: dict[str, set[str]] = field(default_factory=dict)
    """Accused peer -> who reported it."""

    def joined(self, agent: str, zone: str) -> None:
        self.left(agent)
        self.zones[agent] = zone

    def left(self, agent: str) -> None:
        for key in list(self.chunks):
            self._remove(key, agent)
        self.zones.pop(agent, None)

    def has(self, key: Key, agent: str, chunks: int, complete: bool) -> None:
        """An agent says how many chunks of a version it serves."""
        if agent not in self.zones:
            return
        self.chunks.setdefault(key, {})[agent] = -1 if complete else chunks
        if agent not in self.banned():
            crowds = self.crowds.setdefault(key, {})
            crowds.setdefault(self.zones[agent], Crowd()).add(agent)
        if complete:
            self.seeds.get(key, set()).discard(agent)

    def told(self, agent: str, held: dict[Key, int]) -> None:
        """A heartbeat lists all that an agent serves: what it does not list is gone."""
        for key in [k for k, agents in self.chunks.items() if agent in agents and k not in held]:
            self._remove(key, agent)

    def forget(self, key: Key) -> None:
        for table in (self.chunks, self.crowds, self.seeds):
            table.pop(key, None)

    def reported(self, peer: str, by: str) -> bool:
        """Note a bad chunk; return whether the peer is named to nobody from now on."""
        reporters = self.reports.setdefault(peer, set())
        if by == peer or by in reporters:
            return False
        reporters.add(by)
        if len(reporters) != REPORTERS_NEEDED:
            return False
        for crowds in self.crowds.values():
            for crowd in crowds.values():
                crowd.discard(peer)
        return True

    def banned(self) -> set[str]:
        return {p for p, reporters in self.reports.items() if len(reporters) >= REPORTERS_NEEDED}

    def complete(self, key: Key, agent: str) -> bool:
        return self.chunks.get(key, {}).get(agent) == -1

    def choose_seeds(self, key: Key, agents: Sequence[str]) -> None:
        """Choose, before a version is announced, who brings it into the swarm."""
        self.seeds[key] = set(self.rng.sample(list(agents), min(SEEDS, len(agents))))

    def point(self, key: Key, agent: str, starved: bool = False) -> Pointed:
        """Choose an agent's peers, and count it among those that fetch this version."""
        zone = self.zones.get(agent, "")
        crowds = self.crowds.get(key, {})
        own = crowds.get(zone, Crowd())
        near = own.draw(NEAR_PEERS + FAR_PEERS, self.rng, [agent])
        others = [z for z in crowds if z != zone]
        far: list[str] = []
        for _ in range(NEAR_PEERS + FAR_PEERS if others else 0):
            far += crowds[self.rng.choice(others)].draw(1, self.rng, [agent, *far])
        # Far ones fill what the own zone does not.
        near = near[: NEAR_PEERS + FAR_PEERS - min(FAR_PEERS, len(far))]
        far = far[: NEAR_PEERS + FAR_PEERS - len(near)]
        daemon, reason = self._seeds(key, agent, starved)
        if daemon:
            # Seeds know one another, so that no two of them ask the daemon for the same chunk.
            known = {agent, *near, *far}
            seeds = sorted(self.seeds[key] - known - self.banned())
            near += [seed for seed in seeds if self.zones.get(seed) == zone]
            far += [seed for seed in seeds if self.zones.get(seed) != zone]
        if agent in self.zones and not self.complete(key, agent):
            self.has(key, agent, self.chunks.get(key, {}).get(agent, 0), complete=False)
        return Pointed(tuple(near), tuple(far), daemon, reason)

    def _seeds(self, key: Key, agent: str, starved: bool) -> tuple[bool, str]:
        seeds = self.seeds.setdefault(key, set())
        complete = self.complete(key, agent)
        if starved:
            seeds.update(() if complete else (agent,))
            return True, "it is starved"
        if complete:
            return False, "it has everything"
        if agent in seeds or len(seeds) < SEEDS:
            seeds.add(agent)
            return True, f"one of {SEEDS} that bring chunks into the swarm"
        return False, f"{len(seeds)} others bring chunks into the swarm"

    def _remove(self, key: Key, agent: str) -> None:
        self.chunks[key].pop(agent, None)
        self.seeds.get(key, set()).discard(agent)
        for crowd in self.crowds.get(key, {}).values():
            crowd.discard(agent)

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for key, crowds in self.crowds.items():
            for zone, crowd in crowds.items():
                assert all(crowd.members[i] == m for m, i in crowd.place.items())
                assert len(crowd.members) == len(crowd.place)
                assert all(self.zones[member] == zone for member in crowd.members)
                assert set(crowd.members) <= self.chunks[key].keys()
        for key, seeds in self.seeds.items():
            held = self.chunks.get(key, {})
            assert all(held.get(agent) != -1 for agent in seeds), "a seed has everything"
