"""A state directory for those who only look: no lock, no writer, also while a daemon runs."""

import sqlite3
from pathlib import Path

from spotlightd.errors import InputError
from spotlightd.store.blobs import Blobs
from spotlightd.store.store import Store


class StoreReader(Store):
    """The store's reading half; a method that writes has no writer and must not be called.

    Raises InputError where there is no state, or it cannot be read.
    """

    def __init__(self, state_dir: Path) -> None:
        path = state_dir / "spotlight.db"
        self.state_dir = state_dir
        self.blobs = Blobs(state_dir / "blobs")
        try:
            self._reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            self._reader.execute("SELECT 1 FROM run")
        except sqlite3.Error as error:
            raise InputError(f"no run can be read in {state_dir} ({error})") from None

    def close(self) -> None:
        self._reader.close()
