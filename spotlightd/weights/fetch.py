"""Which chunk to ask of whom: the receiver's decisions, pure.

Several peers are asked at once, the least loaded first and agents before the daemon. A chunk is
asked of one peer at a time. A peer that served a bad chunk is dropped for good, one that is
silent or refuses is dropped for this transfer; what it owed is asked of others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

OUTSTANDING_PER_PEER = 4


@dataclass(frozen=True)
class Ask:
    peer_id: str
    digest: str


@dataclass(frozen=True)
class DropPeer:
    peer_id: str
    bad_digest: str | None
    """The chunk that was not what its digest says; None for a silent or refusing peer."""
    reason: str


Decision = Ask | DropPeer


@dataclass
class Fetch:
    """One transfer.

    Invariants: a missing chunk is asked of at most one peer; no peer owes more than
    `outstanding` chunks; dropped peers owe nothing.
    """

    missing: list[str]
    outstanding: int = OUTSTANDING_PER_PEER
    peers: list[str] = field(default_factory=list)
    """In order of preference."""
    owed: dict[str, dict[str, float]] = field(default_factory=dict)
    """Peer -> digest -> when it was asked."""
    fetched_from: dict[str, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return not self.missing

    @property
    def stuck(self) -> bool:
        """No peer is left to ask."""
        return not self.done and not self.peers

    def add_peers(self, peers: Iterable[str], now: float) -> list[Decision]:
        self.peers += [p for p in peers if p not in self.peers]
        return self._ask(now)

    def received(self, peer_id: str, digest: str, good: bool, now: float) -> list[Decision]:
        """A chunk arrived, and `good` says whether it is what its digest says."""
        if not good:
            return [*self._drop(peer_id, digest, "served a bad chunk"), *self._ask(now)]
        self.owed.get(peer_id, {}).pop(digest, None)
        if digest in self.missing:
            self.missing.remove(digest)
            self.fetched_from[peer_id] = self.fetched_from.get(peer_id, 0) + 1
        return self._ask(now)

    def refused(self, peer_id: str, digest: str, now: float) -> list[Decision]:
        """The peer does not serve this chunk (any more)."""
        if digest not in self.owed.get(peer_id, {}):
            return []
        return [*self._drop(peer_id, None, "refused a chunk"), *self._ask(now)]

    def tick(self, now: float, timeout_s: float) -> list[Decision]:
        """Drop peers that owe a chunk for longer than `timeout_s`."""
        silent = [
            peer_id
            for peer_id, chunks in self.owed.items()
            if chunks and now - min(chunks.values()) > timeout_s
        ]
        decisions: list[Decision] = []
        for peer_id in silent:
            decisions += self._drop(peer_id, None, f"silent for more than {timeout_s:g} s")
        return decisions + self._ask(now)

    def _drop(self, peer_id: str, bad_digest: str | None, reason: str) -> list[Decision]:
        if peer_id not in self.peers:
            return []
        self.peers.remove(peer_id)
        self.owed.pop(peer_id, None)
        return [DropPeer(peer_id, bad_digest, reason)]

    def _ask(self, now: float) -> list[Decision]:
        asked = {digest for chunks in self.owed.values() for digest in chunks}
        decisions: list[Decision] = []
        for digest in self.missing:
            if digest in asked:
                continue
            free = [p for p in self.peers if len(self.owed.get(p, {})) < self.outstanding]
            if not free:
                break
            peer_id = min(free, key=lambda p: len(self.owed.get(p, {})))
            self.owed.setdefault(peer_id, {})[digest] = now
            decisions.append(Ask(peer_id, digest))
        return decisions

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        asked = [digest for chunks in self.owed.values() for digest in chunks]
        assert len(asked) == len(set(asked)), "a chunk is asked of two peers"
        assert all(len(chunks) <= self.outstanding for chunks in self.owed.values())
        assert set(self.owed) <= set(self.peers), "a dropped peer owes chunks"
