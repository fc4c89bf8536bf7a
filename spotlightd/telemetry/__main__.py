"""`python -m spotlightd.telemetry STATE_DIR`: shows a run to trackers, in a process of its own.

The daemon starts it and looks after it; a tracker that hangs or crashes harms nothing else. It can
be run by hand on a finished run too.
"""

import logging
import os
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import typer

from spotlightd import logs
from spotlightd.commands import run_app
from spotlightd.config import Config
from spotlightd.store.history import History
from spotlightd.telemetry.feed import Feed
from spotlightd.telemetry.trackers import open_tracker

logger = logging.getLogger(__name__)

LOOK_S = 2.0

app = typer.Typer(
    help="Show a run's curves and pictures to trackers.",
    epilog="Example: python -m spotlightd.telemetry ./state --tracker tensorboard",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(epilog="Example: python -m spotlightd.telemetry ./state --tracker tensorboard")
def show(
    state_dir: Annotated[Path, typer.Argument(help="Of the run.")],
    tracker: Annotated[list[str], typer.Option(help="tensorboard, wandb or trackio.")],
    out: Annotated[Path | None, typer.Option(help="Default: telemetry/ in the state.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Until SIGTERM.")] = False,
) -> None:
    """Show all that is new since the last time."""
    logs.configure()
    folder = out or state_dir / "telemetry"
    folder.mkdir(parents=True, exist_ok=True)
    stopping = _stop_pipe()
    config, name = _run(state_dir)
    values = msgspec.to_builtins(config.run)
    trackers = [open_tracker(one, folder, name, values) for one in tracker]
    cursor = folder / f"{'-'.join(sorted(tracker))}.cursor.json"
    feed = Feed(state_dir, cursor, config.rewards.train)
    parent = os.getppid()
    try:
        while True:
            shown = feed.feed(trackers)
            if shown:
                logger.debug("%d figures shown", shown)
            ended = bool(select.select([stopping], [], [], LOOK_S)[0]) if follow else True
            if ended or os.getppid() != parent:
                break
        feed.feed(trackers)
    finally:
        feed.close()
        for one in trackers:
            one.close()


def _run(state_dir: Path) -> tuple[Config, str]:
    history = History(state_dir)
    try:
        ((config, name),) = history.read("SELECT config, name FROM run")
    finally:
        history.close()
    return msgspec.json.decode(str(config), type=Config), str(name)


def _stop_pipe() -> int:
    """Return a descriptor that becomes readable upon SIGTERM."""
    reading, writing = os.pipe()

    def stop(number: int, frame: FrameType | None) -> None:
        os.write(writing, b".")

    signal.signal(signal.SIGTERM, stop)
    return reading


if __name__ == "__main__":
    sys.exit(run_app(app, "spotlight-telemetry"))
