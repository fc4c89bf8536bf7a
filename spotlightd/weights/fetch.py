"""Which chunk to ask of whom: the receiver's decisions, pure.

    peers, news of what they have, chunks, time --> Fetch --> Ask, DropPeer, FindPeers

Sets of chunks are bit masks in integers (bit i is the i-th chunk of the manifest): counting,
choosing and forgetting are a few machine words each, so that the same code runs in virtual time
for ten thousand receivers.

Near peers come before far ones, and all of them before the daemon: whoever is farther is asked
only for what nobody nearer has to give. Among what a peer has, the rarest chunk goes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

NEAR, FAR, DAEMON = 0, 1, 2

BUSY_LEAST_S, BUSY_MOST_S = 0.02, 1.0
"""How long a peer that was busy is left alone: doubled each time, halved by each chunk."""
LATE_LEAST_S, LATE_FACTOR = 0.5, 4.0
"""With nothing left to ask for, a chunk that takes longer than this, or than so many times the
usual, is asked of a second peer."""
MOST_IN_FLIGHT = 8
"""Chunks that all peers together may owe."""
STARVED_S = 0.5
SEARCH_EVERY_S = 2.0

Refusal = Literal["busy", "elsewhere", "unknown", "ticket"]


class Source(NamedTuple):
    """A peer as a transfer sees it."""

    peer_id: str
    rank: int
    """NEAR, FAR or DAEMON."""
    complete: bool = False
    """Known to have every chunk; otherwise its news will say."""


@dataclass(frozen=True)
class Ask:
    peer_id: str
    chunk: int


@dataclass(frozen=True)
class DropPeer:
    peer_id: str
    bad_chunk: int | None
    """The chunk that was not what its digest says; None for a silent peer."""
    reason: str


@dataclass(frozen=True)
class FindPeers:
    """Ask the daemon who else has chunks."""

    starved: bool
    """Nobody known has what is missing: the daemon's own chunks are wanted."""
    reason: str


Decision = Ask | DropPeer | FindPeers


@dataclass
class _Peer:
    rank: int
    have: int = 0
    owed: dict[int, float] = field(default_factory=dict)
    """Chunk -> when it was asked."""
    busy_until: float = 0.0
    busy_s: float = BUSY_LEAST_S


