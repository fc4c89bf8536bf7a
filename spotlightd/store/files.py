"""The database file and its lock: opened, prepared, held by one daemon at a time."""

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import IO

from spotlightd.errors import InputError, TryAgainError
from spotlightd.store.schema import migrate


def prepare(path: Path) -> None:
    """Create the tables, or bring them up to date."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        migrate(connection, str(path))
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is damaged ({error}): restore it from a backup") from None
    finally:
        connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """Open for work: WAL, and a commit is on the disk before it returns."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def take_lock(state_dir: Path) -> IO[str]:
    """Hold `daemon.lock` until the file is closed; TryAgainError names who holds it."""
    path = state_dir / "daemon.lock"
    file = open(path, "a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise TryAgainError(
            f"another spotlightd (pid {holder}) already uses the state directory {state_dir}: "
            f"stop it, or choose another with --state-dir"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
