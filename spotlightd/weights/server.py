"""Serves chunks to whoever shows a ticket; runs in the daemon and in every agent.

    GetChunk, GetNews --> Serving (decides) --> Chunk, News      (view of the mapped file, no copy)

The channel is plain by default: chunks are no secret, and the receiver checks each against a
manifest that came over the authenticated link. Encryption would cost a factor of three to nine in
throughput; `weights_transport = "curve"` buys it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.asyncio

from spotlightd.errors import TryAgainError
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.serve import Decision, Refuse, Send, Serving, Tell
from spotlightd.wire.codec import LINK, Buffer, WireError, frame_specs
from spotlightd.wire.messages import Message
from spotlightd.wire.weights import Chunk, GetChunk, GetNews, News
from spotlightd.zmq_ports import bind_port

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4096
CurveKeys = tuple[str, str]
"""Public and secret key in Z85."""


class ChunkServer:
    """A ROUTER on `host:port` (0: a free one).

    Args:
        keys: serve with CURVE under these; None for a plain channel.
        again_s: see `Serving`.

    Raises TryAgainError where it cannot bind.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        store: ChunkStore,
        host: str,
        port: int,
        keys: CurveKeys | None = None,
        again_s: float = 0.0,
    ) -> None:
        self.store = store
        self.serving = Serving(again_s=again_s)
        store.on_drop = self.serving.forget
        self.tickets: set[str] = set()
        """Whoever shows one of these is served."""
        self.bytes_served = 0
        self._socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 64),
            (zmq.RCVHWM, 256),
            (zmq.MAXMSGSIZE, MAX_REQUEST_BYTES),
            (zmq.ROUTER_MANDATORY, 1),
        ):
            self._socket.setsockopt(option, value)
        if keys is not None:
            self._socket.curve_server = True
            self._socket.curve_publickey = keys[0].encode()
            self._socket.curve_secretkey = keys[1].encode()
            self._socket.zap_domain = b"weights"
        try:
            self.port = bind_port(self._socket, host, port)
        except TryAgainError:
            self._socket.close(linger=0)
            raise
        self._leaving: list[Any] = []
        """Trackers of chunks that ZeroMQ has not yet handed to the kernel."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve(), name="chunk server")

    def gained(self, root: str, count: int) -> None:
        """So many chunks of a version are in the store now: tell who waits for them."""
        self._act(self.serving.gained(root, count, time.monotonic()))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._socket.close(linger=0)

    async def _serve(self) -> None:
        while True:
            now = time.monotonic()
            wake_at = self.serving.next_at(now)
            timeout_ms = None if wake_at is None else max(1, int((wake_at - now) * 1000 + 1))
            if await self._socket.poll(timeout_ms):
                with contextlib.suppress(zmq.Again):
                    route, *parts = await self._socket.recv_multipart(zmq.NOBLOCK)
                    self._answer(route, parts)
            else:
                self._act(self.serving.tick(time.monotonic()))

    def _answer(self, route: bytes, parts: list[bytes]) -> None:
        try:
            message, _ = LINK.decode(parts)
        except WireError as error:
            logger.debug("dropped a request for weights: %s", error)
            return
        now = time.monotonic()
        match message:
            case GetChunk():
                self._asked(route, message, now)
            case GetNews() if message.ticket not in self.tickets:
                self._send(route, News(message.root, b"", "ticket"))
            case GetNews():
                root, size = message.root, self.store.chunk_bytes(message.root)
                self.serving.counts[root] = self.store.have(root).bit_count()
                self._act(self.serving.asked_news(route, root, message.known, size, now))
            case _:
                pass

    def _asked(self, route: bytes, message: GetChunk, now: float) -> None:
        if message.ticket not in self.tickets:
            self._send(route, Chunk(message.digest, refusal="ticket"))
            return
        view = self.store.view(message.digest)
        if view is None:
            self._send(route, Chunk(message.digest, refusal="unknown"))
            return
        self._settle()
        self._act(self.serving.asked(route, message.digest, view.nbytes, now))

    def _settle(self) -> None:
        """Count what has left since."""
        still = [tracker for tracker in self._leaving if not tracker.done]
        self.serving.sent(len(self._leaving) - len(still))
        self._leaving = still

    def _act(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Send():
                    self._send_chunk(decision)
                case Refuse():
                    self._send(decision.route, Chunk(decision.digest, refusal=decision.why))
                case Tell():
                    have = self.store.have(decision.root)
                    data = have.to_bytes(-(-have.bit_length() // 8), "little")
                    self._send(decision.route, News(decision.root, data))

    def _send_chunk(self, decision: Send) -> None:
        view = self.store.view(decision.digest)
        if view is None:
            self.serving.sent()
            self._send(decision.route, Chunk(decision.digest, refusal="unknown"))
            return
        answer = Chunk(decision.digest, frame_specs(chunk=view))
        tracker = self._send(decision.route, answer, [view])
        if tracker is None:
            self.serving.sent()
            return
        self.bytes_served += view.nbytes
        self._leaving.append(tracker)

    def _send(self, route: bytes, message: Message, frames: Sequence[Buffer] = ()) -> Any | None:
        """Return ZeroMQ's tracker of the message, or None where the receiver is gone."""
        parts = [route, *LINK.encode(message, frames)]
        sending = asyncio.ensure_future(
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False, track=True)
        )
        try:
            # Without waiting it is done already: it was sent, or it could not be.
            return sending.result()
        except (zmq.ZMQError, asyncio.InvalidStateError) as error:
            sending.cancel()
            logger.debug("a receiver of weights is gone: %s", error)
            self.serving.gone(route)
            return None
