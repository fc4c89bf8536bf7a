"""The agent's end of its child processes: messages over asyncio streams, start and end."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from spotlightd.childproc import spawn
from spotlightd.wire import pipe
from spotlightd.wire.codec import Buffer, TypedCodec
from spotlightd.wire.messages import Message
from spotlightd.wire.worker import Exit

logger = logging.getLogger(__name__)

EXIT_GRACE_S = 2.0


class Child:
    """One running child process."""

    def __init__(
        self,
        process: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receives: TypedCodec,
        sends: TypedCodec,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._receives = receives
        self._sends = sends

    @classmethod
    async def start(cls, module: str, receives: TypedCodec, sends: TypedCodec) -> "Child":
        """Start `python -m module`."""
        process, sock = spawn(module)
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**20)
        return cls(process, reader, writer, receives, sends)

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Queue a message; a child that is gone is noticed by its reader."""
        parts = self._sends.encode(message, frames)
        self._writer.writelines([pipe.pack_sizes(parts), *parts])

    async def receive(self) -> tuple[Any, list[Buffer]]:
        """Return the next message. Raises EOFError when the child is gone."""
        try:
            count = pipe.unpack_count(await self._reader.readexactly(pipe.COUNT.size))
            sizes = pipe.unpack_sizes(await self._reader.readexactly(8 * count), count)
            parts = [await self._reader.readexactly(size) for size in sizes]
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError("the child process is gone") from None
        return self._receives.decode(parts)

    async def stop(self) -> None:
        """Ask it to leave; kill it when it does not. It is reaped in any case."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.send(Exit())
        self._writer.close()
        waiting = asyncio.create_task(asyncio.to_thread(self.process.wait))
        done, _ = await asyncio.wait({waiting}, timeout=EXIT_GRACE_S)
        if not done:
            self.process.kill()
            await waiting
