"""What happened, for operators: logged, stored, and told to whoever waits."""

import asyncio
import logging
from collections.abc import Mapping

from spotlightd.logs import redact
from spotlightd.store.store import Store


class EventLog:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: list[asyncio.Future[None]] = []

    def add(
        self, level: str, component: str, text: str, context: Mapping[str, str] | None = None
    ) -> None:
        """Log and store an event; whoever waits is woken once it is stored."""
        logger = logging.getLogger(f"spotlightd.{component}")
        logger.log(getattr(logging, level.upper()), text, extra=context)
        stored = self._store.add_event(level, component, redact(text))
        loop = asyncio.get_running_loop()
        stored.add_done_callback(lambda _: loop.call_soon_threadsafe(self._wake))

    async def wait(self, timeout_s: float) -> bool:
        """Wait until another event is stored; return whether one was within `timeout_s`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        done, _ = await asyncio.wait({waiter}, timeout=timeout_s)
        return bool(done)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
