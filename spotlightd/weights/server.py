"""Serves chunks to whoever shows a ticket; runs in the daemon and in every agent.

The channel is plain: chunks are no secret, and the receiver checks each against a manifest that
came over the authenticated link. Encryption would cost a factor of three to nine in throughput.
"""

import asyncio
import contextlib
import logging

import zmq
import zmq.asyncio

from spotlightd.weights.chunks import ChunkStore
from spotlightd.wire.codec import LINK, Buffer, WireError, frame_specs
from spotlightd.wire.messages import Chunk, GetChunk
from spotlightd.zmq_ports import bind_port

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4096


class ChunkServer:
    """A ROUTER on `host:port` (0: a free one). Raises TryAgainError where it cannot bind."""

    def __init__(
        self, context: zmq.asyncio.Context, store: ChunkStore, host: str, port: int
    ) -> None:
        self.store = store
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
        self.port = bind_port(self._socket, host, port)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve(), name="chunk server")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._socket.close(linger=0)

    async def _serve(self) -> None:
        while True:
            await self._socket.poll()
            with contextlib.suppress(zmq.Again):
                route, *parts = await self._socket.recv_multipart(zmq.NOBLOCK)
                await self._answer(route, parts)

    async def _answer(self, route: bytes, parts: list[bytes]) -> None:
        try:
            message, _ = LINK.decode(parts)
        except WireError as error:
            logger.debug("dropped a chunk request: %s", error)
            return
        if not isinstance(message, GetChunk):
            return
        data = None
        if message.ticket in self.tickets:
            data = await asyncio.to_thread(self.store.read, message.digest)
        frames: list[Buffer] = [] if data is None else [data]
        answer = Chunk(message.digest, frame_specs(chunk=data) if data is not None else ())
        try:
            await self._socket.send_multipart(
                [route, *LINK.encode(answer, frames)], zmq.NOBLOCK, copy=False
            )
        except zmq.ZMQError as error:
            logger.debug("a receiver of chunks is gone: %s", error)
            return
        self.bytes_served += len(data or b"")
