"""The fleet link: sockets, frames and keys; decides nothing.

    agents, trainer --DEALER/CURVE--> ROUTER "link"  --> handler(key, message, frames)
    newcomers       --DEALER/CURVE--> ROUTER "enrol" --> enrol(key, message) -> answer

State belongs to a key, never to a routing id: an authorised peer may claim any routing id, but
ZeroMQ stamps each message with the key that its connection was authenticated with.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import zmq
import zmq.asyncio

from spotlightd.errors import TryAgainError
from spotlightd.fleet.auth import AGENTS_DOMAIN, ENROL_DOMAIN, AllowList, Authenticator, KeyPair
from spotlightd.wire.codec import LINK, Buffer, WireError
from spotlightd.wire.messages import Enrol, Enrolled, Message, Refused
from spotlightd.zmq_ports import bind_port

logger = logging.getLogger(__name__)

MAX_LINK_MESSAGE_BYTES = 512 * 2**20
MAX_ENROL_MESSAGE_BYTES = 16 * 2**10

Handler = Callable[[str, Message, list[Buffer]], None]
EnrolHandler = Callable[[str, Enrol], Awaitable[Enrolled | Refused]]


class Link:
    """Both ROUTER sockets. `handler` is called on the event loop for each authentic message."""

    def __init__(self, keys: KeyPair, allowed: AllowList) -> None:
        self._context = zmq.asyncio.Context()
        self._keys = keys
        self._allowed = allowed
        self._auth = Authenticator(self._context, allowed)
        self._routes: dict[str, bytes] = {}
        self._addresses: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._link = self._router(AGENTS_DOMAIN, MAX_LINK_MESSAGE_BYTES)
        self._enrol = self._router(ENROL_DOMAIN, MAX_ENROL_MESSAGE_BYTES)
        self.link_port = self.enrol_port = 0

    @property
    def context(self) -> zmq.asyncio.Context:
        return self._context

    def bind(self, host: str, link_port: int, enrol_port: int) -> None:
        """Listen; call it on the event loop. Messages wait until `start`.

        Raises TryAgainError when an address is taken or not ours.
        """
        # Whoever connects before there is somebody to ask would be let in unasked.
        self._auth.start()
        self.link_port = bind_port(self._link, host, link_port)
        self.enrol_port = bind_port(self._enrol, host, enrol_port)

    def start(self, handler: Handler, enrol: EnrolHandler) -> None:
        self._tasks = [
            asyncio.create_task(self._read_link(handler), name="link reader"),
            asyncio.create_task(self._read_enrol(enrol), name="enrolment reader"),
        ]

    async def failed(self) -> None:
        """Wait for a reader to end, which none should, and raise what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def send(self, key: str, message: Message, frames: Sequence[Buffer] = ()) -> bool:
        """Send to the peer that was last heard under `key`.

        Returns False where it is not connected or does not read: the caller treats it as gone.
        """
        route = self._routes.get(key)
        if route is None:
            return False
        parts = [route, *LINK.encode(message, frames)]
        try:
            await self._link.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            logger.warning("cannot send %s to %s: %s", type(message).__name__, key[:8], error)
            self._routes.pop(key, None)
            return False
        return True

    def address(self, key: str) -> str:
        """Return the IP address that `key` was last heard from."""
        return self._addresses[key]

    def drop(self, key: str) -> None:
        """Forget the route to a key whose session is over."""
        self._routes.pop(key, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._auth.stop()
        self._link.close(linger=500)
        self._enrol.close(linger=500)
        self._context.term()

    def _router(self, domain: str, max_bytes: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()
        socket.zap_domain = domain.encode()
        for option, value in (
            (zmq.LINGER, 500),
            (zmq.SNDHWM, 1000),
            (zmq.RCVHWM, 1000),
            (zmq.HANDSHAKE_IVL, 3000),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.HEARTBEAT_TTL, 6000),
            (zmq.MAXMSGSIZE, max_bytes),
            (zmq.ROUTER_MANDATORY, 1),
            # Nobody to ask is a refusal; ZeroMQ's default is to let everybody in.
            (zmq.ZAP_ENFORCE_DOMAIN, 1),
        ):
            socket.setsockopt(option, value)
        return socket

    async def _read_link(self, handler: Handler) -> None:
        while True:
            self.hear(handler, *await _receive(self._link))

    def hear(
        self, handler: Handler, route: bytes, key: str, address: str, parts: list[Buffer]
    ) -> None:
        """Take one message as it came from the link socket. Raises nothing, whatever it is."""
        if key not in self._allowed.peers:
            logger.warning("dropped a message of revoked key %s", key[:8])
            return
        try:
            message, frames = LINK.decode(parts)
        except WireError as error:
            logger.warning("dropped a message of %s: %s", key[:8], error)
            return
        self._routes[key], self._addresses[key] = route, address
        try:
            handler(key, message, frames)
        except Exception:
            # One peer's message must not end the service of all others.
            logger.exception("cannot handle %s of %s", type(message).__name__, key[:8])

    async def _read_enrol(self, enrol: EnrolHandler) -> None:
        while True:
            route, key, _, parts = await _receive(self._enrol)
            answer = await self.hear_newcomer(enrol, key, parts)
            with contextlib.suppress(zmq.ZMQError):
                await self._enrol.send_multipart([route, *LINK.encode(answer)], zmq.NOBLOCK)

    async def hear_newcomer(
        self, enrol: EnrolHandler, key: str, parts: list[Buffer]
    ) -> Enrolled | Refused:
        """Answer one message as it came from the enrolment socket. Raises nothing."""
        try:
            message, _ = LINK.decode(parts)
            if not isinstance(message, Enrol):
                raise WireError(f"expected Enrol, got {type(message).__name__}")
            return await enrol(key, message)
        except WireError as error:
            return Refused("not_authorised", str(error)[:2000])
        except TryAgainError as error:
            return Refused("try_again", str(error)[:2000])
        except Exception:
            logger.exception("cannot enrol a newcomer")
            return Refused("try_again", "the daemon failed; see its log")


async def _receive(socket: zmq.asyncio.Socket) -> tuple[bytes, str, str, list[Buffer]]:
    """Return routing id, the peer's key, its IP address and the parts of one message.

    Waiting is a poll, and only a poll is ever cancelled: a cancelled receive may eat a message.
    """
    while True:
        await socket.poll()
        try:
            frames = await socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            continue
        key, address = frames[-1].get("User-Id"), frames[-1].get("Peer-Address")
        parts: list[Buffer] = [frame.buffer for frame in frames[1:]]
        return frames[0].bytes, str(key), str(address), parts
