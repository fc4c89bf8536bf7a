"""What the scheduler keeps of each request."""

from dataclasses import dataclass
from typing import Literal

from spotlightd.wire.messages import HeldLease, Role
from spotlightd.wire.sampling import PRIORITY, Request, RequestKind

RequestState = Literal["queued", "leased", "done", "failed", "cancelled"]
Outcome = Literal["committed", "stale"]

KINDS_BY_ROLE: dict[Role, tuple[RequestKind, ...]] = {
    "agent": PRIORITY,
    # The trainer is busy training whenever there is something to explore.
    "trainer": ("rollout", "evaluate"),
}
AWAITED: tuple[RequestKind, ...] = ("rollout", "evaluate")
"""Kinds of which a phase waits for every one."""


@dataclass(frozen=True)
class Backup:
    """A second lease of a request whose first holder still works on it."""

    holder: str
    fence: int
    deadline: float
    """Counts once the first holder is gone and this lease takes its place."""


@dataclass
class Entry:
    """A request and where it stands."""

    request: Request
    state: RequestState = "queued"
    fence: int = 0
    """Fence of the latest grant, backups aside; 0 before the first."""
    holder: str | None = None
    """Agent of that grant while leased."""
    deadline: float = 0.0
    progress_step: int = 0
    progress_blob: str | None = None
    failures: int = 0
    committing: bool = False
    """Its result is on the way to the disk: neither expires nor moves."""
    backup: Backup | None = None

    def leases(self) -> list[tuple[str, HeldLease]]:
        """Return who works on it, and under which fence."""
        request_id = self.request.request_id
        held = [] if self.holder is None else [(self.holder, HeldLease(request_id, self.fence))]
        if self.backup is not None:
            held.append((self.backup.holder, HeldLease(request_id, self.backup.fence)))
        return held


@dataclass(frozen=True)
class Granted:
    agent_id: str
    entry: Entry
    fence: int
    reason: str
    backup: bool = False
