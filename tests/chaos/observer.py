"""Watches what the store has acknowledged, from outside, and notes whatever is taken back."""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

Row = tuple[int, str, str]
"""Fence, scores, digest of the trajectory."""


@dataclass
class Observer:
    """Reads the database as a second process would.

    A result that was ever seen must stay as it is. One that is excused, because this harness has
    destroyed its blob or the end of the log, may vanish for a while and must be there at the end.
    """

    database: Path
    seen: dict[str, Row] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    version: int = 0
    problems: list[str] = field(default_factory=list)

    def look(self) -> None:
        rows, version = self._read()
        if rows is None:
            return
        for request_id, row in self.seen.items():
            if request_id in self.excused:
                continue
            if request_id not in rows:
                self.problems.append(f"{request_id} was committed and is gone")
            elif rows[request_id] != row:
                self.problems.append(f"{request_id} was committed and has changed")
        if version < self.version:
            self.problems.append(f"the policy went back from version {self.version} to {version}")
        self.seen |= rows
        self.version = version

    def look_last(self) -> None:
        """What was excused must be there again."""
        self.look()
        rows, _ = self._read()
        gone = self.excused & self.seen.keys() - (rows or {}).keys()
        self.problems += [f"{request_id} never came back" for request_id in sorted(gone)]

    def excuse_holders_of(self, digest: str) -> None:
        """The blob with this trajectory is about to be destroyed."""
        self.look()
        self.excused |= {request_id for request_id, row in self.seen.items() if row[2] == digest}

    def excuse_what_is_gone(self) -> None:
        """The end of the log was destroyed: what stood in it may be produced again."""
        rows, version = self._read()
        if rows is not None:
            self.excused |= self.seen.keys() - rows.keys()
            self.version = min(version, self.version)

    def _read(self) -> tuple[dict[str, Row] | None, int]:
        try:
            connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5)
            try:
                rows = {
                    request_id: (fence, scores, trajectory)
                    for request_id, fence, scores, trajectory in connection.execute(
                        "SELECT request_id, fence, scores, trajectory FROM result"
                    )
                }
                (version,) = connection.execute("SELECT policy_version FROM run").fetchone()
            finally:
                connection.close()
        except (sqlite3.Error, TypeError):
            # It is being made, or the daemon is between two lives.
            return None, 0
        return rows, version
