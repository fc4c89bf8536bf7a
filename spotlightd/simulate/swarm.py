"""A fleet in virtual time that fetches one version: real decisions, modelled network.

What decides is the project's own code: `weights.fetch.Fetch` at each receiver, `weights.serve.
Serving` at each server, `weights.holders.Holders` at the daemon. Modelled are the network and the
clock: each host sends and receives at its own rate, first come first served; messages take half a
round trip; the daemon sends its announcements one after the other.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

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
from spotlightd.weights.holders import Holders
from spotlightd.weights.serve import AGAIN_S, Refuse, Send, Serving, Tell

KEY = ("adapter", 1)
ROOT = "v"
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


@dataclass
class Host:
    """One VM, or the daemon (`fetch` is None: it has everything)."""

    name: str
    zone: str
    serving: Serving
    fetch: Fetch | None = None
    have: int = 0
    count: int = 0
    up_free: float = 0.0
    down_free: float = 0.0
    sent: int = 0
    """Bytes of chunks."""
    done_at: float | None = None
    wake_at: float | None = None
    alive: bool = True


@dataclass
class World:
    """Args:
    vms: hosts that fetch or have everything.
    chunks: number of equal chunks.
    chunk_bytes: size of each.
    manifest_bytes: what an announcement carries.
    complete: so many of them have everything from the start.
    """

    vms: int
    chunks: int
    chunk_bytes: int
    manifest_bytes: int
    window: int
    in_flight: int
    network: Network = field(default_factory=Network)
    seed: int = 1
    complete: int = 0
    now: float = 0.0
    control_bytes: int = 0
    far_chunks: int = 0
    """Chunks that crossed from zone to zone."""

    def __post_init__(self) -> None:
        rng = Random(self.seed)
        self.rng = rng
        self.holders = Holders(rng)
        self._events: list[tuple[float, int, str, tuple[object, ...]]] = []
        self._number = 0
        self.hosts = {
            f"vm{i}": Host(f"vm{i}", f"zone{i % self.network.zones}", Serving())
            for i in range(self.vms)
        }
        everything = (1 << self.chunks) - 1
        self.daemon = Host("daemon", "", Serving(again_s=AGAIN_S), have=everything)
        self.left = self.vms - self.complete
        for host in self.hosts.values():
            self.holders.joined(host.name, host.zone)
        # Whoever is in the fleet will fetch what is announced: all are peers from the start.
        for host in self.hosts.values():
            self.holders.has(KEY, host.name, 0, complete=False)
        for host in list(self.hosts.values())[: self.complete]:
            host.have, host.count, host.done_at = everything, self.chunks, 0.0
            self.holders.has(KEY, host.name, self.chunks, complete=True)

    @property
    def receivers(self) -> list[Host]:
        return list(self.hosts.values())[self.complete :]

    def run(self) -> float:
        """Announce, and return when the last VM has everything."""
        at = 0.0
        self.holders.choose_seeds(KEY, [host.name for host in self.receivers])
        seeds = self.holders.seeds[KEY]
        # Seeds are told first.
        for host in sorted(self.receivers, key=lambda host: host.name not in seeds):
            pointed = self.holders.point(KEY, host.name)
            size = self.manifest_bytes + 48 * (len(pointed.near) + len(pointed.far))
            at += self.network.announce_s + size / self.network.announce_rate
            self.control_bytes += size
            sources = [
                *(self._source(peer, NEAR) for peer in pointed.near),
                *(self._source(peer, FAR) for peer in pointed.far),
            ]
            if pointed.daemon:
                sources.append(Source("daemon", DAEMON, complete=True))
            self._at(at + self.network.far_s, "begin", host.name, sources)
        while self._events and self.left:
            self.now, _, kind, arguments = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(*arguments)
        assert not self.left, f"{self.left} VMs never finish"
        return max(host.done_at or 0.0 for host in self.hosts.values())

    # --- events -------------------------------------------------------------------------------

    def _on_begin(self, name: str, sources: Sequence[Source]) -> None:
        host = self.hosts[name]
        rng = Random(f"{self.seed}:{name}")
        host.fetch = Fetch((1 << self.chunks) - 1, self.chunks, rng, self.window, self.in_flight)
        for source in sources:
            if source.rank != DAEMON:
                self._request_news(host, source.peer_id, 0)
        self._act(host, host.fetch.add_peers(sources, self.now))
        self._at(self.now + TICK_S * (1 + rng.random()), "tick", name)

    def _on_tick(self, name: str) -> None:
        host = self.hosts[name]
        if host.done_at is None and host.fetch is not None:
            self._act(host, host.fetch.tick(self.now, TIMEOUT_S))
            self._at(self.now + TICK_S, "tick", name)

    def _on_asked(self, server: str, client: str, chunk: int) -> None:
        host = self._host(server)
        self._serve(
            host, host.serving.asked(client.encode(), str(chunk), self.chunk_bytes, self.now)
        )

    def _on_uploaded(self, server: str) -> None:
        host = self._host(server)
        host.serving.sent()
        self._serve(host, host.serving.tick(self.now))

    def _on_arrived(self, server: str, client: str, chunk: int) -> None:
        host = self.hosts[client]
        assert host.fetch is not None
        if not host.have >> chunk & 1:
            host.have |= 1 << chunk
            host.count += 1
            self._serve(host, host.serving.gained(ROOT, host.count, self.now))
        self._act(host, host.fetch.received(server, chunk, True, self.now))
        if host.fetch.done and host.done_at is None:
            host.done_at = self.now
            self.left -= 1

    def _on_refused(self, server: str, client: str, chunk: int, why: Refusal) -> None:
        host = self.hosts[client]
        assert host.fetch is not None
        self._act(host, host.fetch.refused(server, chunk, why, self.now))
        peer = host.fetch.peers.get(server)
        if peer is not None and why == "busy":
            self._at(peer.busy_until, "again", server, client)

    def _on_again(self, server: str, client: str) -> None:
        host = self.hosts[client]
        if host.done_at is None and host.fetch is not None:
            self._act(host, host.fetch.retry(server, self.now))

    def _on_news(self, server: str, client: str, have: int) -> None:
        host = self.hosts[client]
        assert host.fetch is not None
        if host.done_at is None:
            self._act(host, host.fetch.has(server, have, self.now))
            if have.bit_count() < self.chunks:
                self._request_news(host, server, have.bit_count())

    def _on_listen(self, server: str, client: str, known: int) -> None:
        host = self._host(server)
        told = host.serving.asked_news(client.encode(), ROOT, known, self.chunk_bytes, self.now)
        self._serve(host, told)

    def _on_wake(self, name: str) -> None:
        host = self._host(name)
        host.wake_at = None
        self._serve(host, host.serving.tick(self.now))

    def _source(self, peer: str, rank: int) -> Source:
        return Source(peer, rank, complete=self.hosts[peer].done_at is not None)

    # --- acting -------------------------------------------------------------------------------

    def _act(self, host: Host, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Ask():
                    at = self.now + self._delay(host.name, decision.peer_id)
                    self._at(at, "asked", decision.peer_id, host.name, decision.chunk)
                case DropPeer():
                    raise AssertionError(f"{host.name} drops {decision}")
                case _:
                    self._find_peers(host)

    def _find_peers(self, host: Host) -> None:
        assert host.fetch is not None
        pointed = self.holders.point(KEY, host.name, starved=True)
        sources = [Source(peer, NEAR) for peer in pointed.near]
        sources += [Source(peer, FAR) for peer in pointed.far]
        for source in sources:
            if source.peer_id not in host.fetch.peers:
                self._request_news(host, source.peer_id, 0)
        sources.append(Source("daemon", DAEMON, complete=True))
        self._act(host, host.fetch.add_peers(sources, self.now))

    def _serve(self, host: Host, decisions: Sequence[object]) -> None:
        for decision in decisions:
            match decision:
                case Send():
                    self._upload(host, decision.route.decode(), int(decision.digest))
                case Refuse():
                    client = decision.route.decode()
                    at = self.now + self._delay(host.name, client)
                    self._at(at, "refused", host.name, client, int(decision.digest), decision.why)
                case Tell():
                    client = decision.route.decode()
                    at = self.now + self._delay(host.name, client)
                    self._at(at, "news", host.name, client, host.have)
        wake = host.serving.next_at(self.now)
        if wake is not None and (host.wake_at is None or wake < host.wake_at):
            host.wake_at = max(wake, self.now + 1e-6)
            self._at(host.wake_at, "wake", host.name)

    def _upload(self, host: Host, client: str, chunk: int) -> None:
        """The chunk leaves after all before it, and flows into the receiver's own queue."""
        seconds = self.chunk_bytes / self.network.rate
        begins = max(self.now, host.up_free)
        host.up_free = begins + seconds
        host.sent += self.chunk_bytes
        self.far_chunks += host.zone != self.hosts[client].zone
        receiver = self.hosts[client]
        arrives = max(begins + self._delay(host.name, client), receiver.down_free) + seconds
        receiver.down_free = arrives
        self._at(host.up_free, "uploaded", host.name)
        self._at(arrives, "arrived", host.name, client, chunk)

    def _request_news(self, host: Host, server: str, known: int) -> None:
        at = self.now + self._delay(host.name, server)
        self._at(at, "listen", server, host.name, known)

    def _host(self, name: str) -> Host:
        return self.daemon if name == "daemon" else self.hosts[name]

    def _delay(self, one: str, other: str) -> float:
        near = self._host(one).zone == self._host(other).zone
        return self.network.near_s if near else self.network.far_s

    def _at(self, at: float, kind: str, *arguments: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, kind, arguments))
