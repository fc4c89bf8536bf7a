"""What stays while runs come and go: a folder, its lock, the control socket, the wish to stop.

    HOME/daemon.lock            held while the daemon lives
    HOME/keys, HOME/ports.json  the daemon's own: tokens and agents outlive a run
    HOME/submitted.json         the run that is to go on, as it was submitted; absent: none is
    HOME/runs/NAME/             a run's state directory, as `spotlightd run --state-dir` makes one
    HOME/runs/NAME/failure.txt  why it was given up

`submitted.json` appears before the answer to who submitted and goes when the run is over, each in
one step: a daemon that is killed in between goes on with the same run, or waits, as before.
"""

import asyncio
import os
import time
from pathlib import Path

import msgspec

from spotlightd.atomic import sync_folders, write_file
from spotlightd.config import Config, Origins
from spotlightd.control.api import RunRequest, RunRow
from spotlightd.control.listen import open_listener
from spotlightd.control.rows import FAILURE, RUNS, ended_runs
from spotlightd.errors import InputError
from spotlightd.store.files import take_lock
from spotlightd.submission import composed


class Submission(msgspec.Struct, frozen=True):
    """Content of `submitted.json`. Composed anew at each start, so that a changed configuration of
    the daemon holds for a run that goes on.
    """

    wanted: RunRequest
    submitted_at: float
    """Seconds since 1970."""


class Home:
    """The folder of a daemon that takes runs.

    Raises:
        TryAgainError: another daemon holds the folder, or answers on the control socket.
        InputError: folder or socket cannot be had.
    """

    def __init__(self, own: Config, origins: Origins) -> None:
        self.own, self.origins = own, origins
        self.folder = Path(own.store.state_dir)
        self.stop = asyncio.Event()
        """Set when the daemon is to end, whatever it is doing."""
        try:
            (self.folder / RUNS).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        self._lock = take_lock(self.folder)
        try:
            self.listener = open_listener(Path(own.control.socket), own.control.group, os.environ)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        self.listener.close()
        self._lock.close()

    @property
    def _file(self) -> Path:
        return self.folder / "submitted.json"

    def composed(self, wanted: RunRequest) -> tuple[Config, Origins]:
        """Return what a run's configuration comes to here. Raises ConfigError."""
        return composed(self.own, self.origins, wanted, self.folder / RUNS)

    def submitted(self) -> Submission | None:
        """Return the run that is to go on. Raises InputError where that cannot be read."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Submission)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(
                f"{self._file} is not what spotlightd wrote ({error}): remove it, and submit the "
                f"run again"
            ) from None

    def submit(self, wanted: RunRequest, state_dir: Path) -> None:
        """Make a run the one that is to go on; durable when it returns. Raises TryAgainError."""
        (state_dir / FAILURE).unlink(missing_ok=True)
        write_file(self._file, msgspec.json.encode(Submission(wanted, time.time())))

    def end(self, state_dir: Path | None, failure: str = "") -> None:
        """The run is over, or given up: nothing goes on at the next start."""
        if failure and state_dir is not None:
            write_file(state_dir / FAILURE, failure.encode() + b"\n")
        self._file.unlink(missing_ok=True)
        sync_folders([self.folder])

    def newest(self, besides: Path | None = None) -> RunRow | None:
        """Return the run that was last worked on, and is not in `besides`; None: there is none."""
        rows = [row for row in ended_runs(self.folder) if row.state != "unreadable"]
        return next((row for row in rows if row.state_dir != str(besides)), None)
