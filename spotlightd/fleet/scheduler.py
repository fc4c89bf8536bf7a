"""Requests, leases and fences: who runs what, as a pure function of events and time.

    queued --grant--> leased --result--> done
      ^                 |  \\--failed, for good--> failed
      |                 |--hand back, lost agent, failure, expiry + grant to another--> queued
      '-----------------'
    queued or leased --withdraw--> cancelled

Workers pull: they give credit, and `dispatch` spends it. A fence is `epoch << 32 | counter`, so it
rises across restarts; a grant raises it, an expiry alone does not. A holder whose lease ran out
but was not handed on may therefore still commit, and a superseded one is stale. The store checks
the fence again where the commit is written.

Order: rollout before evaluate before explore, resumed before fresh, then as added.
"""

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Entry:
    """A request and where it stands."""

    request: Request
    state: RequestState = "queued"
    fence: int = 0
    """Fence of the latest grant; 0 before the first."""
    holder: str | None = None
    """Agent of the latest grant while leased."""
    deadline: float = 0.0
    progress_step: int = 0
    progress_blob: str | None = None
    failures: int = 0
    committing: bool = False
    """Its result is on the way to the disk: neither expires nor moves."""


@dataclass(frozen=True)
class Granted:
    agent_id: str
    entry: Entry
    reason: str


@dataclass
class Puller:
    role: Role
    credit: int = 0
    versions: frozenset[int] = frozenset()
    held: set[str] = field(default_factory=set)


Line = OrderedDict[str, None]
"""Request ids in order; any of them leaves in constant time."""
Queue = tuple[Line, Line]
"""Resumed and fresh requests of one (kind, version)."""


