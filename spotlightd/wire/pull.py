"""The worker's side of pulling work: credit, held leases, results until they are acknowledged.

Pure: the agent and the trainer feed it events and send what it says. Credit adds up: `Give.credit`
says how many more leases than already promised can be run, and both sides start from none at
Hello.

    want -> Give -> granted -> held (sampling, then scoring) -> finished -> unacked -> acked
                                 '--- withdrawn / handed back

What is being scored has left the GPU, so it does not keep new work away from it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spotlightd.wire.codec import Buffer
from spotlightd.wire.messages import Failed, Grant, HeldLease, Lease, Result

ACK_TIMEOUT_S = 15.0
"""Longest time until a report is sent again; half its lease where that is shorter."""


@dataclass
class Unacked:
    """A report that the daemon has not confirmed as durable."""

    message: Result | Failed
    frames: Sequence[Buffer]
    sent_at: float
    patience_s: float


@dataclass
class PullState:
    """Invariants (see `validate`): never more leases sampled and promised than `capacity`, nor more
    than twice that held and promised; a request is held or unacknowledged, not both under one
    fence; `scoring` is part of `held`.
    """

    capacity: int
    """Trajectories that can be sampled at once."""
    held: dict[str, Lease] = field(default_factory=dict)
    scoring: set[str] = field(default_factory=set)
    """Held, but sampled already: only their rewards are missing."""
    unacked: dict[str, Unacked] = field(default_factory=dict)
    promised: int = 0
    """Credit given that no lease has used yet."""
    draining: bool = False

    def hello(self) -> tuple[HeldLease, ...]:
        """A session begins: credit given before is void. Returns what is still worked on."""
        self.promised = 0
        working = [HeldLease(r, lease.fence) for r, lease in self.held.items()]
        waiting = [HeldLease(r, u.message.fence) for r, u in self.unacked.items()]
        return (*working, *(lease for lease in waiting if lease.request_id not in self.held))

    def take_credit(self) -> int:
        """Return the credit to give now, and count it as promised."""
        if self.draining:
            return 0
        sampling = len(self.held) - len(self.scoring)
        # The second bound keeps a slow scorer from piling up images without end.
        room = min(self.capacity - sampling, 2 * self.capacity - len(self.held))
        credit = max(room - self.promised, 0)
        self.promised += credit
        return credit

    def granted(self, leases: Iterable[Lease]) -> list[Lease]:
        """Leases arrived. Returns those to start; a newer fence replaces an older one."""
        started = []
        for lease in leases:
            self.promised = max(self.promised - 1, 0)
            known = self.held.get(lease.request.request_id)
            if known is None or known.fence < lease.fence:
                self.held[lease.request.request_id] = lease
                self.scoring.discard(lease.request.request_id)
                started.append(lease)
        return started

    def sampled(self, request_id: str) -> None:
        """Its image is there: the GPU has room for another."""
        if request_id in self.held:
            self.scoring.add(request_id)

    def _drop(self, request_id: str) -> None:
        del self.held[request_id]
        self.scoring.discard(request_id)

    def finished(self, message: Result | Failed, frames: Sequence[Buffer], now: float) -> bool:
        """Work on a lease ended. Returns whether to report it: not when it was withdrawn."""
        lease = self.held.get(message.request_id)
        if lease is None or lease.fence != message.fence:
            return False
        self._drop(message.request_id)
        patience_s = min(ACK_TIMEOUT_S, lease.duration_s / 2)
        self.unacked[message.request_id] = Unacked(message, frames, now, patience_s)
        return True

    def acked(self, request_id: str, fence: int) -> bool:
        """The daemon has it (or does not want it): forget the report."""
        report = self.unacked.get(request_id)
        if report is None or report.message.fence != fence:
            return False
        del self.unacked[request_id]
        return True

    def withdrawn(self, leases: Iterable[HeldLease]) -> list[HeldLease]:
        """The daemon wants these no more. Returns those that were being worked on."""
        dropped = []
        for lease in leases:
            known = self.held.get(lease.request_id)
            if known is not None and known.fence == lease.fence:
                self._drop(lease.request_id)
                dropped.append(lease)
            self.acked(lease.request_id, lease.fence)
        return dropped

    def due(self, now: float) -> list[Unacked]:
        """Return reports to send again, because no Ack came in time."""
        late = [u for u in self.unacked.values() if now - u.sent_at >= u.patience_s]
        for report in late:
            report.sent_at = now
        return late

    def resend(self, now: float) -> list[Unacked]:
        """Return every report: the session is new and earlier sends may be lost."""
        for report in self.unacked.values():
            report.sent_at = now
        return list(self.unacked.values())

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.promised >= 0
        assert self.scoring <= self.held.keys()
        sampling = len(self.held) - len(self.scoring)
        assert sampling + self.promised <= self.capacity or self.promised == 0
        for request_id, report in self.unacked.items():
            lease = self.held.get(request_id)
            assert lease is None or lease.fence > report.message.fence, request_id


def states_by_fence(grant: Grant, frames: Sequence[Buffer]) -> dict[int, Buffer | None]:
    """Return the state that each lease of a grant resumes from, by fence; None: start afresh.

    A lease whose frame is missing starts afresh too, and comes to the same result.
    """
    states = iter(frames)
    return {
        lease.fence: (next(states, None) if lease.resume_step else None) for lease in grant.leases
    }
