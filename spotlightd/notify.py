"""sd_notify: tell systemd how the service is doing. Without systemd every call does nothing."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

BETWEEN_S = 1800.0
"""As TimeoutStartSec of the daemon's unit: nobody pings while a run is being started."""


def notify(*assignments: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send assignments such as `READY=1` in one datagram; return whether anybody listens.

    A manager that is gone or slow must not stop the service: failures to send are ignored.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address[0] == "@" else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        try:
            sock.sendto("\n".join(assignments).encode(), target)
        except OSError:
            return False
    return True


def ready(status: str) -> bool:
    """The service is up: units ordered after it may start."""
    return notify("READY=1", f"STATUS={status}")


def stopping(status: str) -> bool:
    return notify("STOPPING=1", f"STATUS={status}")


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return within how many seconds systemd wants to hear from this process; None: never."""
    wanted = environ.get("WATCHDOG_USEC", "")
    if not wanted.isdigit() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 1e6


async def keep_watchdog(check: Callable[[], Awaitable[object]]) -> None:
    """Ping the watchdog for as long as `check` (a round trip through the store, say) succeeds.

    Returns at once where no watchdog is set. An exception of `check` ends the pings, and systemd
    then restarts the service. Cancelled, it gives what comes next, such as hashing another run's
    base model, as long as a start may take.
    """
    limit = watchdog_s()
    if limit is None:
        return
    try:
        notify(f"WATCHDOG_USEC={round(limit * 1e6)}")
        while True:
            async with asyncio.timeout(limit):
                await check()
            notify("WATCHDOG=1")
            await asyncio.sleep(limit / 3)
    except asyncio.CancelledError:
        notify(f"WATCHDOG_USEC={round(BETWEEN_S * 1e6)}")
        raise
