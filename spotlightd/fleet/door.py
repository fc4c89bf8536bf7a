"""One server key's pair of sockets: the link for known keys, enrolment for newcomers."""

import zmq
import zmq.asyncio

from spotlightd.fleet.auth import AGENTS_DOMAIN, ENROL_DOMAIN, KeyPair
from spotlightd.wire.codec import Buffer
from spotlightd.zmq_ports import bind_port

MAX_LINK_MESSAGE_BYTES = 512 * 2**20
MAX_ENROL_MESSAGE_BYTES = 16 * 2**10

Received = tuple[bytes, str, str, list[Buffer]]
"""Routing id, the peer's key, its IP address, and the parts of one message."""


class Door:
    """Both ROUTER sockets under one key, once `bind` has returned."""

    def __init__(self, context: zmq.asyncio.Context, keys: KeyPair) -> None:
        self.keys = keys
        self.link_port = self.enrol_port = 0
        self.link = self._router(context, AGENTS_DOMAIN, MAX_LINK_MESSAGE_BYTES)
        self.enrol = self._router(context, ENROL_DOMAIN, MAX_ENROL_MESSAGE_BYTES)

    def bind(self, host: str, link_port: int, enrol_port: int) -> None:
        """Listen. Raises TryAgainError when an address is taken or not ours."""
        self.link_port = bind_port(self.link, host, link_port)
        self.enrol_port = bind_port(self.enrol, host, enrol_port)

    def close(self) -> None:
        self.link.close(linger=500)
        self.enrol.close(linger=500)

    def _router(
        self, context: zmq.asyncio.Context, domain: str, max_bytes: int
    ) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_publickey = self.keys.public.encode()
        socket.curve_secretkey = self.keys.secret.encode()
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


async def receive(socket: zmq.asyncio.Socket) -> Received:
    """Wait for one message; where one waits already, the event loop does not turn.

    Waiting is a poll, and only a poll is ever cancelled: a cancelled receive may eat a message.
    """
    while True:
        try:
            frames = await socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            await socket.poll()
            continue
        key, address = frames[-1].get("User-Id"), frames[-1].get("Peer-Address")
        parts: list[Buffer] = [frame.buffer for frame in frames[1:]]
        return frames[0].bytes, str(key), str(address), parts
