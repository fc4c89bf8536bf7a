"""The fleet link: sockets, frames and keys; decides nothing.

    agents, trainer --DEALER/CURVE--> ROUTER "link"  --> handler(key, message, frames)
    newcomers       --DEALER/CURVE--> ROUTER "enrol" --> enrol(key, message) -> answer

State belongs to a key, never to a routing id: an authorised peer may claim any routing id, but
ZeroMQ stamps each message with the key that its connection was authenticated with.

While a server key takes over from another there are two such pairs, one door per key: who still
knocks at the old one is heard like everybody, and told of the new key.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import zmq
import zmq.asyncio

from spotlightd.errors import TryAgainError
from spotlightd.fleet.auth import AllowList, Authenticator, KeyPair
from spotlightd.fleet.door import Door, receive
from spotlightd.wire.codec import LINK, Buffer, WireError
from spotlightd.wire.messages import Enrol, Enrolled, Message, Refused, ServerKey

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""Messages that are read before everything else has its turn: answers, the store's news, ticks."""

Handler = Callable[[str, Message, list[Buffer]], None]
EnrolHandler = Callable[[str, Enrol], Awaitable[Enrolled | Refused]]


class Link:
    """All doors. `handler` is called on the event loop for each authentic message."""

    def __init__(self, keys: KeyPair, allowed: AllowList, previous: KeyPair | None = None) -> None:
        self._context = zmq.asyncio.Context()
        self._allowed = allowed
        self._auth = Authenticator(self._context, allowed)
        self._routes: dict[str, tuple[Door, bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._shut_out: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.door = Door(self._context, keys)
        """Of the current key."""
        self.previous = Door(self._context, previous) if previous else None
        """Of the key before it, while a rotation lasts."""

    @property
    def context(self) -> zmq.asyncio.Context:
        return self._context

    @property
    def link_port(self) -> int:
        return self.door.link_port

    @property
    def enrol_port(self) -> int:
        return self.door.enrol_port

    def bind(self, host: str, link_port: int, enrol_port: int) -> None:
        """Listen under the current key; call it on the event loop. Messages wait until `start`.

        Raises TryAgainError when an address is taken or not ours.
        """
        # Whoever connects before there is somebody to ask would be let in unasked.
        self._auth.start()
        self.door.bind(host, link_port, enrol_port)

    def start(self, handler: Handler, enrol: EnrolHandler) -> None:
        for door in self._doors():
            self._tasks += [
                asyncio.create_task(self._read_link(door, handler), name="link reader"),
                asyncio.create_task(self._read_enrol(door, enrol), name="enrolment reader"),
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
        way = self._routes.get(key)
        if way is None:
            return False
        door, route = way
        parts = [route, *LINK.encode(message, frames)]
        try:
            await door.link.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            logger.warning("cannot send %s to %s: %s", type(message).__name__, key[:8], error)
            self._routes.pop(key, None)
            return False
        return True

    def address(self, key: str) -> str:
        """Return the IP address that `key` was last heard from."""
        return self._addresses[key]

    def newer_key(self, key: str) -> ServerKey | None:
        """Return where a peer should connect from now on; None where it already does."""
        way = self._routes.get(key)
        if way is None or way[0] is self.door:
            return None
        return ServerKey(self.door.keys.public, self.link_port)

    def drop(self, key: str) -> None:
        """Forget the route to a key whose session is over."""
        self._routes.pop(key, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._auth.stop()
        for door in self._doors():
            door.close()
        self._context.term()

    def _doors(self) -> list[Door]:
        return [self.door] if self.previous is None else [self.door, self.previous]

    async def _read_link(self, door: Door, handler: Handler) -> None:
        while True:
            for _ in range(AT_ONCE):
                self.hear(handler, *await receive(door.link), door)
            await asyncio.sleep(0)

    def hear(
        self,
        handler: Handler,
        route: bytes,
        key: str,
        address: str,
        parts: list[Buffer],
        door: Door | None = None,
    ) -> None:
        """Take one message as it came from a link socket. Raises nothing, whatever it is."""
        if key not in self._allowed.peers:
            if key not in self._shut_out:
                # Once: whoever was revoked must not fill the log.
                self._shut_out.add(key)
                logger.warning("dropping the messages of revoked key %s", key[:8])
            return
        try:
            message, frames = LINK.decode(parts)
        except WireError as error:
            logger.warning("dropped a message of %s: %s", key[:8], error)
            return
        self._routes[key], self._addresses[key] = (door or self.door, route), address
        try:
            handler(key, message, frames)
        except Exception:
            # One peer's message must not end the service of all others.
            logger.exception("cannot handle %s of %s", type(message).__name__, key[:8])

    async def _read_enrol(self, door: Door, enrol: EnrolHandler) -> None:
        while True:
            route, key, _, parts = await receive(door.enrol)
            answer = await self.hear_newcomer(enrol, key, parts)
            if isinstance(answer, Enrolled) and door is self.previous:
                # It pins this door's key, and is told of the other when it says Hello.
                answer = msgspec.structs.replace(answer, link_port=door.link_port)
            with contextlib.suppress(zmq.ZMQError):
                await door.enrol.send_multipart([route, *LINK.encode(answer)], zmq.NOBLOCK)

    async def hear_newcomer(
        self, enrol: EnrolHandler, key: str, parts: list[Buffer]
    ) -> Enrolled | Refused:
        """Answer one message as it came from an enrolment socket. Raises nothing."""
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
