"""A fleet in virtual time that fetches one version: real decisions, modelled network.

What decides is the project's own code: `weights.fetch.Fetch` at each receiver, `weights.serve.
Serving` at each server, `weights.holders.Holders` at the daemon. Modelled are the network and the
clock: each host sends and receives at its own rate, first come first served; messages take half a
round trip; the daemon sends its announcements one after the other.

    announcement -> the manifest, from whoever has it -> the files, from whoever has chunks of them
"""

import gc
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spotlightd.weights.fetch import (
    DAEMON,
    FAR,
    NEAR,
    Ask,
    Decision,
    DropPeer,
    Fetch,
    Refusal,
    Source,
)
from spotlightd.weights.holders import Holders, Pointed
from spotlightd.weights.serve import AGAIN_S, Refuse, Send, Serving, Tell

KEY = ("adapter", 1)
TICK_S = 0.5
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Network:
    rate: float = 10e9 / 8
    """Bytes a second of each host, in each direction."""
    near_s: float = 0.25e-3
    far_s: float = 0.5e-3
    """One way within a zone and between zones."""
    announce_s: float = 1 / 48_000
    announce_rate: float = 0.31e9
    """The daemon's link: seconds per message and bytes a second (CURVE, measured on two cores)."""
    zones: int = 4


@dataclass(frozen=True)
class Part:
    """What is fetched as one: the manifest, where the announcement does not carry it, and then the
    files.
    """

    root: str
    chunks: int
    chunk_bytes: int

    @property
    def everything(self) -> int:
        return (1 << self.chunks) - 1


@dataclass
class Copy:
    """A part on one host; `fetch` is None before it begins, and where it was there at the start."""

    have: int = 0
    count: int = 0
    fetch: Fetch | None = None


@dataclass(eq=False)
class Host:
    """One VM, or the daemon, which has everything."""

    name: str
    zone: str
    serving: Serving
    copies: tuple[Copy, ...]
    """Of each part."""
    up_free: float = 0.0
    down_free: float = 0.0
    sent: int = 0
    """Bytes of chunks."""
    done_at: float | None = None
    wake_at: float | None = None
    leaving: deque[float] = field(default_factory=deque)
    """When chunks that are on the way have left."""
    route: bytes = b""

    def __post_init__(self) -> None:
        self.route = self.name.encode()


