"""Fetches a version's chunks from several peers; acts on the decisions of fetch.py.

peer sockets --> Chunk --> hash and write (threads) --> Fetch (decides) --> GetChunk
            '--> News ------------------------------------^
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import zmq
import zmq.asyncio

from spotlightd.errors import SpotlightError, TryAgainError
from spotlightd.weights.chunks import Download
from spotlightd.weights.fetch import (
    DAEMON,
    FAR,
    MOST_IN_FLIGHT,
    NEAR,
    Ask,
    Decision,
    DropPeer,
    Fetch,
    FindPeers,
    Source,
)
from spotlightd.wire.codec import LINK, Buffer, WireError
from spotlightd.wire.messages import Message
from spotlightd.wire.weights import Chunk, GetChunk, GetNews, News, WeightPeer

logger = logging.getLogger(__name__)

CHUNK_TIMEOUT_S = 10.0
SLOWEST_RATE = 1e6
"""Bytes a second of a chunk below which its peer counts as silent."""
TICK_S = 0.1
CHUNK_OVERHEAD_BYTES = 4096
WINDOW_BYTES = 16 * 2**20
"""What one peer may owe: four chunks of 4 MiB saturate a connection, and 8 chunks over all peers
keep the queues of servers short (`benchmarks/weights.py` shows both)."""
FRUITLESS_SEARCHES = 3
STALLED = 3
"""Timeouts without any chunk after which a transfer is given up."""
DAEMON_ID = "daemon"

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Swarm:
    """What a transfer needs to know of the world.

    Args:
        ticket: returns the newest ticket.
        bad_peer: told the peer's id and the digest of the chunk that was bad.
        find_peers: asks the daemon for peers; its argument says whether the receiver is starved.
        gained: told each chunk once it is verified and written.
        keys: own CURVE keys (public, secret), for peers that serve with CURVE.
    """

    ticket: Callable[[], str]
    bad_peer: Callable[[str, str], None]
    find_peers: Callable[[bool], Awaitable[Sequence[WeightPeer]]] | None = None
    gained: Callable[[str], None] = lambda _: None
    keys: tuple[str, str] = ("", "")
    timeout_s: float = CHUNK_TIMEOUT_S


async def fetch(
    context: zmq.asyncio.Context, download: Download, peers: Sequence[WeightPeer], swarm: Swarm
) -> dict[str, int]:
    """Fill a download and put its files in place; return chunks fetched by peer id.

    Raises:
        TryAgainError: no peer is left (chunks so far are kept), or the disk is full.
    """
    transfer = _Transfer(context, download, swarm)
    try:
        return await transfer.run(peers)
    finally:
        await transfer.close()


class _Connection:
    """One peer: its socket, and the tasks that read from it and watch it."""

    def __init__(self, context: zmq.asyncio.Context, peer: WeightPeer, swarm: Swarm) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if peer.key:
            self.socket.curve_serverkey = peer.key.encode()
            self.socket.curve_publickey = swarm.keys[0].encode()
            self.socket.curve_secretkey = swarm.keys[1].encode()
        # pyzmq's own name for it is the descriptor's number, which the next socket may get.
        where = f"inproc://weights-monitor-{next(_NUMBERS)}"
        self.socket.monitor(where, zmq.EVENT_DISCONNECTED)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.connect(where)
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, message: Message) -> None:
        # A peer that broke the protocol is disconnected for good: waiting for room to send would
        # never end. Whoever is not asked is silent, and dropped as such.
        sending = asyncio.ensure_future(
            self.socket.send_multipart(LINK.encode(message), zmq.NOBLOCK)
        )
        if not sending.done():
            sending.cancel()
        elif not sending.cancelled():
            sending.exception()

    def close(self) -> list["asyncio.Task[None]"]:
        for task in self.tasks:
            task.cancel()
        self.socket.monitor(None, 0)
        self.monitor.close(linger=0)
        self.socket.close(linger=0)
        return self.tasks


class _Transfer:
    def __init__(self, context: zmq.asyncio.Context, download: Download, swarm: Swarm) -> None:
        self._context = context
        self._download = download
        self._swarm = swarm
        chunk_bytes = download.manifest.chunk_bytes
        window = min(max(WINDOW_BYTES // chunk_bytes, 1), 4)
        self._fetch = Fetch(
            download.missing_mask, len(download.order), Random(), window, MOST_IN_FLIGHT
        )
        self._timeout_s = max(swarm.timeout_s, chunk_bytes / SLOWEST_RATE)
        self._peers: dict[str, _Connection] = {}
        self._known: dict[str, int] = {}
        """Peer -> chunks that it had by its last news."""
        self._searching: asyncio.Task[None] | None = None
        self._fruitless = 0
        self._working: set[asyncio.Task[None]] = set()
        self._closing: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, peers: Sequence[WeightPeer]) -> dict[str, int]:
        self._add(peers)
        while not self._fetch.done:
            self._check()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()
            self._changed.clear()
            self._act(self._fetch.tick(time.monotonic(), self._timeout_s))
        self._download.finish()
        return self._fetch.fetched_from

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        stalled_s = time.monotonic() - self._fetch.last_progress
        if stalled_s > STALLED * self._timeout_s:
            raise TryAgainError(
                f"no chunk of {self._download.folder} came for {stalled_s:.0f} s: "
                f"{len(self._download.missing)} are missing, the others are kept"
            )
        hopeless = self._swarm.find_peers is None or self._fruitless >= FRUITLESS_SEARCHES
        if self._fetch.stuck and hopeless:
            raise TryAgainError(
                f"no peer is left that serves {self._download.folder}: "
                f"{len(self._download.missing)} chunks are missing, the others are kept"
            )

    async def close(self) -> None:
        for connection in self._peers.values():
            self._closing += connection.close()
        if self._searching is not None:
            self._searching.cancel()
            self._closing.append(self._searching)
        # A chunk that is being written is written: the file must not change after this.
        await asyncio.gather(*self._working, *self._closing, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a part of the transfer, which ends where the part fails."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._changed.set()

    # --- peers --------------------------------------------------------------------------------

    def _add(self, peers: Sequence[WeightPeer]) -> None:
        new = [peer for peer in peers if peer.peer_id not in self._peers]
        for peer in new:
            self._connect(peer)
        sources = [Source(peer.peer_id, _rank(peer), peer.complete) for peer in peers]
        self._act(self._fetch.add_peers(sources, time.monotonic()))

    def _connect(self, peer: WeightPeer) -> None:
        connection = _Connection(self._context, peer, self._swarm)
        socket, peer_id = connection.socket, peer.peer_id
        limit = self._download.manifest.chunk_bytes + CHUNK_OVERHEAD_BYTES
        socket.setsockopt(zmq.MAXMSGSIZE, limit)
        # What nobody asked for must not fill the memory.
        socket.setsockopt(zmq.RCVHWM, self._fetch.window + 4)
        socket.connect(peer.endpoint)
        self._peers[peer_id] = connection
        connection.tasks = [
            self._spawn(self._read(peer_id, socket)),
            self._spawn(self._watch(peer_id, connection.monitor)),
        ]
        self._ask_news(peer_id, 0)

    def _ask_news(self, peer_id: str, known: int) -> None:
        if peer_id != DAEMON_ID:
            self._known[peer_id] = known
            connection = self._peers[peer_id]
            connection.send(GetNews(self._swarm.ticket(), self._download.root, known))

    async def _watch(self, peer_id: str, monitor: zmq.asyncio.Socket) -> None:
        """What a peer was asked before it went away will not be answered."""
        while not monitor.closed:
            await monitor.poll()
            with contextlib.suppress(zmq.Again):
                await monitor.recv_multipart(zmq.NOBLOCK)
                self._act(self._fetch.disconnected(peer_id, time.monotonic()))
                self._ask_news(peer_id, self._known.get(peer_id, 0))

    async def _read(self, peer_id: str, socket: zmq.asyncio.Socket) -> None:
        # What a message decides may close its own connection.
        while not socket.closed:
            await socket.poll()
            try:
                parts = await socket.recv_multipart(zmq.NOBLOCK, copy=False)
                message, frames = LINK.decode([part.buffer for part in parts])
            except (zmq.Again, WireError):
                continue
            match message:
                case Chunk():
                    self._chunk(peer_id, message, frames)
                case News() if message.root == self._download.root:
                    self._news(peer_id, message)
                case _:
                    pass

    def _news(self, peer_id: str, message: News) -> None:
        if message.refusal:
            self._act(self._fetch.shut_out(peer_id, time.monotonic()))
            return
        have = int.from_bytes(message.have, "little")
        self._act(self._fetch.has(peer_id, have, time.monotonic()))
        if have.bit_count() < len(self._download.order) and peer_id in self._peers:
            self._ask_news(peer_id, have.bit_count())

    # --- chunks -------------------------------------------------------------------------------

    def _chunk(self, peer_id: str, message: Chunk, frames: Sequence[Buffer]) -> None:
        number = self._download.index.get(message.digest)
        if number is None or not self._fetch.owes(peer_id, number):
            return
        if not frames:
            why = message.refusal or "unknown"
            self._act(self._fetch.refused(peer_id, number, why, time.monotonic()))
            return
        task = self._spawn(self._take(peer_id, number, memoryview(frames[0])))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _take(self, peer_id: str, number: int, data: memoryview) -> None:
        """Verify and write in a thread, while further chunks arrive."""
        digest = self._download.order[number]
        good = await asyncio.to_thread(self._download.write, digest, data)
        if good:
            self._swarm.gained(digest)
        self._act(self._fetch.received(peer_id, number, good, time.monotonic()))

    # --- decisions ----------------------------------------------------------------------------

    def _act(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Ask():
                    digest = self._download.order[decision.chunk]
                    self._peers[decision.peer_id].send(GetChunk(self._swarm.ticket(), digest))
                case DropPeer():
                    self._drop(decision)
                case FindPeers():
                    self._search(decision)
        if self._fetch.done:
            self._changed.set()

    def _drop(self, decision: DropPeer) -> None:
        logger.warning("%s %s: asking it no more", decision.peer_id, decision.reason)
        self._closing += self._peers.pop(decision.peer_id).close()
        if decision.bad_chunk is not None:
            self._swarm.bad_peer(decision.peer_id, self._download.order[decision.bad_chunk])

    def _search(self, decision: FindPeers) -> None:
        if self._swarm.find_peers is None or self._searching is not None:
            return
        logger.info("%s: asking the daemon for peers", decision.reason)
        self._searching = self._spawn(self._find(decision.starved))

    async def _find(self, starved: bool) -> None:
        assert self._swarm.find_peers is not None
        try:
            peers = await self._swarm.find_peers(starved)
        except (SpotlightError, TimeoutError):
            self._fruitless += 1
        else:
            self._fruitless = 0
            self._add([peer for peer in peers if not self._fetch.is_bad(peer.peer_id)])
        finally:
            self._searching = None


def _rank(peer: WeightPeer) -> int:
    if peer.peer_id == DAEMON_ID:
        return DAEMON
    return NEAR if peer.near else FAR
