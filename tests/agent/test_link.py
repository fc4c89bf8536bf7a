"""The agent's end of the link, against a bare CURVE server."""

import asyncio

import zmq
import zmq.asyncio

from agent.enrol import Identity
from agent.link import AgentLink
from spotlightd.errors import TryAgainError
from spotlightd.wire.messages import Goodbye
from spotlightd.zmq_ports import bind_port


async def server(context, keys, port=0):
    """A CURVE server on `port`, which is free once ZeroMQ's own thread has closed it."""
    while True:
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = keys
        try:
            return socket, bind_port(socket, "127.0.0.1", port)
        except TryAgainError:
            socket.close()
            await asyncio.sleep(0)


def test_a_daemon_that_comes_back_is_noticed_without_a_word():
    async def script():
        context = zmq.asyncio.Context()
        keys, own = zmq.curve_keypair(), zmq.curve_keypair()
        socket, port = await server(context, keys)
        identity = Identity(
            "vm", "vm", f"tcp://127.0.0.1:{port}", keys[0].decode(), *(key.decode() for key in own)
        )
        link, reconnections = AgentLink(context, identity), asyncio.Queue()
        link.start(lambda message, frames: None, lambda: reconnections.put_nowait("again"))
        link.send(Goodbye("hello"))
        async with asyncio.timeout(10):
            await socket.recv_multipart()
            assert reconnections.empty(), "the first connection is no reconnection"
            for _ in range(2):
                socket.close()
                socket, _ = await server(context, keys, port)
                assert await reconnections.get() == "again"
        await link.close()
        socket.close()
        context.term()

    asyncio.run(script())