@dataclass
class World:
    """Args:
    vms: hosts that fetch or have everything.
    chunks: number of equal chunks.
    chunk_bytes: size of each.
    announced_bytes: what an announcement carries, with its peers.
    manifest_bytes: fetched before the chunks; 0 where the announcement carries it.
    complete: so many of them have everything from the start.
    """

    vms: int
    chunks: int
    chunk_bytes: int
    announced_bytes: int
    window: int
    in_flight: int
    network: Network = field(default_factory=Network)
    seed: int = 1
    complete: int = 0
    manifest_bytes: int = 0
    now: float = 0.0
    control_bytes: int = 0
    far_chunks: int = 0
    """Chunks of the files that crossed from zone to zone."""

    def __post_init__(self) -> None:
        self.holders = Holders(Random(self.seed))
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        manifest = [Part("manifest", 1, self.manifest_bytes)] if self.manifest_bytes else []
        self.parts = (*manifest, Part("files", self.chunks, self.chunk_bytes))
        self._part_of = {part.root: number for number, part in enumerate(self.parts)}
        self._names = [
            [f"{number}/{chunk}" for chunk in range(part.chunks)]
            for number, part in enumerate(self.parts)
        ]
        self._named = {
            name: (number, chunk)
            for number, names in enumerate(self._names)
            for chunk, name in enumerate(names)
        }
        self.daemon = self._host("daemon", "", AGAIN_S, complete=True)
        zones = self.network.zones
        vms = [
            self._host(f"vm{i}", f"zone{i % zones}", 0.0, i < self.complete)
            for i in range(self.vms)
        ]
        self.receivers = vms[self.complete :]
        self.left = len(self.receivers)
        self.hosts = {host.name: host for host in (self.daemon, *vms)}
        self._by_route = {host.route: host for host in self.hosts.values()}
        for host in vms:
            self.holders.joined(host.name, host.zone)
        # Whoever is in the fleet will fetch what is announced: all are peers from the start.
        for host in vms:
            done = host.done_at is not None
            self.holders.has(KEY, host.name, self.chunks if done else 0, complete=done)

    def run(self) -> float:
        """Announce, and return when the last VM has everything."""
        at = 0.0
        self.holders.choose_seeds(KEY, [host.name for host in self.receivers])
        seeds = self.holders.seeds[KEY]
        # Seeds are told first.
        for host in sorted(self.receivers, key=lambda host: host.name not in seeds):
            pointed = self.holders.point(KEY, host.name)
            at += self.network.announce_s + self.announced_bytes / self.network.announce_rate
            self.control_bytes += self.announced_bytes
            self._at(at + self.network.far_s, self._begin, host, 0, self._sources(pointed))
        collects = gc.isenabled()
        # Millions of events and no cycles: looking for some takes a quarter of the time.
        gc.disable()
        try:
            while self._events and self.left:
                self.now, _, act, arguments = heapq.heappop(self._events)
                act(*arguments)
        finally:
            if collects:
                gc.enable()
        assert not self.left, f"{self.left} VMs never finish"
        return max(host.done_at or 0.0 for host in self.receivers)

    # --- at a receiver ------------------------------------------------------------------------

    def _begin(self, host: Host, part: int, sources: Sequence[Source]) -> None:
        """A part's transfer begins, as `weights/client.py` begins it."""
        described, copy = self.parts[part], host.copies[part]
        rng = Random(f"{self.seed}:{host.name}:{part}")
        copy.fetch = Fetch(described.everything, described.chunks, rng, self.window, self.in_flight)
        for source in sources:
            if source.rank != DAEMON:
                self._request_news(host, self.hosts[source.peer_id], part, 0)
        self._act(host, part, copy.fetch.add_peers(sources, self.now))
        self._at(self.now + TICK_S * (1 + rng.random()), self._tick, host, part)

    def _tick(self, host: Host, part: int) -> None:
        fetch = host.copies[part].fetch
        if fetch is not None and not fetch.done:
            self._act(host, part, fetch.tick(self.now, TIMEOUT_S))
            self._at(self.now + TICK_S, self._tick, host, part)

    def _arrived(self, server: Host, host: Host, part: int, chunk: int) -> None:
        copy = host.copies[part]
        fetch = copy.fetch
        assert fetch is not None
        if not copy.have >> chunk & 1:
            copy.have |= 1 << chunk
            copy.count += 1
            root = self.parts[part].root
            self._serve(host, host.serving.gained(root, copy.count, self.now))
        was_done = fetch.done
        self._act(host, part, fetch.received(server.name, chunk, True, self.now))
        if fetch.done and not was_done:
            self._ended(host, part, fetch)

    def _ended(self, host: Host, part: int, fetch: Fetch) -> None:
        if part + 1 < len(self.parts):
            # The next part is asked of the same peers.
            names = [(self.hosts[name], peer.rank) for name, peer in fetch.peers.items()]
            sources = [self._source(peer, rank) for peer, rank in names]
            self._begin(host, part + 1, sources)
            return
        host.done_at = self.now
        self.left -= 1

    def _refused(self, server: Host, host: Host, part: int, chunk: int, why: Refusal) -> None:
        fetch = host.copies[part].fetch
        assert fetch is not None
        self._act(host, part, fetch.refused(server.name, chunk, why, self.now))
        peer = fetch.peers.get(server.name)
        if peer is not None and why == "busy" and not fetch.done:
            self._at(peer.busy_until, self._again, server, host, part)

    def _again(self, server: Host, host: Host, part: int) -> None:
        fetch = host.copies[part].fetch
        assert fetch is not None
        if not fetch.done:
            self._act(host, part, fetch.retry(server.name, self.now))

    def _news(self, server: Host, host: Host, part: int, have: int) -> None:
        fetch = host.copies[part].fetch
        assert fetch is not None
        if not fetch.done:
            self._act(host, part, fetch.has(server.name, have, self.now))
            known = have.bit_count()
            if known < self.parts[part].chunks:
                # The request is at the server long before it may tell again: no event of its own.
                self._listen(server, host, part, known)

    # --- at a server --------------------------------------------------------------------------

    def _asked(self, host: Host, client: Host, part: int, chunk: int) -> None:
        name, size = self._names[part][chunk], self.parts[part].chunk_bytes
        # What has left is counted when the next is asked for, as `weights/server.py` does.
        while host.leaving and host.leaving[0] <= self.now:
            host.leaving.popleft()
            host.serving.sent()
        self._serve(host, host.serving.asked(client.route, name, size, self.now))

    def _listen(self, host: Host, client: Host, part: int, known: int) -> None:
        described = self.parts[part]
        told = host.serving.asked_news(
            client.route, described.root, known, described.chunk_bytes, self.now
        )
        self._serve(host, told)

    def _wake(self, host: Host) -> None:
        host.wake_at = None
        self._serve(host, host.serving.tick(self.now))

    # --- acting -------------------------------------------------------------------------------

    def _act(self, host: Host, part: int, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Ask():
                    server = self.hosts[decision.peer_id]
                    at = self.now + self._delay(host, server)
                    self._at(at, self._asked, server, host, part, decision.chunk)
                case DropPeer():
                    raise AssertionError(f"{host.name} drops {decision}")
                case _:
                    self._find_peers(host, part)

    def _find_peers(self, host: Host, part: int) -> None:
        fetch = host.copies[part].fetch
        assert fetch is not None
        sources = self._sources(self.holders.point(KEY, host.name, starved=True))
        for source in sources:
            if source.peer_id not in fetch.peers and source.rank != DAEMON:
                self._request_news(host, self.hosts[source.peer_id], part, 0)
        self._act(host, part, fetch.add_peers(sources, self.now))

    def _serve(self, host: Host, decisions: Sequence[object]) -> None:
        for decision in decisions:
            match decision:
                case Send():
                    part, chunk = self._named[decision.digest]
                    self._upload(host, self._by_route[decision.route], part, chunk)
                case Refuse():
                    client = self._by_route[decision.route]
                    at = self.now + self._delay(host, client)
                    part, chunk = self._named[decision.digest]
                    self._at(at, self._refused, host, client, part, chunk, decision.why)
                case Tell():
                    client, part = self._by_route[decision.route], self._part_of[decision.root]
                    at = self.now + self._delay(host, client)
                    self._at(at, self._news, host, client, part, host.copies[part].have)
        wake = host.serving.next_at(self.now)
        if wake is not None and (host.wake_at is None or wake < host.wake_at):
            host.wake_at = max(wake, self.now + 1e-6)
            self._at(host.wake_at, self._wake, host)

    def _upload(self, host: Host, client: Host, part: int, chunk: int) -> None:
        """The chunk leaves after all before it, and flows into the receiver's own queue."""
        size = self.parts[part].chunk_bytes
        seconds = size / self.network.rate
        begins = max(self.now, host.up_free)
        host.up_free = begins + seconds
        host.sent += size
        self.far_chunks += host.zone != client.zone and part == len(self.parts) - 1
        arrives = max(begins + self._delay(host, client), client.down_free) + seconds
        client.down_free = arrives
        host.leaving.append(host.up_free)
        self._at(arrives, self._arrived, host, client, part, chunk)

    def _request_news(self, host: Host, server: Host, part: int, known: int) -> None:
        at = self.now + self._delay(host, server)
        self._at(at, self._listen, server, host, part, known)

    # --- hosts --------------------------------------------------------------------------------

    def _host(self, name: str, zone: str, again_s: float, complete: bool) -> Host:
        copies = tuple(
            Copy(part.everything, part.chunks) if complete else Copy() for part in self.parts
        )
        host = Host(name, zone, Serving(again_s=again_s), copies)
        if complete:
            host.done_at = 0.0
            host.serving.counts = {part.root: part.chunks for part in self.parts}
        return host

    def _sources(self, pointed: Pointed) -> list[Source]:
        sources = [self._source(self.hosts[peer], NEAR) for peer in pointed.near]
        sources += [self._source(self.hosts[peer], FAR) for peer in pointed.far]
        return sources + ([self._source(self.daemon, DAEMON)] if pointed.daemon else [])

    def _source(self, peer: Host, rank: int) -> Source:
        return Source(peer.name, rank, complete=peer.done_at is not None)

    def _delay(self, one: Host, other: Host) -> float:
        return self.network.near_s if one.zone == other.zone else self.network.far_s

    def _at(self, at: float, act: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, act, arguments))
