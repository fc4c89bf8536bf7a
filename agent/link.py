"""The agent's end of the fleet link: one DEALER, one reader, and the session's hellos."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.asyncio

from agent.enrol import Identity
from spotlightd.wire.codec import LINK, Buffer, WireError
from spotlightd.wire.messages import Message

logger = logging.getLogger(__name__)

MONITOR = "inproc://link-monitor"

Handler = Callable[[Message, list[Buffer]], None]


class AgentLink:
    """Connected for the life of the agent; ZeroMQ reconnects by itself.

    What is sent while the daemon is away waits in the socket. No daemon knows a session over a new
    connection: the agent says Hello on each at once, and repeats what is unacknowledged.
    """

    def __init__(self, context: zmq.asyncio.Context, identity: Identity) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.curve_serverkey = identity.server_key.encode()
        self._socket.curve_publickey = identity.public_key.encode()
        self._socket.curve_secretkey = identity.private_key.encode()
        for option, value in (
            (zmq.LINGER, 1000),
            (zmq.SNDHWM, 1000),
            (zmq.RCVHWM, 1000),
            (zmq.HANDSHAKE_IVL, 5000),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.HEARTBEAT_TTL, 6000),
            (zmq.RECONNECT_IVL, 100),
            # A fleet of thousands that knocks four times a second costs a host nothing, and a
            # daemon that comes back is found at once.
            (zmq.RECONNECT_IVL_MAX, 250),
        ):
            self._socket.setsockopt(option, value)
        self._monitor = context.socket(zmq.PAIR)
        self._socket.monitor(MONITOR, zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._monitor.connect(MONITOR)
        self._socket.connect(identity.link_endpoint)
        self._sending: set[asyncio.Future[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, handler: Handler, reconnected: Callable[[], None]) -> None:
        """Hand each message to `handler`, and call `reconnected` for each connection but the
        first.
        """
        self._tasks = [
            asyncio.create_task(self._read(handler), name="link reader"),
            asyncio.create_task(self._watch(reconnected), name="link monitor"),
        ]

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Queue a message; messages leave in order."""
        future = asyncio.ensure_future(
            self._socket.send_multipart(LINK.encode(message, frames), copy=False)
        )
        self._sending.add(future)
        future.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Stop reading; what was sent last still leaves (LINGER)."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sending:
            await asyncio.wait(self._sending, timeout=1.0)
        self._socket.monitor(None, 0)
        self._monitor.close(linger=0)
        self._socket.close()

    async def _watch(self, reconnected: Callable[[], None]) -> None:
        await self._monitor.recv_multipart()
        while True:
            await self._monitor.recv_multipart()
            reconnected()

    async def _read(self, handler: Handler) -> None:
        while True:
            await self._socket.poll()
            try:
                parts = await self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                message, frames = LINK.decode([part.buffer for part in parts])
            except zmq.Again:
                continue
            except WireError as error:
                logger.warning("dropped a message of the daemon: %s", error)
                continue
            try:
                handler(message, frames)
            except Exception:
                # One message that makes no sense must not make the agent deaf to all others.
                logger.exception("cannot handle %s of the daemon", type(message).__name__)
