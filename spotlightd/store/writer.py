"""One thread writes: whatever is waiting is committed in one transaction (group commit).

A future resolves after COMMIT with synchronous=FULL, so "acknowledged" means durable. When a
transaction fails, as on a full disk, every write in it fails and nothing of it is kept; the
thread goes on with the next.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotlightd.atomic import Buffer
from spotlightd.errors import SpotlightError, TryAgainError
from spotlightd.store.blobs import Blobs

MAX_GROUP = 256

Statement = Callable[[sqlite3.Connection, list[str]], Any]
"""Runs inside the transaction with the digests of its blobs; returns the future's result."""


@dataclass
class Write:
    statement: Statement
    blobs: list[Buffer] = field(default_factory=list)
    """Written durably before the transaction begins."""
    future: "Future[Any]" = field(default_factory=Future)


class Writer:
    """Owns the writing connection. `close` commits what is waiting first."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], blobs: Blobs, path: Path) -> None:
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._blobs = blobs
        self._path = path
        self._thread = threading.Thread(
            target=self._run, args=(connect,), name="store writer", daemon=True
        )
        self._thread.start()

    def submit(self, statement: Statement, blobs: list[Buffer] | None = None) -> "Future[Any]":
        write = Write(statement, blobs or [])
        self._queue.put(write)
        return write.future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self, connect: Callable[[], sqlite3.Connection]) -> None:
        connection = connect()
        closing = False
        while not closing:
            group: list[Write] = []
            item = self._queue.get()
            while True:
                if item is None:
                    closing = True
                    break
                group.append(item)
                if len(group) == MAX_GROUP or self._queue.empty():
                    break
                item = self._queue.get()
            if group:
                self._commit(connection, group)
        connection.close()

    def _commit(self, connection: sqlite3.Connection, group: list[Write]) -> None:
        try:
            contents = [blob for write in group for blob in write.blobs]
            digests = iter(self._blobs.put_many(contents))
            own = [[next(digests) for _ in write.blobs] for write in group]
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                results = [
                    write.statement(connection, names)
                    for write, names in zip(group, own, strict=True)
                ]
        except Exception as error:
            for write in group:
                write.future.set_exception(self._explain(error))
            return
        for write, result in zip(group, results, strict=True):
            write.future.set_result(result)

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.OperationalError) and not isinstance(error, SpotlightError):
            return TryAgainError(
                f"cannot write {self._path}: {error}; nothing acknowledged is lost; free some "
                f"space or mend the disk, and start again"
            )
        return error
