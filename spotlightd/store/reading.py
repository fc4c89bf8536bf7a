"""A state directory for those who only look: no lock, no writer, also while a daemon runs."""

import sqlite3
from pathlib import Path

from spotlightd.errors import InputError
from spotlightd.store.blobs import Blobs
from spotlightd.store.schema import MIGRATIONS
from spotlightd.store.store import Store


class StoreReader(Store):
    """The store's reading half; a method that writes has no writer and must not be called.

    Raises InputError where there is no state, or it cannot be read.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.blobs = Blobs(state_dir / "blobs")
        self._reader = open_for_reading(state_dir)

    def close(self) -> None:
        self._reader.close()


def open_for_reading(state_dir: Path, check_same_thread: bool = True) -> sqlite3.Connection:
    """Open the database without a right to write.

    Raises InputError where there is none, it cannot be read, or another release wrote it.
    """
    path = state_dir / "spotlight.db"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=check_same_thread
        )
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise InputError(f"no run can be read in {state_dir} ({error})") from None
    if version != len(MIGRATIONS):
        connection.close()
        cure = (
            "run `spotlightd run` on it once, which brings it up to date"
            if version < len(MIGRATIONS)
            else "install the release that wrote it"
        )
        raise InputError(
            f"{path} has schema {version}, this release reads {len(MIGRATIONS)}: {cure}"
        )
    return connection
