"""What is asked about a whole run: pages, curves and strips, aggregated where the rows lie.

Every question costs what its answer is long, not what the run is long: counts are kept by triggers,
pages go by index, curves are reduced to buckets inside SQLite.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlightd.store.reading import open_for_reading
from spotlightd.wire.sampling import Request

SCANNED = 2000
"""Rows among which one page looks for a prompt: prompts are inside the requests' bodies."""


class SampleRow(NamedTuple):
    """A request with its result, where there is one."""

    rowid: int
    request: Request
    state: str
    agent_id: str
    leased_at: float
    gpu_s: float
    scores: dict[str, float] | None
    text: str
    image: str
    """Blob digest; empty: none is kept."""
    trajectory: str
    resumed_from: int
    committed_at: float | None


class CurvePoint(NamedTuple):
    iteration: float
    mean: float
    least: float
    most: float


class UsageRow(NamedTuple):
    """An agent's cumulative GPU-seconds at some moment."""

    slot: int
    agent_id: str
    time: int
    state: str
    useful: float
    wasted: float
    loading: float
    idle: float

    @property
    def held(self) -> float:
        return self.useful + self.wasted + self.loading + self.idle


_SAMPLE = (
    "SELECT q.rowid, q.body, q.state, q.agent_id, q.leased_at, q.gpu_s, r.scores, r.text, r.image, "
    "r.trajectory, r.resumed_from, r.time FROM request q LEFT JOIN result r USING (request_id) "
)


