"""A daemon that outlives its runs: waits for one, works on it as `spotlightd run` does, and so on.

    waiting --submit--> submitted.json --> run_to_end --over, or given up--> waiting
                              ^                  |
                              +--- next start ---+ stopped, killed, or failed in a way that passes

One process and one control socket throughout. While a run is being built or taken apart, whoever
connects waits in the socket's queue, and nobody is refused.
"""

import asyncio
import logging
import signal
from pathlib import Path

from spotlightd import logs, notify
from spotlightd.config import Config, Origins
from spotlightd.control.api import RunRequest
from spotlightd.control.rows import row_of
from spotlightd.control.run_view import Answers
from spotlightd.control.server import ControlServer
from spotlightd.errors import ExitCode, SpotlightError
from spotlightd.home import Home, Submission
from spotlightd.limits import raise_file_limit
from spotlightd.main import run_to_end
from spotlightd.submission import states_a_run
from spotlightd.waiting import WaitingView

logger = logging.getLogger(__name__)

HOPELESS = (ExitCode.USAGE, ExitCode.VERSION_SKEW, ExitCode.NOT_AUTHORISED, ExitCode.INPUT)
"""Exit codes of a run that no further start mends: it is given up, and the daemon stays."""


def serve(own: Config, origins: Origins) -> int:
    """Take runs, one after another, until told to stop; return the exit code.

    Args:
        own: the daemon's configuration. What it states of runs holds where a run says nothing.

    Raises SpotlightError for a taken folder, socket or port, and for a failure that may pass.
    """
    raise_file_limit()
    return asyncio.run(_serve(own, origins))


async def _serve(own: Config, origins: Origins) -> int:
    home = Home(own, origins)
    try:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, home.stop.set)
        if states_a_run(origins):
            _submit_own(home)
        code = ExitCode.OK
        while code == ExitCode.OK and not home.stop.is_set():
            submission = home.submitted()
            if submission is None:
                await _wait(home)
            else:
                code = await _work(home, submission)
        notify.stopping("stopping")
        return code
    finally:
        home.close()


def _submit_own(home: Home) -> None:
    """Begin the run that the daemon's own configuration describes, unless it is over."""
    wanted = RunRequest()
    config, _ = home.composed(wanted)
    state_dir = Path(config.store.state_dir)
    row = row_of(state_dir)
    over = row is not None and (
        row.state in ("stopped", "failed")
        or (row.state == "done" and row.iteration >= config.run.iterations)
    )
    if home.submitted() is None and not over:
        home.submit(wanted, state_dir)


async def _wait(home: Home) -> None:
    """Serve the control socket until a run is submitted or the daemon is told to stop."""
    logs.clear_context()
    last = await asyncio.to_thread(home.newest)
    view = WaitingView(home, last)
    section = home.own.control
    control = ControlServer(
        view,
        Answers(None if last is None else Path(last.state_dir), home.folder),
        Path(section.socket),
        section.group,
        section.dashboard_port if section.dashboard else None,
        home.listener,
    )
    tasks = []
    try:
        await control.start()
        view.dashboard = control.dashboard
        logger.info("waiting for a run: spotlightctl runs submit CONFIG")
        notify.ready("waiting for a run")
        # A turn of the loop is all that waiting does.
        watchdog = asyncio.create_task(notify.keep_watchdog(lambda: asyncio.sleep(0)))
        ends = [asyncio.create_task(event.wait()) for event in (view.taken, home.stop)]
        tasks = [watchdog, *ends]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await control.close()
        view.close()


async def _work(home: Home, submission: Submission) -> ExitCode:
    """Work on a run. Returns OK when it is over or given up, or the daemon was told to stop."""
    state_dir = None
    try:
        config, origins = home.composed(submission.wanted)
        state_dir = Path(config.store.state_dir)
        row = row_of(state_dir)
        if row is not None and row.state == "stopped" and row.updated_at > submission.submitted_at:
            # Killed between an operator's word and its end.
            home.end(state_dir)
            return ExitCode.OK
        notify.notify(f"STATUS=starting run {config.run.name}")
        code, over = await run_to_end(config, origins, home)
    except SpotlightError as error:
        if error.exit_code not in HOPELESS:
            raise
        logger.error("the run is given up: %s", error)
        home.end(state_dir, str(error))
        return ExitCode.OK
    if over:
        home.end(state_dir)
    elif code in HOPELESS:
        text = f"the trainer ended with exit code {code}: the daemon's log has its last words"
        home.end(state_dir, text)
    else:
        return ExitCode(code)
    return ExitCode.OK
