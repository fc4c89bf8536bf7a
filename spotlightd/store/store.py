"""The run's state on disk: one SQLite file, blobs beside it, and the only code that writes them.

Every change goes through the writer thread and returns a future that resolves when it is
durable; reads go through a second connection. Fences are checked here, in the transaction that
commits, and nowhere else for good (DESIGN: what always holds, lines 2 and 3).
"""

import json
import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import msgspec

from spotlightd.atomic import Buffer
from spotlightd.errors import InputError
from spotlightd.store.admission import AdmissionStore
from spotlightd.store.blobs import Blobs
from spotlightd.store.commit import Outcome, insert_result
from spotlightd.store.files import connect, prepare, take_lock
from spotlightd.store.rows import RunIntent, RunState, StoredRequest, StoredResult
from spotlightd.store.writer import Statement, Writer
from spotlightd.wire.messages import Result
from spotlightd.wire.sampling import Request


class Store:
    """Opened by one daemon at a time.

    Raises:
        TryAgainError: another daemon holds the state directory.
        VersionSkewError: a newer release wrote it.
        InputError: the database is damaged.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"cannot make the state directory {state_dir}: {error}") from None
        self._lock = take_lock(state_dir)
        self.blobs = Blobs(state_dir / "blobs")
        path = state_dir / "spotlight.db"
        try:
            prepare(path)
        except BaseException:
            self._lock.close()
            raise
        self._reader = connect(path)
        self._writer = Writer(lambda: connect(path), self.blobs, path)
        self.admission = AdmissionStore(self._reader, self._writer)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._lock.close()

    # --- the run ------------------------------------------------------------------------------

    def begin_run(self, name: str, config: str) -> "Future[None]":
        """Create the run where there is none, and raise the epoch by one."""

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            now = time.time()
            connection.execute(
                "INSERT INTO run (id, name, config, started_at, updated_at) VALUES (1,?,?,?,?) "
                "ON CONFLICT (id) DO NOTHING",
                (name, config, now, now),
            )
            connection.execute("UPDATE run SET epoch = epoch + 1, config = ?", (config,))
            # Starting the daemon again is going on with a run that was stopped; one that has not
            # begun is whatever begins.
            connection.execute("UPDATE run SET state = 'running' WHERE state = 'stopped'")
            connection.execute(
                "UPDATE run SET name = ?, started_at = ? WHERE cycle = ''", (name, now)
            )

        return self._writer.submit(statement)

    def set_run_state(self, state: RunIntent) -> "Future[None]":
        """What the operator wants of the run; it outlives the daemon."""
        return self._execute("UPDATE run SET state = ?, updated_at = ?", (state, time.time()))

    def save_sigmas(self, sigmas: tuple[float, ...]) -> "Future[None]":
        return self._execute("UPDATE run SET sigmas = ?", (json.dumps(sigmas),))

    def save_cycle(
        self, cycle: str, policy_version: int, requests: Iterable[Request]
    ) -> "Future[None]":
        """Store a phase with the requests that it adds, in one transaction, before dispatch."""
        rows = [(r.request_id, r.iteration, r.kind, msgspec.msgpack.encode(r)) for r in requests]

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.executemany(
                "INSERT INTO request (request_id, iteration, kind, body, state) "
                "VALUES (?,?,?,?,'queued') ON CONFLICT (request_id) DO NOTHING",
                rows,
            )
            connection.execute(
                "UPDATE run SET cycle = ?, policy_version = ?, updated_at = ?",
                (cycle, policy_version, time.time()),
            )

        return self._writer.submit(statement)

    def run(self) -> RunState | None:
        row = self._reader.execute(
            "SELECT name, config, sigmas, cycle, policy_version, epoch, started_at, updated_at, "
            "state FROM run"
        ).fetchone()
        return RunState(row[0], row[1], tuple(json.loads(row[2])), *row[3:]) if row else None

    # --- requests -----------------------------------------------------------------------------

    def set_leases(self, leases: Iterable[tuple[str, int, str]]) -> "Future[None]":
        """Record grants (request id, fence, agent id). Fences only rise."""
        now = time.time()
        rows = [(fence, agent_id, now, request, fence) for request, fence, agent_id in leases]
        return self._many(
            "UPDATE request SET state = 'leased', fence = ?, agent_id = ?, leased_at = ? "
            "WHERE request_id = ? AND fence < ? AND state IN ('queued', 'leased')",
            rows,
        )

    def requeue(self, request_ids: Iterable[str], drop_progress: bool = False) -> "Future[None]":
        extra = ", progress_step = 0, progress_blob = ''" if drop_progress else ""
        return self._many(
            f"UPDATE request SET state = 'queued'{extra} WHERE request_id = ? AND state = 'leased'",
            [(request_id,) for request_id in request_ids],
        )

    def settle(
        self, request_ids: Iterable[str], state: Literal["failed", "cancelled"]
    ) -> "Future[None]":
        """Mark requests that end without a result."""
        return self._many(
            "UPDATE request SET state = ? WHERE request_id = ? AND state IN ('queued', 'leased')",
            [(state, request_id) for request_id in request_ids],
        )

    def commit_progress(
        self, request_id: str, fence: int, step_index: int, state: Buffer, gpu_s: float
    ) -> "Future[tuple[Outcome, str]]":
        """Write a step commit; the future gives the outcome and the blob's digest."""

        def statement(connection: sqlite3.Connection, digests: list[str]) -> tuple[Outcome, str]:
            done = connection.execute(
                "UPDATE request SET progress_step = ?, progress_blob = ?, gpu_s = gpu_s + ? "
                "WHERE request_id = ? AND fence = ? AND state IN ('queued', 'leased') "
                "AND progress_step <= ?",
                (step_index, digests[0], gpu_s, request_id, fence, step_index),
            )
            return ("committed" if done.rowcount else "stale"), digests[0]

        return self._writer.submit(statement, [state])

    def forget_progress(self, request_id: str, digest: str) -> "Future[None]":
        """A step commit cannot be read back: whoever resumes starts afresh."""

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            self.blobs.discard(digest)
            connection.execute(
                "UPDATE request SET progress_step = 0, progress_blob = '' "
                "WHERE request_id = ? AND progress_blob = ?",
                (request_id, digest),
            )

        return self._writer.submit(statement)

    def reopen(self, request_ids: Iterable[str]) -> "Future[None]":
        """Results whose trajectory cannot be read back: they are produced again."""
        rows = [(request_id,) for request_id in request_ids]

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            for row in rows:
                for (digest,) in connection.execute(
                    "SELECT trajectory FROM result WHERE request_id = ?", row
                ).fetchall():
                    self.blobs.discard(digest)
            connection.executemany("DELETE FROM result WHERE request_id = ?", rows)
            connection.executemany(
                "UPDATE request SET state = 'queued', progress_step = 0, progress_blob = '' "
                "WHERE request_id = ? AND state = 'done'",
                rows,
            )

        return self._writer.submit(statement)

    def commit_result(
        self, result: Result, trajectory: Buffer | None, image: Buffer | None, agent_id: str
    ) -> "Future[tuple[Outcome, StoredResult]]":
        """Write a result under its fence: the first commits, a repetition is told the same."""
        present = [blob for blob in (trajectory, image) if blob is not None]

        def statement(
            connection: sqlite3.Connection, digests: list[str]
        ) -> tuple[Outcome, StoredResult]:
            names = iter(digests)
            stored = StoredResult(
                result.request_id,
                result.scores,
                result.text,
                next(names) if trajectory is not None else None,
                next(names) if image is not None else None,
                agent_id,
                result.resumed_from,
            )
            return insert_result(connection, result, stored), stored

        return self._writer.submit(statement, present)

    def requests(self, iterations: Iterable[int]) -> list[StoredRequest]:
        """Return all requests of these iterations, in the order in which they were added."""
        marks = list(iterations)
        rows = self._reader.execute(
            "SELECT body, state, fence, agent_id, progress_step, progress_blob FROM request "
            f"WHERE iteration IN ({','.join('?' * len(marks))}) ORDER BY rowid",
            marks,
        )
        return [
            StoredRequest(
                msgspec.msgpack.decode(body, type=Request), state, fence, agent, step, blob or None
            )
            for body, state, fence, agent, step, blob in rows
        ]

    def results(self, request_ids: Iterable[str] | None = None) -> list[StoredResult]:
        """Return results by request id, or all of the run."""
        rows = self._reader.execute(
            "SELECT request_id, scores, text, trajectory, image, agent_id, resumed_from "
            "FROM result ORDER BY rowid"
        )
        wanted = None if request_ids is None else set(request_ids)
        return [
            StoredResult(r[0], json.loads(r[1]), r[2], r[3] or None, r[4] or None, r[5], r[6])
            for r in rows
            if wanted is None or r[0] in wanted
        ]

    def request_counts(self) -> dict[str, dict[str, int]]:
        """Return how many requests there are, by kind and state."""
        table: dict[str, dict[str, int]] = {}
        for kind, state, count in self._reader.execute(
            "SELECT kind, state, COUNT(*) FROM request GROUP BY kind, state"
        ):
            table.setdefault(kind, {})[state] = count
        return table

    def forget_before(self, iteration: int, images_before: int) -> "Future[None]":
        """Drop blobs that nobody needs any more, and what settled requests could resume from.

        Args:
            iteration: trajectories of earlier iterations have trained.
            images_before: rollouts' images of earlier iterations; evaluations keep theirs.
        """

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.execute(
                "UPDATE result SET trajectory = '' WHERE trajectory != '' AND request_id IN "
                "(SELECT request_id FROM request WHERE iteration < ?)",
                (iteration,),
            )
            connection.execute(
                "UPDATE result SET image = '' WHERE image != '' AND request_id IN "
                "(SELECT request_id FROM request WHERE kind = 'rollout' AND iteration < ?)",
                (images_before,),
            )
            connection.execute(
                "UPDATE request SET progress_blob = '', progress_step = 0 WHERE "
                "progress_blob != '' AND state NOT IN ('queued', 'leased')"
            )
            rows = connection.execute(
                "SELECT trajectory FROM result UNION SELECT image FROM result "
                "UNION SELECT progress_blob FROM request"
            )
            # In the writer thread, so that no blob of a later write can be swept.
            self.blobs.sweep({digest for (digest,) in rows if digest})

        return self._writer.submit(statement)

    def count_lost(self) -> int:
        """Return how many requests are done without their result: 0, or the store is broken."""
        (count,) = self._reader.execute(
            "SELECT COUNT(*) FROM request LEFT JOIN result USING (request_id) "
            "WHERE state = 'done' AND result.request_id IS NULL"
        ).fetchone()
        return int(count)

    # --- metrics, events, accounts ------------------------------------------------------------

    def add_metrics(self, iteration: int, metrics: dict[str, float]) -> "Future[None]":
        return self._many(
            "INSERT INTO metric VALUES (?,?,?) ON CONFLICT DO UPDATE SET value = excluded.value",
            [(iteration, name, value) for name, value in metrics.items()],
        )

    def metrics(self) -> dict[int, dict[str, float]]:
        table: dict[int, dict[str, float]] = {}
        for iteration, name, value in self._reader.execute(
            "SELECT iteration, name, value FROM metric ORDER BY iteration"
        ):
            table.setdefault(iteration, {})[name] = value
        return table

    def add_event(self, level: str, component: str, text: str) -> "Future[None]":
        return self._execute(
            "INSERT INTO event (time, level, component, text) VALUES (?,?,?,?)",
            (time.time(), level, component, text),
        )

    def events(self, after: int, limit: int) -> list[tuple[int, float, str, str, str]]:
        return self._reader.execute(
            "SELECT id, time, level, component, text FROM event WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        ).fetchall()

    def save_accounts(self, accounts: dict[str, str]) -> "Future[None]":
        """Store each agent's account of GPU time, as JSON by agent id."""
        return self._many(
            "INSERT INTO account VALUES (?,?) ON CONFLICT DO UPDATE SET body = excluded.body",
            list(accounts.items()),
        )

    def accounts(self) -> dict[str, str]:
        return dict(self._reader.execute("SELECT agent_id, body FROM account"))

    def write(self, statement: Statement) -> "Future[Any]":
        """Run a statement of another file of this package in the writer's next transaction."""
        return self._writer.submit(statement)

    # --- inside -------------------------------------------------------------------------------

    def _execute(self, sql: str, values: tuple[Any, ...]) -> "Future[None]":
        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.execute(sql, values)

        return self._writer.submit(statement)

    def _many(self, sql: str, rows: list[tuple[Any, ...]]) -> "Future[None]":
        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.executemany(sql, rows)

        return self._writer.submit(statement)
