"""The trackers' process: started beside the run, started again, never waited for."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

STOP_GRACE_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
NICENESS = 10
"""Curves can wait; the run's processes cannot."""


class TrackerChild:
    """Keeps one process that shows the run to trackers.

    Args:
        complain: told in a sentence when it ends by itself.
    """

    def __init__(
        self, state_dir: Path, trackers: Sequence[str], complain: Callable[[str], None]
    ) -> None:
        names = [part for name in trackers for part in ("--tracker", name)]
        self._command = [sys.executable, "-m", "spotlightd.telemetry", str(state_dir), *names]
        self._names = ", ".join(trackers)
        self._complain = complain
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Keep it running until cancelled; returns at once where no tracker is chosen."""
        if not self._names:
            return
        pause, said = FIRST_PAUSE_S, False
        while True:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--follow",
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=lambda: os.nice(NICENESS) and None,
            )
            code = await self._process.wait()
            if not said:
                said = True
                self._complain(
                    f"{self._names} ended with exit code {code}: the run goes on, its curves are "
                    f"in the store, and showing them is tried again"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def stop(self) -> None:
        """Let it show the rest; kill it when that takes too long."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
