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

Order: rollout before evaluate before explore, resumed before fresh, given up before as added.

In the last wave of a phase, when nothing that must be done waits any more, idle workers get
*backup* leases: a second fence on a request that is leased already. Whichever result comes first
is committed, the other holder is stopped. A backup takes the first lease's place when that is
given up.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal

from spotlightd.fleet.entries import (
    AWAITED,
    KINDS_BY_ROLE,
    Backup,
    Entry,
    Granted,
    Outcome,
    RequestState,
)
from spotlightd.fleet.fences import Fences
from spotlightd.fleet.invariants import check_entries
from spotlightd.fleet.last_wave import choose_backups, worth_a_look
from spotlightd.fleet.pullers import Line, Puller, Pullers
from spotlightd.fleet.queues import Deadlines, Queues
from spotlightd.wire.messages import HeldLease, Role
from spotlightd.wire.sampling import PRIORITY, Request

BACKUP_SCAN = 64
"""Leases and idle workers that one dispatch looks at for backups, however many there are."""


class Scheduler:
    """All requests of the run that are not yet settled, and the credit of each puller.

    Invariants (see `validate`): an entry is in exactly one queue when queued and in none else;
    it is in its holder's `held` exactly when leased, and in its backup's `backups`; fences are
    unique and only rise. Every event costs the same however many agents there are.
    """

    def __init__(
        self, epoch: int, lease_s: float, attempts: int, backup_leases: bool = True
    ) -> None:
        self.epoch = epoch
        self.lease_s = lease_s
        self.attempts = attempts
        self.backup_leases = backup_leases
        self.entries: dict[str, Entry] = {}
        self.pullers = Pullers()
        self._queues = Queues()
        self._single = Line()
        """Leased requests of awaited kinds without a backup, oldest grant first."""
        self._deadlines = Deadlines()
        self._fences = Fences(epoch)

    # --- requests -----------------------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.request_id not in self.entries:
                self.restore(Entry(request))

    def restore(self, entry: Entry, holder: str | None = None, deadline: float = 0.0) -> None:
        """Put back an unfinished request after a restart, with its fence and progress.

        Args:
            holder: who held it before; until `deadline` it may say Hello and go on.
        """
        entry.state, entry.holder = "queued", None
        self._fences.restored(entry.fence)
        self.entries[entry.request.request_id] = entry
        if holder is None:
            self._queues.add(entry)
        else:
            if holder not in self.pullers:
                self.pullers.join(holder, Puller("agent"))
            self._lease(entry, holder, entry.fence, deadline)

    def withdraw(self, request_ids: Iterable[str]) -> dict[str, list[HeldLease]]:
        """Cancel requests that nobody needs any more; return what their holders must stop."""
        stops: dict[str, list[HeldLease]] = defaultdict(list)
        for request_id in request_ids:
            entry = self.entries.get(request_id)
            if entry is None or entry.state not in ("queued", "leased") or entry.committing:
                continue
            for holder, lease in entry.leases():
                stops[holder].append(lease)
            self._settle(entry, "cancelled")
        return dict(stops)

    def forget_settled(self) -> None:
        """Drop entries that are done, failed or cancelled; late commits on them are stale."""
        for request_id, entry in list(self.entries.items()):
            if entry.state in ("done", "failed", "cancelled"):
                del self.entries[request_id]
        self._queues.forget_empty()

    # --- pullers ------------------------------------------------------------------------------

    def join(
        self, agent_id: str, role: Role, held: Sequence[HeldLease], now: float
    ) -> list[HeldLease]:
        """A process said Hello. Its leases go on where they still stand.

        Returns those that do not: superseded, settled or unknown.
        """
        before = self.pullers.get(agent_id) or Puller(role)
        for request_id in (before.held | before.backups) - {h.request_id for h in held}:
            self._give_up(agent_id, self.entries[request_id])
        self.pullers.leave(agent_id)
        self.pullers.join(agent_id, Puller(role, held=before.held, backups=before.backups))
        return [lease for lease in held if not self._readopt(agent_id, lease, now)]

    def _readopt(self, agent_id: str, lease: HeldLease, now: float) -> bool:
        entry = self.entries.get(lease.request_id)
        if entry is None:
            return False
        if entry.state == "leased":
            if entry.fence == lease.fence and entry.holder == agent_id:
                entry.deadline = max(entry.deadline, now + self.lease_s)
                return True
            return (agent_id, lease) in entry.leases()
        if entry.state != "queued" or not self._fences.claim(lease.fence, entry.fence):
            return False
        self._queues.remove(entry)
        self._lease(entry, agent_id, lease.fence, now + self.lease_s)
        return True

    def holds(self, agent_id: str, lease: HeldLease) -> bool:
        """Return whether this is the request's first lease, and the agent's."""
        entry = self.entries.get(lease.request_id)
        return entry is not None and (entry.holder, entry.fence) == (agent_id, lease.fence)

    def leave(self, agent_id: str) -> list[str]:
        """A process is gone: what it held goes back to the queue, from its last commit on.

        Returns the requests that nobody works on any more.
        """
        puller = self.pullers.leave(agent_id)
        given_up = [self.entries[r] for r in sorted(puller.held | puller.backups)]
        return [e.request.request_id for e in given_up if self._give_up(agent_id, e)]

    def _give_up(self, agent_id: str, entry: Entry) -> bool:
        """End one holder's lease; return whether the request waits again."""
        if entry.backup is not None and entry.backup.holder == agent_id:
            self._drop_backup(entry)
            return False
        return not entry.committing and self._requeue(entry)

    def give(self, agent_id: str, credit: int, versions: Iterable[int]) -> None:
        """Add credit, and replace the versions that the worker can sample with."""
        self.pullers.give(agent_id, credit, versions)

    def revoke_credit(self, agent_id: str) -> None:
        """Lease nothing more to a draining or suspect puller until it gives credit again."""
        self.pullers.revoke_credit(agent_id)

    # --- leases -------------------------------------------------------------------------------

    def dispatch(self, may_lease: Callable[[str], bool], now: float) -> list[Granted]:
        """Spend credit, one lease each in turn, so that all get work; then back leases up."""
        grants: list[Granted] = []
        turn = list(self.pullers.hungry) if self._queues.any_of(PRIORITY) else []
        while turn:
            served = []
            for agent_id in turn:
                grant = self._grant_one(agent_id, now) if may_lease(agent_id) else None
                if grant is not None:
                    grants.append(grant)
                    served.append(agent_id)
                elif not self._queues.any_of(PRIORITY):
                    break  # Nobody after it can get anything.
            turn = [agent_id for agent_id in served if self.pullers[agent_id].credit > 0]
        if self.backup_leases and self._single and not self._queues.any_of(AWAITED):
            grants += self._back_up(may_lease, now)
        return grants

    def _grant_one(self, agent_id: str, now: float) -> Granted | None:
        puller = self.pullers[agent_id]
        popped = self._queues.pop(KINDS_BY_ROLE[puller.role], puller.versions)
        if popped is None:
            return None
        entry = self.entries[popped[0]]
        self._lease(entry, agent_id, self._fences.next(), now + self.lease_s)
        self.pullers.spend(agent_id)
        return Granted(agent_id, entry, entry.fence, f"{popped[1]} {entry.request.kind}")

    def _back_up(self, may_lease: Callable[[str], bool], now: float) -> list[Granted]:
        late, scan = now + self.lease_s / 2, BACKUP_SCAN if self.pullers.hungry else 0
        leased = (self.entries[request_id] for request_id in islice(self._single, scan))
        oldest = worth_a_look(leased, self.pullers, late)
        hungry = islice(self.pullers.hungry, BACKUP_SCAN if oldest else 0)
        idle = [a for a in hungry if self.pullers[a].idle and may_lease(a)]
        pairs = choose_backups(oldest, idle, self.pullers, self.entries, late)
        return [self._lease_backup(entry, agent_id, now) for entry, agent_id in pairs]

    def _lease_backup(self, entry: Entry, agent_id: str, now: float) -> Granted:
        entry.backup = Backup(agent_id, self._fences.next(), now + self.lease_s)
        self.pullers[agent_id].backups.add(entry.request.request_id)
        del self._single[entry.request.request_id]
        self.pullers.spend(agent_id)
        reason = f"backup of {entry.request.kind} at {entry.holder}"
        return Granted(agent_id, entry, entry.backup.fence, reason, backup=True)

    def _lease(self, entry: Entry, agent_id: str, fence: int, deadline: float) -> None:
        request_id = entry.request.request_id
        entry.state, entry.holder, entry.fence = "leased", agent_id, fence
        entry.deadline = deadline
        self.pullers.hold(agent_id, request_id)
        if entry.backup is None and entry.request.kind in AWAITED:
            self._single[request_id] = None
        self._deadlines.watch(deadline, fence, request_id)

    def tick(self, now: float) -> list[str]:
        """Take back leases without progress for `lease_s`; return the requests that wait again."""
        expired = []
        for fence, request_id in self._deadlines.pop_before(now):
            entry = self.entries.get(request_id)
            if entry is None or entry.state != "leased" or entry.fence != fence:
                continue
            if entry.deadline >= now or entry.committing:
                self._deadlines.watch(max(entry.deadline, now), fence, request_id)
            elif self._requeue(entry):
                expired.append(request_id)
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
                self._queues.remove(entry)
            entry.progress_step, entry.progress_blob = step, blob
            if was_queued:
                self._queues.add(entry)

    def result(self, request_id: str, fence: int) -> Outcome | Literal["repeated"]:
        """A result arrived: may it be written? Until `settled` or `commit_failed` it rests.

        `repeated`: it is written already (or will be) under this fence; its Ack was lost.
        """
        known = self.entries.get(request_id)
        if known and known.fence == fence and (known.state == "done" or known.committing):
            return "repeated"
        backed_up = self._backed_up(request_id, fence)
        if backed_up is not None and not backed_up.committing:
            self._swap_with_backup(backed_up)
        entry = self._current(request_id, fence)
        if entry is None:
            return "stale"
        entry.committing = True
        return "committed"

    def settled(self, request_id: str) -> dict[str, list[HeldLease]]:
        """The result is durable. Returns what a second holder must stop."""
        entry = self.entries[request_id]
        entry.committing = False
        stops = {h: [lease] for h, lease in entry.leases() if lease.fence != entry.fence}
        self._settle(entry, "done")
        return stops

    def commit_failed(self, request_id: str) -> None:
        """The disk refused the result: its holder will send it again."""
        entry = self.entries[request_id]
        entry.committing = False
        if entry.state == "leased" and entry.holder not in self.pullers:
            self._requeue(entry)

    def failed(
        self, request_id: str, fence: int, final: bool
    ) -> Literal["again", "given_up"] | None:
        """The holder could not complete it. None: nothing changes, for the report is stale or
        another holder works on.
        """
        backed_up = self._backed_up(request_id, fence)
        if backed_up is not None:
            self._drop_backup(backed_up)
            return None
        entry = self._current(request_id, fence)
        if entry is None or entry.committing:
            return None
        entry.failures += 1
        # A state that made a worker fail is not worth resuming from.
        if not self._requeue(entry, keep_progress=False):
            return None
        if final or entry.failures >= self.attempts:
            self._settle(entry, "failed")
            return "given_up"
        return "again"

    def hand_back(self, agent_id: str, held: Iterable[HeldLease]) -> list[str]:
        """The holder gives leases up unfinished; return the requests that wait again."""
        returned = []
        for lease in held:
            entry = self.entries.get(lease.request_id)
            held_so = entry is not None and (agent_id, lease) in entry.leases()
            if entry is not None and held_so and self._give_up(agent_id, entry):
                returned.append(lease.request_id)
        return returned

    # --- inside -------------------------------------------------------------------------------

    def _current(self, request_id: str, fence: int) -> Entry | None:
        """Return the entry if this fence may still write to it."""
        entry = self.entries.get(request_id)
        if entry is None or entry.fence != fence or entry.state not in ("leased", "queued"):
            return None
        return entry

    def _backed_up(self, request_id: str, fence: int) -> Entry | None:
        """Return the entry if this is the fence of its backup."""
        entry = self.entries.get(request_id)
        return entry if entry and entry.backup and entry.backup.fence == fence else None

    def _release(self, entry: Entry) -> None:
        self.pullers.release(entry.holder, entry.request.request_id)
        entry.holder = None
        self._single.pop(entry.request.request_id, None)

    def _drop_backup(self, entry: Entry) -> None:
        request_id, backup, entry.backup = entry.request.request_id, entry.backup, None
        if backup is not None:
            self.pullers.release(backup.holder, request_id)
            if self.pullers.holds(entry.holder, request_id):
                self._single[request_id] = None

    def _swap_with_backup(self, entry: Entry) -> None:
        """The backup's result came first: the other lease is now the second one."""
        first, second = entry.holder, entry.backup
        assert second is not None
        overtaken = None if first is None else Backup(first, entry.fence, entry.deadline)
        self._release(entry)
        self._drop_backup(entry)
        entry.backup = overtaken
        self._lease(entry, second.holder, second.fence, second.deadline)
        if overtaken is not None and overtaken.holder in self.pullers:
            self.pullers[overtaken.holder].backups.add(entry.request.request_id)

    def _requeue(self, entry: Entry, keep_progress: bool = True) -> bool:
        """End the lease; a backup takes its place. Returns whether the request waits again."""
        if entry.state == "queued":
            self._queues.remove(entry)
        backup = entry.backup
        self._release(entry)
        self._drop_backup(entry)
        if not keep_progress:
            entry.progress_step, entry.progress_blob = 0, None
        if backup is not None:
            self._lease(entry, backup.holder, backup.fence, backup.deadline)
            return False
        entry.state = "queued"
        # What failed goes behind the others, so that the worker that failed it is not the next.
        self._queues.add(entry, first=keep_progress)
        return True

    def _settle(self, entry: Entry, state: RequestState) -> None:
        if entry.state == "queued":
            self._queues.remove(entry)
        self._release(entry)
        self._drop_backup(entry)
        entry.state = state

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        check_entries(self.entries, self.pullers, list(self._queues), set(self._deadlines))
        single = {
            request_id
            for request_id, entry in self.entries.items()
            if entry.request.kind in AWAITED
            and entry.backup is None
            and self.pullers.holds(entry.holder, request_id)
        }
        assert set(self._single) == single, single ^ set(self._single)
        self.pullers.validate()