class Scheduler:
    """All requests of the run that are not yet settled, and the credit of each puller.

    Invariants (see `validate`): an entry is in exactly one queue when queued and in none else;
    it is in its holder's `held` exactly when leased; fences are unique and only rise; `_hungry`
    are exactly the pullers with credit. Every event costs the same however many agents there are.
    """

    def __init__(self, epoch: int, lease_s: float, attempts: int) -> None:
        self.epoch = epoch
        self.lease_s = lease_s
        self.attempts = attempts
        self.entries: dict[str, Entry] = {}
        self.pullers: dict[str, Puller] = {}
        self._queues: dict[tuple[RequestKind, int], Queue] = defaultdict(lambda: (Line(), Line()))
        self._hungry: Line = Line()
        self._deadlines: list[tuple[float, int, str]] = []
        """Heap of (deadline, fence, request id) as of the grant; progress moves deadlines on."""
        self._counter = 0

    # --- requests -----------------------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.request_id not in self.entries:
                self.restore(Entry(request))

    def restore(self, entry: Entry) -> None:
        """Put back an unfinished request after a restart, with its fence and progress."""
        entry.state, entry.holder = "queued", None
        self.entries[entry.request.request_id] = entry
        self._enqueue(entry)

    def withdraw(self, request_ids: Iterable[str]) -> dict[str, list[HeldLease]]:
        """Cancel requests that nobody needs any more; return what their holders must stop."""
        stops: dict[str, list[HeldLease]] = defaultdict(list)
        for request_id in request_ids:
            entry = self.entries.get(request_id)
            if entry is None or entry.state not in ("queued", "leased") or entry.committing:
                continue
            if entry.state == "leased" and entry.holder is not None:
                stops[entry.holder].append(HeldLease(request_id, entry.fence))
            self._settle(entry, "cancelled")
        return dict(stops)

    def forget_settled(self, keep: Iterable[str] = ()) -> None:
        """Drop entries that are done, failed or cancelled; late commits on them are stale."""
        kept = set(keep)
        for request_id, entry in list(self.entries.items()):
            if entry.state in ("done", "failed", "cancelled") and request_id not in kept:
                del self.entries[request_id]
        for key in [k for k, (resumed, fresh) in self._queues.items() if not resumed and not fresh]:
            del self._queues[key]

    # --- pullers ------------------------------------------------------------------------------

    def join(
        self, agent_id: str, role: Role, held: Sequence[HeldLease], now: float
    ) -> list[HeldLease]:
        """A process said Hello. Its leases go on where they still stand.

        Returns those that do not: superseded, settled or unknown.
        """
        lost = {r for r in self._held_by(agent_id)} - {h.request_id for h in held}
        for request_id in lost:
            if not self.entries[request_id].committing:
                self._requeue(self.entries[request_id])
        self.pullers[agent_id] = Puller(role, held=self._held_by(agent_id))
        self._hungry.pop(agent_id, None)
        return [lease for lease in held if not self._readopt(agent_id, lease, now)]

    def _readopt(self, agent_id: str, lease: HeldLease, now: float) -> bool:
        entry = self.entries.get(lease.request_id)
        if entry is None:
            return False
        if entry.state == "leased":
            return entry.holder == agent_id and entry.fence == lease.fence
        if entry.state != "queued" or lease.fence < entry.fence:
            return False
        self._dequeue(entry)
        self._lease(entry, agent_id, lease.fence, now)
        return True

    def leave(self, agent_id: str) -> list[str]:
        """A process is gone: what it held goes back to the queue, from its last commit on."""
        puller = self.pullers.pop(agent_id, None)
        self._hungry.pop(agent_id, None)
        requeued = sorted(puller.held) if puller else []
        for request_id in requeued:
            entry = self.entries[request_id]
            if not entry.committing:
                self._requeue(entry)
        return requeued

    def give(self, agent_id: str, credit: int, versions: Iterable[int]) -> None:
        """Add credit, and replace the versions that the worker can sample with."""
        puller = self.pullers.get(agent_id)
        if puller is not None:
            puller.credit += credit
            puller.versions = frozenset(versions)
            if puller.credit:
                self._hungry[agent_id] = None

    def revoke_credit(self, agent_id: str) -> None:
        """Lease nothing more to a draining or suspect puller until it gives credit again."""
        if agent_id in self.pullers:
            self.pullers[agent_id].credit = 0
            self._hungry.pop(agent_id, None)

    # --- leases -------------------------------------------------------------------------------

    def dispatch(self, may_lease: Callable[[str], bool], now: float) -> list[Granted]:
        """Spend the credit of pullers that may lease, one lease each in turn, so that all get
        work. Stops where nothing is queued.
        """
        grants: list[Granted] = []
        if not any(line for queue in self._queues.values() for line in queue):
            return grants
        turn = [agent_id for agent_id in self._hungry if may_lease(agent_id)]
        while turn:
            served = []
            for agent_id in turn:
                grant = self._grant_one(agent_id, now)
                if grant is not None:
                    grants.append(grant)
                    served.append(agent_id)
            turn = [agent_id for agent_id in served if self.pullers[agent_id].credit > 0]
        return grants

    def _grant_one(self, agent_id: str, now: float) -> Granted | None:
        puller = self.pullers[agent_id]
        for kind in KINDS_BY_ROLE[puller.role]:
            for version in sorted(puller.versions, reverse=True):
                for line, reason in zip(
                    self._queues.get((kind, version), ()), ("resumed", "fresh"), strict=False
                ):
                    if line:
                        entry = self.entries[line.popitem(last=False)[0]]
                        self._counter += 1
                        self._lease(entry, agent_id, (self.epoch << 32) | self._counter, now)
                        self._spend(agent_id, puller)
                        return Granted(agent_id, entry, f"{reason} {kind}")
        return None

    def _spend(self, agent_id: str, puller: Puller) -> None:
        puller.credit -= 1
        if not puller.credit:
            del self._hungry[agent_id]

    def _lease(self, entry: Entry, agent_id: str, fence: int, now: float) -> None:
        entry.state, entry.holder, entry.fence = "leased", agent_id, fence
        entry.deadline = now + self.lease_s
        self.pullers[agent_id].held.add(entry.request.request_id)
        heapq.heappush(self._deadlines, (entry.deadline, fence, entry.request.request_id))

    def tick(self, now: float) -> list[str]:
        """Take back leases without progress for `lease_s`; return their request ids."""
        expired = []
        while self._deadlines and self._deadlines[0][0] < now:
            _, fence, request_id = heapq.heappop(self._deadlines)
            entry = self.entries.get(request_id)
            if entry is None or entry.state != "leased" or entry.fence != fence:
                continue
            if entry.deadline < now and not entry.committing:
                self._requeue(entry)
                expired.append(request_id)
            else:
                again = max(entry.deadline, now)
                heapq.heappush(self._deadlines, (again, fence, request_id))
        return expired

    # --- what holders report ------------------------------------------------------------------

    def progress(self, request_id: str, fence: int, now: float) -> Outcome:
        """A step commit arrived: may it be written? The lease is extended."""
        entry = self._current(request_id, fence)
        if entry is None or entry.committing:
            return "stale"
        entry.deadline = now + self.lease_s
        return "committed"

    def progress_committed(self, request_id: str, fence: int, step: int, blob: str) -> None:
        """The step commit is durable; whoever resumes goes on from it."""
        entry = self._current(request_id, fence)
        if entry is not None and step >= entry.progress_step:
            was_queued = entry.state == "queued"
            if was_queued:
                self._dequeue(entry)
            entry.progress_step, entry.progress_blob = step, blob
            if was_queued:
                self._enqueue(entry)

    def result(self, request_id: str, fence: int) -> Outcome | Literal["repeated"]:
        """A result arrived: may it be written? Until `settled` or `commit_failed` it rests.

        `repeated`: it is written already (or will be) under this fence; its Ack was lost.
        """
        known = self.entries.get(request_id)
        if known and known.fence == fence and (known.state == "done" or known.committing):
            return "repeated"
        entry = self._current(request_id, fence)
        if entry is None:
            return "stale"
        entry.committing = True
        return "committed"

    def settled(self, request_id: str) -> None:
        """The result is durable."""
        entry = self.entries[request_id]
        entry.committing = False
        self._settle(entry, "done")

    def commit_failed(self, request_id: str) -> None:
        """The disk refused the result: its holder will send it again."""
        entry = self.entries[request_id]
        entry.committing = False
        if entry.state == "leased" and entry.holder not in self.pullers:
            self._requeue(entry)

    def failed(
        self, request_id: str, fence: int, final: bool
    ) -> Literal["again", "given_up"] | None:
        """The holder could not complete it. None: the report is stale."""
        entry = self._current(request_id, fence)
        if entry is None or entry.committing:
            return None
        entry.failures += 1
        # A state that made a worker fail is not worth resuming from.
        self._requeue(entry, keep_progress=False)
        if final or entry.failures >= self.attempts:
            self._settle(entry, "failed")
            return "given_up"
        return "again"

    def hand_back(self, agent_id: str, held: Iterable[HeldLease]) -> list[str]:
        """The holder gives leases up unfinished."""
        returned = []
        for lease in held:
            entry = self._current(lease.request_id, lease.fence)
            if entry is not None and entry.holder == agent_id and not entry.committing:
                self._requeue(entry)
                returned.append(lease.request_id)
        return returned

    # --- inside -------------------------------------------------------------------------------

    def _current(self, request_id: str, fence: int) -> Entry | None:
        """Return the entry if this fence may still write to it."""
        entry = self.entries.get(request_id)
        if entry is None or entry.fence != fence or entry.state not in ("leased", "queued"):
            return None
        return entry

    def _held_by(self, agent_id: str) -> set[str]:
        puller = self.pullers.get(agent_id)
        return set(puller.held) if puller else set()

    def _release(self, entry: Entry) -> None:
        if entry.holder in self.pullers:
            self.pullers[entry.holder].held.discard(entry.request.request_id)
        entry.holder = None

    def _requeue(self, entry: Entry, keep_progress: bool = True) -> None:
        if entry.state == "queued":
            self._dequeue(entry)
        self._release(entry)
        entry.state = "queued"
        if not keep_progress:
            entry.progress_step, entry.progress_blob = 0, None
        self._enqueue(entry)

    def _settle(self, entry: Entry, state: RequestState) -> None:
        if entry.state == "queued":
            self._dequeue(entry)
        self._release(entry)
        entry.state = state

    def _line_of(self, entry: Entry) -> Line:
        resumed, fresh = self._queues[(entry.request.kind, entry.request.policy_version)]
        return resumed if entry.progress_step else fresh

    def _enqueue(self, entry: Entry) -> None:
        self._line_of(entry)[entry.request.request_id] = None

    def _dequeue(self, entry: Entry) -> None:
        del self._line_of(entry)[entry.request.request_id]

    def counts(self) -> dict[RequestKind, dict[RequestState, int]]:
        table: dict[RequestKind, dict[RequestState, int]] = {kind: {} for kind in PRIORITY}
        for entry in self.entries.values():
            row = table[entry.request.kind]
            row[entry.state] = row.get(entry.state, 0) + 1
        return table

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        queued = [r for queues in self._queues.values() for queue in queues for r in queue]
        assert len(queued) == len(set(queued)), "a request is queued twice"
        fences = [e.fence for e in self.entries.values() if e.fence]
        assert len(fences) == len(set(fences)), "two requests share a fence"
        in_line = set(queued)
        held = {r: a for a, puller in self.pullers.items() for r in puller.held}
        for request_id, entry in self.entries.items():
            assert (entry.state == "queued") == (request_id in in_line), entry
            if entry.state == "leased" and not entry.committing:
                assert held.get(request_id) == entry.holder, entry
            if entry.state != "leased":
                assert request_id not in held, entry
        for agent_id, puller in self.pullers.items():
            assert puller.credit >= 0, puller
            assert (agent_id in self._hungry) == (puller.credit > 0), puller
        due = {(fence, request_id) for _, fence, request_id in self._deadlines}
        for request_id, entry in self.entries.items():
            assert entry.state != "leased" or (entry.fence, request_id) in due, entry