class History:
    """Reads one state directory on a connection of its own; for one thread at a time.

    Raises InputError where there is no state, or it cannot be read.
    """

    def __init__(self, state_dir: Path) -> None:
        self._connection = open_for_reading(state_dir, check_same_thread=False)

    def close(self) -> None:
        self._connection.close()

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        return self._connection.execute(sql, values).fetchall()

    # --- requests and results -----------------------------------------------------------------

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many requests there are, by kind and state."""
        table: dict[str, dict[str, int]] = {}
        for kind, state, count in self._connection.execute(
            "SELECT kind, state, count FROM tally WHERE count > 0 AND kind != 'result'"
        ):
            table.setdefault(kind, {})[state] = count
        return table

    def lost(self) -> int:
        """Return how many requests are done without their result, from the tally.

        `Store.count_lost` compares row by row and says the same, in the time of the whole run.
        """
        (lost,) = self._connection.execute(
            "SELECT COALESCE(SUM(CASE WHEN state = 'done' THEN count WHEN kind = 'result' "
            "THEN -count ELSE 0 END), 0) FROM tally"
        ).fetchone()
        return int(lost)

    def samples(
        self,
        iteration: int | None,
        kind: str | None,
        prompt_id: str | None,
        after: int,
        limit: int,
    ) -> tuple[list[SampleRow], int | None]:
        """Return up to `limit` requests with a row id above `after`, and where to go on.

        A prompt is looked for among the next `SCANNED` rows: where it is rare, a page may be short,
        or empty, and still not be the last.
        """
        terms: list[tuple[str, object]] = [("q.rowid > ?", after)]
        if iteration is not None:
            terms.append(("q.iteration = ?", iteration))
        if kind is not None:
            terms.append(("q.kind = ?", kind))
        most = limit if prompt_id is None else SCANNED
        where = " AND ".join(term for term, _ in terms)
        values = [*(value for _, value in terms), most]
        rows = self._samples(f"WHERE {where} ORDER BY q.rowid LIMIT ?", values)
        found = [r for r in rows if prompt_id is None or r.request.prompt_id == prompt_id][:limit]
        if len(found) == limit and rows and found[-1] is not rows[-1]:
            return found, found[-1].rowid
        return found, rows[-1].rowid if len(rows) == most else None

    def sample(self, request_id: str) -> SampleRow | None:
        rows = self._samples("WHERE q.request_id = ?", [request_id])
        return rows[0] if rows else None

    def evaluated(self, version: int) -> list[SampleRow]:
        """Return a version's evaluation, in the order in which it was asked for."""
        return self._samples(
            "WHERE q.iteration = ? AND q.kind = 'evaluate' ORDER BY q.rowid", [version]
        )

    def committed_between(self, since: float, until: float, limit: int) -> list[SampleRow]:
        """Return trajectories that were committed in this time, oldest first."""
        return self._samples(
            "WHERE r.time >= ? AND r.time < ? ORDER BY r.time LIMIT ?", [since, until, limit]
        )

    def _samples(self, rest: str, values: Sequence[object]) -> list[SampleRow]:
        return [
            SampleRow(
                rowid,
                msgspec.msgpack.decode(body, type=Request),
                state,
                agent_id,
                leased_at,
                gpu_s,
                json.loads(scores) if scores else None,
                text or "",
                image or "",
                trajectory or "",
                resumed_from or 0,
                committed_at,
            )
            for (
                rowid,
                body,
                state,
                agent_id,
                leased_at,
                gpu_s,
                scores,
                text,
                image,
                trajectory,
                resumed_from,
                committed_at,
            ) in self._connection.execute(_SAMPLE + rest, values)
        ]

    # --- metrics ------------------------------------------------------------------------------

    def last_iteration(self) -> int:
        (last,) = self._connection.execute("SELECT MAX(iteration) FROM metric").fetchone()
        return last or 0

    def metric_names(self) -> list[str]:
        """Return all names: one step through the index each, however long the curves are."""
        names: list[str] = []
        last = ""
        while row := self._connection.execute(
            "SELECT name FROM metric WHERE name > ? ORDER BY name LIMIT 1", (last,)
        ).fetchone():
            last = row[0]
            names.append(last)
        return names

    def recent(self, iterations: int) -> list[dict[str, float]]:
        """Return the figures of the newest iterations, oldest first."""
        rows: dict[int, dict[str, float]] = {}
        for iteration, name, value in self._connection.execute(
            "SELECT iteration, name, value FROM metric WHERE iteration > ? ORDER BY iteration",
            (self.last_iteration() - iterations,),
        ):
            rows.setdefault(iteration, {})[name] = value
        return list(rows.values())

    def curve(self, name: str, points: int) -> list[CurvePoint]:
        """Return a metric over iterations, reduced to at most `points` buckets."""
        low, high = self._connection.execute(
            "SELECT MIN(iteration), MAX(iteration) FROM metric WHERE name = ?", (name,)
        ).fetchone()
        if low is None:
            return []
        width = (high - low) // points + 1
        return [
            CurvePoint(*row)
            for row in self._connection.execute(
                "SELECT AVG(iteration), AVG(value), MIN(value), MAX(value) FROM metric "
                "WHERE name = ? GROUP BY (iteration - ?) / ? ORDER BY 1",
                (name, low, width),
            )
        ]

    def latest(self, name: str) -> float | None:
        row = self._connection.execute(
            "SELECT value FROM metric WHERE name = ? ORDER BY iteration DESC LIMIT 1", (name,)
        ).fetchone()
        return None if row is None else float(row[0])

    def figures(self, iteration: int, prefix: str) -> dict[str, float]:
        """Return an iteration's figures whose names begin so, without that beginning."""
        rows = self._connection.execute(
            "SELECT name, value FROM metric WHERE iteration = ? AND substr(name, 1, ?) = ?",
            (iteration, len(prefix), prefix),
        )
        return {name[len(prefix) :]: value for name, value in rows}

    def ends_of(self, name: str, newest: int) -> list[int]:
        """Return the first iteration that has a metric, and the newest ones, in order."""
        rows = self._connection.execute(
            "SELECT * FROM (SELECT iteration FROM metric WHERE name = ?1 ORDER BY iteration "
            "LIMIT 1) UNION SELECT * FROM (SELECT iteration FROM metric WHERE name = ?1 "
            "ORDER BY iteration DESC LIMIT ?2) ORDER BY 1",
            (name, newest),
        )
        return [row[0] for row in rows]

    def iterations_with(self, name: str) -> list[int]:
        return [
            row[0]
            for row in self._connection.execute(
                "SELECT iteration FROM metric WHERE name = ? ORDER BY iteration", (name,)
            )
        ]

    def phases(self, since: float, until: float) -> list[tuple[int, str, float, float]]:
        """Return (iteration, phase, begin, seconds) of the phases that began in this time."""
        return [
            (iteration, name.partition(".")[2], began, seconds)
            for iteration, name, began, seconds in self._connection.execute(
                "SELECT b.iteration, b.name, b.value, s.value FROM metric b JOIN metric s "
                "ON s.iteration = b.iteration AND s.name = 'phase_s.' || substr(b.name, 13) "
                "WHERE b.name >= 'phase_began.' AND b.name < 'phase_began/' "
                "AND b.value >= ? AND b.value < ? ORDER BY b.value",
                (since, until),
            )
        ]

    # --- the fleet over time ------------------------------------------------------------------

    def usage_span(self) -> tuple[int, int] | None:
        low, high = self._connection.execute("SELECT MIN(time), MAX(time) FROM usage").fetchone()
        return None if low is None else (low, high)

    def usage(self, since: float, slot_s: float, slots: int) -> list[UsageRow]:
        """Return each agent's last figures in each slot, and its last ones before as slot -1."""
        before = self._connection.execute(
            "SELECT -1, agent_id, MAX(time), state, useful, wasted, loading, idle FROM usage "
            "WHERE time < ? GROUP BY agent_id",
            (since,),
        )
        rows = [UsageRow(*row) for row in before]
        # With MAX, SQLite takes the other columns from the row that has the maximum.
        inside = self._connection.execute(
            "SELECT CAST((time - ?) / ? AS INTEGER) AS slot, agent_id, MAX(time), state, useful, "
            "wasted, loading, idle FROM usage WHERE time >= ? AND time < ? "
            "GROUP BY slot, agent_id ORDER BY slot",
            (since, slot_s, since, since + slot_s * slots),
        )
        return rows + [UsageRow(*row) for row in inside]

    def events(self, after: int, limit: int) -> list[tuple[int, float, str, str, str]]:
        return self._connection.execute(
            "SELECT id, time, level, component, text FROM event WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        ).fetchall()

    def last_event(self) -> int:
        """Return the newest event's id; 0 before the first."""
        (last,) = self._connection.execute("SELECT COALESCE(MAX(id), 0) FROM event").fetchone()
        return int(last)

    def events_between(
        self, since: float, until: float, limit: int
    ) -> list[tuple[float, str, str, str]]:
        return self._connection.execute(
            "SELECT time, level, component, text FROM event WHERE time >= ? AND time < ? "
            "ORDER BY id LIMIT ?",
            (since, until, limit),
        ).fetchall()
