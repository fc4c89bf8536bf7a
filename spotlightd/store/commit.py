"""How a result is committed: once, under its fence."""

import json
import sqlite3
import time
from typing import Literal

from spotlightd.store.rows import StoredResult
from spotlightd.wire.messages import Result

Outcome = Literal["committed", "stale"]


def insert_result(connection: sqlite3.Connection, result: Result, stored: StoredResult) -> Outcome:
    """Write a result in the writer's transaction: the first commits, a repetition is told the same,
    a superseded holder is stale.
    """
    same = connection.execute(
        "SELECT fence FROM result WHERE request_id = ?", (result.request_id,)
    ).fetchone()
    if same is not None:
        return "committed" if same[0] == result.fence else "stale"
    done = connection.execute(
        "UPDATE request SET state = 'done', fence = ?, gpu_s = gpu_s + ? WHERE request_id = ? "
        "AND fence <= ? AND state IN ('queued', 'leased')",
        (result.fence, result.gpu_s, result.request_id, result.fence),
    )
    if not done.rowcount:
        return "stale"
    connection.execute(
        "INSERT INTO result VALUES (?,?,?,?,?,?,?,?,?)",
        (
            result.request_id,
            result.fence,
            json.dumps(result.scores),
            result.text,
            stored.trajectory or "",
            stored.image or "",
            stored.agent_id,
            result.resumed_from,
            time.time(),
        ),
    )
    return "committed"