@dataclass
class Fetch:
    """One transfer.

    Invariants (see `validate`): `asked` is the union of what peers owe; a chunk is owed by two
    peers at most, and `hedged` are those that are; no peer owes more than `window` chunks;
    `levels[k]` are the chunks that more than k peers have.

    Args:
        missing: chunks to fetch.
        total: chunks in the manifest.
        rng: breaks ties between equally rare chunks, so that receivers differ.
        window: chunks that one peer may owe.
        in_flight: chunks that all peers together may owe.
    """

    missing: int
    total: int
    rng: Random
    window: int = 4
    in_flight: int = MOST_IN_FLIGHT
    peers: dict[str, _Peer] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    asked: int = 0
    hedged: set[int] = field(default_factory=set)
    """Chunks that two peers owe."""
    owing: int = 0
    """Number of (peer, chunk) pairs that are owed."""
    fetched_from: dict[str, int] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    """Peers that served a bad chunk; they are not taken back."""
    usual_s: float = 0.0
    """Moving average of the time from asking to receiving."""
    last_progress: float = 0.0
    last_search: float = 0.0

    @property
    def done(self) -> bool:
        return not self.missing

    @property
    def stuck(self) -> bool:
        """No peer is left to ask."""
        return not self.done and not self.peers

    def owes(self, peer_id: str, chunk: int) -> bool:
        peer = self.peers.get(peer_id)
        return peer is not None and chunk in peer.owed

    def is_bad(self, peer_id: str) -> bool:
        """It served a bad chunk in this transfer."""
        return peer_id in self.bad

    # --- events -------------------------------------------------------------------------------

    def add_peers(self, sources: Iterable[Source], now: float) -> list[Decision]:
        for source in sources:
            if source.peer_id in self.bad:
                continue
            peer = self.peers.setdefault(source.peer_id, _Peer(source.rank))
            peer.rank = source.rank
            if source.complete:
                self._learn(peer, (1 << self.total) - 1)
        self.last_progress = self.last_progress or now
        return self._ask_all(now)

    def has(self, peer_id: str, chunks: int, now: float) -> list[Decision]:
        """A peer says what it has; it may have gained or lost chunks since."""
        peer = self.peers.get(peer_id)
        if peer is None:
            return []
        if peer.have & ~chunks:
            self._unlearn(peer, peer.have & ~chunks)
        self._learn(peer, chunks & ((1 << self.total) - 1))
        return self._ask(peer_id, peer, now)

    def received(self, peer_id: str, chunk: int, good: bool, now: float) -> list[Decision]:
        """A chunk arrived, and `good` says whether it is what its digest says."""
        peer = self.peers.get(peer_id)
        if not good:
            self.bad.add(peer_id)
            return [*self._drop(peer_id, chunk, "served a bad chunk"), *self._ask_all(now)]
        bit = 1 << chunk
        if peer is not None and chunk in peer.owed:
            took_s = now - self._settle(peer, chunk)
            self.usual_s += (took_s - self.usual_s) * (0.2 if self.usual_s else 1.0)
            peer.busy_s = max(peer.busy_s / 2, BUSY_LEAST_S)
        if self.missing & bit:
            self.missing ^= bit
            self.last_progress = now
            self.fetched_from[peer_id] = self.fetched_from.get(peer_id, 0) + 1
        if self.owing == self.in_flight - 1:
            # Others were held back by the limit on all together.
            return self._ask_all(now)
        return self._ask(peer_id, peer, now) if peer is not None else []

    def refused(self, peer_id: str, chunk: int, why: Refusal, now: float) -> list[Decision]:
        """The peer does not serve this chunk: not now, or not any more."""
        peer = self.peers.get(peer_id)
        if peer is None or chunk not in peer.owed:
            return []
        self._settle(peer, chunk)
        if why in ("unknown", "elsewhere"):
            # Whoever gets it elsewhere hears of it from there; who starves, learns it again.
            self._unlearn(peer, 1 << chunk)
        elif why == "ticket":
            return self.shut_out(peer_id, now)
        else:
            wait_s = max(peer.busy_s, self.usual_s / 2) * self.rng.uniform(0.75, 1.25)
            peer.busy_until = now + wait_s
            peer.busy_s = min(peer.busy_s * 2, BUSY_MOST_S)
        return self._ask_all(now)

    def shut_out(self, peer_id: str, now: float) -> list[Decision]:
        """The peer does not take our ticket; whoever asks the daemon for peers gets a new one."""
        return [*self._drop(peer_id, None, "refuses our ticket"), *self._ask_all(now)]

    def disconnected(self, peer_id: str, now: float) -> list[Decision]:
        """The connection is gone, and with it what was asked; ZeroMQ makes another."""
        peer = self.peers.get(peer_id)
        if peer is None:
            return []
        for chunk in list(peer.owed):
            self._settle(peer, chunk)
        peer.busy_until = now + peer.busy_s
        peer.busy_s = min(peer.busy_s * 2, BUSY_MOST_S)
        return self._ask_all(now)

    def retry(self, peer_id: str, now: float) -> list[Decision]:
        """A peer that was busy may be asked again."""
        peer = self.peers.get(peer_id)
        return self._ask(peer_id, peer, now) if peer is not None else []

    def tick(self, now: float, timeout_s: float) -> list[Decision]:
        """Drop peers that owe a chunk for longer than `timeout_s`; look for others when starved."""
        decisions: list[Decision] = []
        for peer_id, peer in list(self.peers.items()):
            if peer.owed and now - min(peer.owed.values()) > timeout_s:
                decisions += self._drop(peer_id, None, f"silent for more than {timeout_s:g} s")
        decisions += self._ask_all(now)
        decisions += self._hedge(now)
        starved = not self.done and not self.owing and now - self.last_progress > STARVED_S
        if (starved or self.stuck) and now - self.last_search > SEARCH_EVERY_S:
            self.last_search = now
            why = "no peer is left" if self.stuck else "no peer has what is missing"
            decisions.append(FindPeers(True, why))
        return decisions

    # --- choosing -----------------------------------------------------------------------------

    def _ask_all(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        if not self.missing & ~self.asked or self.owing >= self.in_flight:
            return decisions
        order = sorted(self.peers.items(), key=lambda item: (item[1].rank, len(item[1].owed)))
        asking = True
        while asking:
            # One each per round: work is spread before windows are filled.
            asking = False
            for peer_id, peer in order:
                if self.owing >= self.in_flight:
                    return decisions
                asked = self._ask(peer_id, peer, now, most=1)
                decisions += asked
                asking = asking or bool(asked)
        return decisions

    def _ask(self, peer_id: str, peer: _Peer, now: float, most: int = 64) -> list[Decision]:
        decisions: list[Decision] = []
        if self.owing >= self.in_flight or now < peer.busy_until:
            return decisions
        # Many peers and one chunk of each spread the load better than few and four of each.
        window = min(self.window, max(self.in_flight // len(self.peers), 1))
        while len(decisions) < most and len(peer.owed) < window:
            if self.owing >= self.in_flight:
                break
            wanted = peer.have & self.missing & ~self.asked
            if wanted and peer.rank:
                wanted &= ~self._nearer(peer.rank, now)
            if not wanted:
                break
            decisions.append(self._owe(peer_id, peer, self._rarest(wanted), now))
        return decisions

    def _owe(self, peer_id: str, peer: _Peer, chunk: int, now: float) -> Ask:
        peer.owed[chunk] = now
        self.asked |= 1 << chunk
        self.owing += 1
        return Ask(peer_id, chunk)

    def _nearer(self, rank: int, now: float) -> int:
        """Return what peers nearer than `rank` have to give now."""
        held = 0
        for peer in self.peers.values():
            if peer.rank < rank and now >= peer.busy_until:
                held |= peer.have
        return held

    def _rarest(self, wanted: int) -> int:
        for level in self.levels[1:]:
            rare = wanted & ~level
            if rare:
                wanted = rare
                break
        return some_bit(wanted, self.rng)

    def _hedge(self, now: float) -> list[Decision]:
        """Ask a second peer for what is late, once nothing else is left to ask for."""
        if self.missing & ~self.asked:
            return []
        late_s = max(LATE_LEAST_S, LATE_FACTOR * self.usual_s)
        decisions: list[Decision] = []
        counts: dict[int, int] = {}
        for peer in self.peers.values():
            for chunk in peer.owed:
                counts[chunk] = counts.get(chunk, 0) + 1
        late = {c for p in self.peers.values() for c, at in p.owed.items() if now - at > late_s}
        for chunk in sorted(late):
            if counts[chunk] > 1 or not self.missing >> chunk & 1:
                continue
            able = [
                (peer.rank, len(peer.owed), peer_id)
                for peer_id, peer in self.peers.items()
                if peer.have >> chunk & 1
                and chunk not in peer.owed
                and now >= peer.busy_until
                and len(peer.owed) < self.window
            ]
            if able and self.owing < self.in_flight:
                peer_id = min(able)[2]
                self.hedged.add(chunk)
                decisions.append(self._owe(peer_id, self.peers[peer_id], chunk, now))
        return decisions

    # --- keeping count ------------------------------------------------------------------------

    def _settle(self, peer: _Peer, chunk: int) -> float:
        """The peer owes this chunk no more; return when it was asked."""
        asked_at = peer.owed.pop(chunk)
        self.owing -= 1
        if chunk in self.hedged:
            self.hedged.discard(chunk)
        else:
            self.asked &= ~(1 << chunk)
        return asked_at

    def _drop(self, peer_id: str, bad_chunk: int | None, reason: str) -> list[Decision]:
        peer = self.peers.get(peer_id)
        if peer is None:
            return []
        for chunk in list(peer.owed):
            self._settle(peer, chunk)
        self._unlearn(peer, peer.have)
        del self.peers[peer_id]
        return [DropPeer(peer_id, bad_chunk, reason)]

    def _learn(self, peer: _Peer, chunks: int) -> None:
        new = chunks & ~peer.have
        peer.have |= new
        for k, level in enumerate(self.levels):
            self.levels[k], new = level | new, level & new
            if not new:
                return
        if new:
            self.levels.append(new)

    def _unlearn(self, peer: _Peer, chunks: int) -> None:
        peer.have &= ~chunks
        for k in reversed(range(len(self.levels))):
            gone = self.levels[k] & chunks
            self.levels[k] ^= gone
            chunks ^= gone
        while self.levels and not self.levels[-1]:
            self.levels.pop()

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        owed = [chunk for peer in self.peers.values() for chunk in peer.owed]
        assert len(owed) == self.owing <= self.in_flight, "the count of owed chunks is off"
        assert all(owed.count(chunk) <= 2 for chunk in set(owed)), "owed by more than two"
        assert self.hedged == {chunk for chunk in owed if owed.count(chunk) == 2}, "miscounted twos"
        assert self.asked == sum(1 << chunk for chunk in set(owed)), "asked is not what is owed"
        assert all(len(peer.owed) <= self.window for peer in self.peers.values())
        for chunk in range(self.total):
            count = sum(peer.have >> chunk & 1 for peer in self.peers.values())
            levels = sum(level >> chunk & 1 for level in self.levels)
            assert count == levels, f"chunk {chunk} is with {count} peers, counted {levels}"


def some_bit(mask: int, rng: Random) -> int:
    """Return the position of one of the mask's bits, at random (not quite evenly)."""
    shift = int(rng.random() * mask.bit_length())
    high = mask >> shift
    return shift + (high & -high).bit_length() - 1
