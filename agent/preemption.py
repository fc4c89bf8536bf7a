"""Watchers for the end of this VM. Each is an async iterator of notices.

A file that appears and SIGTERM are here; clouds' metadata services have the same shape.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from agent.lifecycle import Notice

POLL_S = 0.05


async def watch_file(path: Path, grace_s: float) -> AsyncIterator[Notice]:
    """Yield a notice when a file appears; its content may say how many seconds are left."""
    while not path.exists():
        await asyncio.sleep(POLL_S)
    try:
        text = path.read_text(encoding="utf-8").strip()
        seconds = float(text) if text else grace_s
    except (OSError, ValueError):
        seconds = grace_s
    yield Notice(f"file {path.name}", seconds if 0 <= seconds < 1e6 else grace_s, preempted=True)


def watch_signals(grace_s: float, on_notice: Callable[[Notice], None]) -> None:
    """SIGTERM is a preemption notice; SIGINT means leave, and a second one leaves at once."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, on_notice, Notice("SIGTERM", grace_s, preempted=True))

    def interrupt() -> None:
        on_notice(Notice("interrupt", grace_s, preempted=False))
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
