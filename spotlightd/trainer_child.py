"""The trainer as a child process of the daemon: start, watch, start again, stop."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from spotlightd.errors import ExitCode
from spotlightd.trainer.settings import TrainerSettings, write_settings

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Ends without a new version in between; then something is wrong that no start mends."""
STOP_GRACE_S = 10.0


class TrainerChild:
    """Keeps one trainer running.

    Args:
        make_settings: called before each start, so that the trainer resumes from the newest
            version.
        on_exit: called after an unexpected end, before the next start.
    """

    def __init__(
        self,
        settings_file: Path,
        make_settings: Callable[[], TrainerSettings],
        on_exit: Callable[[int], None],
    ) -> None:
        self._settings_file = settings_file
        self._make_settings = make_settings
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def run(self) -> ExitCode:
        """Keep the trainer running until `stop`.

        Returns OK when it was stopped, else the exit code of a trainer that refuses to run
        (bad input, say) or that failed too often.
        """
        restarts, version = 0, None
        while True:
            settings = self._make_settings()
            if settings.resume_version != version:
                restarts, version = 0, settings.resume_version
            code = await self._run_once(settings)
            if self._stopping:
                return ExitCode.OK
            self._on_exit(code)
            if code in (ExitCode.INPUT, ExitCode.USAGE, ExitCode.TRY_AGAIN):
                return ExitCode(code)
            restarts += 1
            if restarts > MAX_RESTARTS:
                logger.error("the trainer ended %d times: giving up", restarts)
                return ExitCode.FAILURE
            logger.warning("the trainer ended with exit code %d: starting it again", code)

    async def _run_once(self, settings: TrainerSettings) -> int:
        write_settings(self._settings_file, settings)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "spotlightd.trainer",
            str(self._settings_file),
            str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
        )
        return await self._process.wait()

    async def stop(self) -> None:
        """Ask the trainer to end; kill it when it does not."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            logger.warning("the trainer does not end: killing it")
            process.kill()
            await process.wait()
