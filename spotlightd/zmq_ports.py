"""Binding a ZeroMQ socket, with a sentence where it cannot be done."""

import zmq
import zmq.asyncio

from spotlightd.errors import TryAgainError


def bind_port(socket: zmq.asyncio.Socket, host: str, port: int) -> int:
    """Bind to `host`, to a free port when `port` is 0; return the port.

    Raises TryAgainError when the address is taken or not ours.
    """
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        raise TryAgainError(
            f"cannot listen on {host}:{port}: {error}; choose another address in [link]"
        ) from None
    endpoint: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
    return int(endpoint.rpartition(b":")[2].rstrip(b"\0"))
