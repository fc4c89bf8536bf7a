"""What each agent's GPUs did so far, written down every few seconds: the fleet's history.

A row is cumulative, so any two of them give the time between, and old ones can be thinned by
deleting some of them.
"""

import sqlite3

from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.membership import Membership
from spotlightd.store.store import Store

PERIOD_S = 5
"""Time between two rows of an agent."""
OLD_S, OLD_PERIOD_S = 3600, 60
"""Rows older than the first are kept once in the second."""
THIN_EVERY = 120
"""Periods between two thinnings."""

Row = tuple[int, str, str, float, float, float, float]
"""(time, agent id, state, useful, wasted, loading, idle)."""


class UsageRecorder:
    """Asked at every tick; writes when a period has passed, and only what has changed."""

    def __init__(self, store: Store, ledger: Ledger, members: Membership) -> None:
        self._store = store
        self._ledger = ledger
        self._members = members
        self._last_slot = 0
        self._last: dict[str, tuple[float, ...]] = {}

    def tick(self, now: float, notices: dict[str, float]) -> None:
        """Write a row for each agent whose account has moved.

        Args:
            now: seconds since 1970.
            notices: when the VMs of some agents are taken away, by agent id.
        """
        slot = int(now) // PERIOD_S * PERIOD_S
        if slot != self._last_slot:
            self._last_slot = slot
            self.write(now, notices)
            if slot // PERIOD_S % THIN_EVERY == 0:
                self._store.write(lambda connection, _: thin(connection, slot - OLD_S))

    def write(self, now: float, notices: dict[str, float]) -> None:
        rows: list[Row] = []
        for agent_id, account in self._ledger.accounts.items():
            classes = account.classes(now)
            figures = classes["useful"], classes["wasted"], classes["loading"], classes["idle"]
            if self._last.get(agent_id) != figures:
                self._last[agent_id] = figures
                state = self._state(agent_id, agent_id in notices)
                rows.append((int(now), agent_id, state, *figures))
        if rows:
            self._store.write(lambda connection, _: _insert(connection, rows))

    def _state(self, agent_id: str, noticed: bool) -> str:
        member = self._members.members.get(agent_id)
        if member is None:
            # The trainer's time counts while it loads, before its Hello.
            return "live"
        return "preempted" if noticed else member.state


def _insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    connection.executemany("INSERT OR REPLACE INTO usage VALUES (?,?,?,?,?,?,?)", rows)


def thin(connection: sqlite3.Connection, before: int) -> None:
    """Keep the last row of each agent and minute among those older than `before`."""
    connection.execute(
        "DELETE FROM usage WHERE time < ?1 AND EXISTS (SELECT 1 FROM usage later WHERE "
        "later.agent_id = usage.agent_id AND later.time > usage.time AND "
        "later.time / ?2 = usage.time / ?2 AND later.time < ?1)",
        (before, OLD_PERIOD_S),
    )
