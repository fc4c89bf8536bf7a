"""A network that can be cut: TCP on one address, passed on to another, until told otherwise."""

import asyncio
import contextlib
from typing import Literal

Mode = Literal["open", "silent", "cut"]
CHUNK = 64 * 1024


class Proxy:
    """Listens on `host` at several ports and passes each on to the same port of `target`.

    open: bytes flow. silent: connections stand and nothing flows, as behind a dead switch. cut:
    connections are reset and new ones refused.
    """

    def __init__(self, host: str, target: str, ports: tuple[int, ...]) -> None:
        self.host = host
        self._target = target
        self._ports = ports
        self._mode: Mode = "open"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for port in self._ports:

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port
            ) -> None:
                await self._carry(reader, writer, port)

            self._servers.append(await asyncio.start_server(accept, self.host, port))

    def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "silent":
            self._flowing.clear()
        else:
            self._flowing.set()
        if mode == "cut":
            for writer in list(self._open):
                writer.transport.abort()

    async def close(self) -> None:
        self.set_mode("cut")
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        if self._mode == "cut":
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target, port)
        except OSError:
            # The daemon is away: to the agent it looks like a refused connection.
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._tasks.difference_update(pumps)
        for end in (writer, far_writer):
            self._open.discard(end)
            end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
