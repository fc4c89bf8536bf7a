"""Whom to serve next: the server's decisions, pure.

    requests, chunks gained, chunks sent, time --> Serving --> Send, Refuse, Tell

Receivers take turns. What waits or is on its way is bounded; above that a receiver is told "busy"
at once and asks elsewhere, which keeps queues short and copies of the same chunk few. With a
limit on the uplink, chunks leave no faster than that. Whoever asked what there is is told again
when there is more, at most once per `news_s`.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

BURST_S = 0.05
"""The uplink's limit holds over any time longer than this, or than one chunk takes."""

AGAIN_S = 2.0
"""For the daemon's server: how long a chunk that was sent to one receiver is refused to others,
who will have it from that one by then."""
MOST_LENT = 4096
"""Chunks that are remembered as sent, before those that were sent long ago are forgotten."""
NEWS_RATE = 0.4e9
"""Bytes a second: at 10 Gbit/s a piece of news is of about three chunks."""

Route = bytes


@dataclass(frozen=True)
class Send:
    route: Route
    digest: str
    size: int


@dataclass(frozen=True)
class Refuse:
    """`busy`: too much waits already. `elsewhere`: somebody else has just been sent this chunk."""

    route: Route
    digest: str
    why: Literal["busy", "elsewhere"]


@dataclass(frozen=True)
class Tell:
    """Say which chunks of a version there are."""

    route: Route
    root: str


Decision = Send | Refuse | Tell


@dataclass
class _Listener:
    """A receiver that wants to know of chunks beyond the `known` it was told of."""

    known: int
    told_at: float
    news_s: float
    """Least time between two pieces of news to it."""
    waits: bool = False


@dataclass
class Serving:
    """One server.

    Invariants (see `validate`): `waiting` is the number of queued chunks; no queue is empty;
    `budget` never exceeds a burst.

    Args:
        uplink: bytes a second at most; 0 for no limit.
        places: chunks that may wait or be on their way, for all receivers together.
        news_s: least time between two pieces of news to one receiver; longer for large chunks, of
        which there are fewer to tell.
    again_s: after sending a chunk, nobody else gets it for so long: they take it from whoever got
        it first. Set where this server is the only source, the daemon, so that its uplink
        carries each chunk once.
        again_bytes: smaller chunks are given to whoever asks: waiting for a detour costs more than
        sending them.
    """

    uplink: float = 0.0
    places: int = 4
    news_s: float = 0.02
    again_s: float = 0.0
    again_bytes: int = 4 * 2**20
    queues: dict[Route, deque[tuple[str, int]]] = field(default_factory=dict)
    """In the order of turns."""
    waiting: int = 0
    on_the_way: int = 0
    lent: dict[str, tuple[Route, float]] = field(default_factory=dict)
    """Chunk -> to whom it was last sent, and when; kept where `again_s` is set."""
    budget: float = 0.0
    budget_at: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    """Version's root -> chunks of it that are here."""
    listeners: dict[str, dict[Route, _Listener]] = field(default_factory=dict)
    news_at: float = math.inf
    """When the next news is due; infinite: nobody waits for any that there is."""

    # --- chunks -------------------------------------------------------------------------------

    def asked(self, route: Route, digest: str, size: int, now: float) -> list[Decision]:
        if self.waiting + self.on_the_way >= self.places:
            return [Refuse(route, digest, "busy")]
        if self.again_s and size >= self.again_bytes:
            lent_to, at = self.lent.get(digest, (route, now))
            if lent_to != route and now - at < self.again_s:
                return [Refuse(route, digest, "elsewhere")]
            if len(self.lent) > MOST_LENT:
                self.lent = {d: row for d, row in self.lent.items() if now - row[1] < self.again_s}
            self.lent[digest] = (route, now)
        self.queues.setdefault(route, deque()).append((digest, size))
        self.waiting += 1
        return self._depart(now)

    def sent(self, chunks: int = 1) -> None:
        """So many chunks have left this host, or their receiver has gone."""
        self.on_the_way -= chunks

    def gone(self, route: Route) -> None:
        """A receiver cannot be reached: what waits for it does not."""
        self.waiting -= len(self.queues.pop(route, ()))
        for listeners in self.listeners.values():
            listeners.pop(route, None)

    # --- news ---------------------------------------------------------------------------------

    def asked_news(
        self, route: Route, root: str, known: int, chunk_bytes: int, now: float
    ) -> list[Decision]:
        """A receiver knows of `known` chunks and waits for more."""
        listeners = self.listeners.setdefault(root, {})
        news_s = max(self.news_s, chunk_bytes / NEWS_RATE)
        listener = listeners.setdefault(route, _Listener(known, now - news_s, news_s))
        listener.known, listener.waits = known, True
        if self.counts.get(root, 0) <= known:
            return []
        if listener.told_at + listener.news_s > now:
            self.news_at = min(self.news_at, listener.told_at + listener.news_s)
            return []
        listener.waits, listener.told_at = False, now
        return [Tell(route, root)]

    def gained(self, root: str, count: int, now: float) -> list[Decision]:
        """There are `count` chunks of a version here now."""
        self.counts[root] = count
        return self._news(root, now)

    def forget(self, root: str) -> None:
        """A version is served no more."""
        self.counts.pop(root, None)
        self.listeners.pop(root, None)

    def _news(self, root: str, now: float) -> list[Decision]:
        count = self.counts.get(root, 0)
        told: list[Decision] = []
        for route, listener in self.listeners.get(root, {}).items():
            if listener.waits and count > listener.known:
                due_at = listener.told_at + listener.news_s
                if due_at > now:
                    self.news_at = min(self.news_at, due_at)
                    continue
                listener.waits, listener.told_at = False, now
                told.append(Tell(route, root))
        return told

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Decision]:
        """Send what may leave by now, and news that is due."""
        news: list[Decision] = []
        if now >= self.news_at:
            self.news_at = math.inf
            news = [decision for root in self.listeners for decision in self._news(root, now)]
        return news + self._depart(now)

    def _depart(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        self._refill(now)
        while self.queues:
            route = next(iter(self.queues))
            digest, size = self.queues[route][0]
            if self.uplink and self.budget < min(size, self._burst()):
                break
            self.budget -= size if self.uplink else 0
            queue = self.queues.pop(route)
            queue.popleft()
            if queue:
                # To the end of the row.
                self.queues[route] = queue
            self.waiting -= 1
            self.on_the_way += 1
            decisions.append(Send(route, digest, size))
        return decisions

    def next_at(self, now: float) -> float | None:
        """Return when `tick` has something to do, if nothing else happens; None: never."""
        if not self.queues:
            return self.news_at if self.news_at < math.inf else None
        _, size = next(iter(self.queues.values()))[0]
        short = max(min(size, self._burst()) - self.budget, 0.0)
        return min(self.news_at, self.budget_at + short / self.uplink if self.uplink else now)

    def _burst(self) -> float:
        return self.uplink * BURST_S

    def _refill(self, now: float) -> None:
        gained = (now - self.budget_at) * self.uplink
        self.budget, self.budget_at = min(self.budget + gained, self._burst()), now

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.waiting == sum(len(queue) for queue in self.queues.values())
        assert all(self.queues.values()), "an empty queue takes turns"
        assert self.on_the_way >= 0, "more has left than was sent"
        assert self.budget <= self._burst() + 1e-6, "the budget is above a burst"
