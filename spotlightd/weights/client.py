"""Fetches a manifest's chunks from several peers; acts on the decisions of fetch.py."""

import contextlib
import time
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from spotlightd.errors import TryAgainError
from spotlightd.weights.chunks import Download
from spotlightd.weights.fetch import Ask, Decision, DropPeer, Fetch
from spotlightd.wire.codec import LINK, WireError
from spotlightd.wire.messages import Chunk, GetChunk, WeightPeer

CHUNK_TIMEOUT_S = 10.0
POLL_MS = 200
CHUNK_OVERHEAD_BYTES = 4096

OnBadPeer = Callable[[str, str], None]
"""Told the peer's id and the digest of the chunk that was bad."""


async def fetch(
    context: zmq.asyncio.Context,
    download: Download,
    peers: Sequence[WeightPeer],
    ticket: str,
    on_bad_peer: OnBadPeer,
    timeout_s: float = CHUNK_TIMEOUT_S,
) -> dict[str, int]:
    """Fill a download and put its files in place; return chunks fetched by peer id.

    Raises:
        TryAgainError: no peer is left (chunks so far are kept), or the disk is full.
    """
    transfer = _Transfer(context, download, ticket, on_bad_peer, timeout_s)
    try:
        return await transfer.run(peers)
    finally:
        transfer.close()


class _Transfer:
    def __init__(
        self,
        context: zmq.asyncio.Context,
        download: Download,
        ticket: str,
        on_bad_peer: OnBadPeer,
        timeout_s: float,
    ) -> None:
        self._context = context
        self._download = download
        self._ticket = ticket
        self._on_bad_peer = on_bad_peer
        self._timeout_s = timeout_s
        self._fetch = Fetch(download.missing)
        self._sockets: dict[str, zmq.asyncio.Socket] = {}
        self._poller = zmq.asyncio.Poller()

    async def run(self, peers: Sequence[WeightPeer]) -> dict[str, int]:
        for peer in peers:
            self._connect(peer)
        await self._act(self._fetch.add_peers([p.peer_id for p in peers], time.monotonic()))
        while not self._fetch.done:
            if self._fetch.stuck:
                raise TryAgainError(
                    f"no peer is left that serves {self._download.folder}: "
                    f"{len(self._fetch.missing)} chunks are missing, the others are kept"
                )
            ready = dict(await self._poller.poll(POLL_MS))
            for peer_id, socket in list(self._sockets.items()):
                if socket in ready:
                    await self._receive(peer_id, socket)
            await self._act(self._fetch.tick(time.monotonic(), self._timeout_s))
        self._download.finish()
        return self._fetch.fetched_from

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close(linger=0)

    def _connect(self, peer: WeightPeer) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        limit = self._download.manifest.chunk_bytes + CHUNK_OVERHEAD_BYTES
        socket.setsockopt(zmq.MAXMSGSIZE, limit)
        socket.connect(peer.endpoint)
        self._sockets[peer.peer_id] = socket
        self._poller.register(socket, zmq.POLLIN)

    async def _receive(self, peer_id: str, socket: zmq.asyncio.Socket) -> None:
        now = time.monotonic()
        try:
            parts = await socket.recv_multipart(zmq.NOBLOCK, copy=False)
            message, frames = LINK.decode([part.buffer for part in parts])
        except zmq.Again:
            return
        except WireError:
            return
        if not isinstance(message, Chunk):
            return
        if not frames:
            await self._act(self._fetch.refused(peer_id, message.digest, now))
            return
        good = self._download.write(message.digest, memoryview(frames[0]))
        await self._act(self._fetch.received(peer_id, message.digest, good, now))

    async def _act(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Ask():
                    parts = LINK.encode(GetChunk(self._ticket, decision.digest))
                    # A peer that broke the protocol is disconnected for good: waiting for room to
                    # send would never end. Whoever is not asked is silent, and dropped as such.
                    with contextlib.suppress(zmq.Again):
                        await self._sockets[decision.peer_id].send_multipart(parts, zmq.NOBLOCK)
                case DropPeer():
                    socket = self._sockets.pop(decision.peer_id)
                    self._poller.unregister(socket)
                    socket.close(linger=0)
                    if decision.bad_digest is not None:
                        self._on_bad_peer(decision.peer_id, decision.bad_digest)
