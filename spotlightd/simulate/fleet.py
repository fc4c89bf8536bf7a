"""The daemon in virtual time: events of VMs into the real state machines, and what they decide.

VirtualVm --> scheduler, membership, ledger --> Cycle --> decisions --> scheduler, trainer
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spotlightd.config import Config
from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.membership import Member, Membership
from spotlightd.fleet.moment import SpotView
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.planner.cycle import Cycle
from spotlightd.planner.decisions import (
    AddRequests,
    Decision,
    PhaseBegins,
    Planned,
    Record,
    Reopen,
    StartTraining,
    StopRequests,
)
from spotlightd.planner.training import CommittedResult
from spotlightd.simulate.clock import Clock
from spotlightd.simulate.vm import Job, VirtualVm
from spotlightd.wire.messages import HeldLease
from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Train

TRAINER = "trainer"
EPOCH = 1


@dataclass
class Counts:
    explored: int = 0
    resumed: int = 0
    lost_gpu_s: float = 0.0
    recovery_s: list[float] = field(default_factory=list)
    phase_s: dict[str, list[float]] = field(default_factory=dict)


class VirtualDaemon:
    """Args:
    score: the scores of a finished request.
    score_delay_s: from the last denoising step to the scores.
    train: what happens when training is to start.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        cycle: Cycle,
        score: Callable[[Request], dict[str, float]],
        score_delay_s: float,
        train: Callable[[Train], None],
    ) -> None:
        fleet = config.fleet
        self.config, self.clock, self.cycle = config, clock, cycle
        self.scheduler = Scheduler(EPOCH, fleet.lease_s, fleet.attempts, fleet.backup_leases)
        self.members = Membership(fleet.suspect_s, fleet.lost_s, fleet.forget_s)
        self.ledger = Ledger()
        self.spots = SpotView(self.scheduler, self.members)
        self.vms: dict[str, VirtualVm] = {}
        self.train_fraction = 0.0
        self.counts = Counts()
        self._score, self._score_delay_s, self._train = score, score_delay_s, train
        self._dispatch_due = False
        self._lost_at: dict[str, float] = {}
        """Rollouts that a lost VM was denoising and nobody does yet, by when it was lost."""
        self._phase: tuple[str, float] | None = None
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def note(self, *words: object) -> None:
        self._digest.update(f"{self.clock.now:.6f} {words}\n".encode())

    # --- VMs ----------------------------------------------------------------------------------

    def hello(self, vm: VirtualVm, zone: str, price: float, credit: int) -> None:
        """A process joins; it can sample with `vm.versions`."""
        now = self.clock.now
        self.vms[vm.agent_id] = vm
        member = Member(vm.agent_id, vm.agent_id, vm.role, vm.workers, now, now)
        member.zone = zone
        self.members.hello(member)
        self.scheduler.join(vm.agent_id, vm.role, (), now)
        self.ledger.join(vm.agent_id, vm.agent_id, vm.role, vm.workers, price, now)
        self.note("hello", vm.agent_id)
        self.give(vm, credit)

    def give(self, vm: VirtualVm, credit: int) -> None:
        self.scheduler.give(vm.agent_id, credit, vm.versions)
        self.dispatch_soon()

    def progress(self, vm: VirtualVm, job: Job, step: int) -> None:
        """A step commit arrives, and is durable at once."""
        request_id = job.request.request_id
        if self.scheduler.progress(request_id, job.fence, self.clock.now) == "stale":
            self.ledger.spent_in_vain(vm.agent_id, job.gpu_s)
        else:
            self.scheduler.progress_committed(request_id, job.fence, step, "state")
            self.ledger.committed(vm.agent_id, job.gpu_s)
        job.committed, job.gpu_s = step, 0.0

    def begun(self, vm: VirtualVm, job: Job) -> None:
        """A worker takes a lease up; what a lost VM had begun is recovered so."""
        lost_at = self._lost_at.pop(job.request.request_id, None)
        if lost_at is not None:
            self.counts.recovery_s.append(self.clock.now - lost_at)

    def denoised(self, vm: VirtualVm, job: Job) -> None:
        """The GPU is free for another lease while this one is scored."""
        self.give(vm, 1)
        self.clock.at(self.clock.now + self._score_delay_s, self._scored, vm, job)

    def _scored(self, vm: VirtualVm, job: Job) -> None:
        request_id = job.request.request_id
        if not vm.alive:
            self._lose(job)
            return
        if self.scheduler.result(request_id, job.fence) != "committed":
            self.ledger.spent_in_vain(vm.agent_id, job.gpu_s)
            return
        self._stop(self.scheduler.settled(request_id))
        self.ledger.committed(vm.agent_id, job.gpu_s)
        self.counts.explored += job.request.kind == "explore"
        self._lost_at.pop(request_id, None)
        self.note("result", request_id, vm.agent_id)
        blob = "trajectory" if job.request.kind == "rollout" else None
        scores = self._score(job.request)
        result = CommittedResult(request_id, scores, blob, vm.agent_id, job.gpu_s)
        self.act(lambda cycle: cycle.committed(result), looks=job.request.kind == "explore")

    def drained(self, vm: VirtualVm, commits: bool) -> None:
        """A notice came: what is in flight is committed and handed back, then the VM leaves."""
        now, agent_id = self.clock.now, vm.agent_id
        self.note("notice", agent_id)
        self.members.drain(agent_id, "notice")
        self.scheduler.revoke_credit(agent_id)
        for job in vm.halt():
            step = min(int(job.done), job.request.sampler.num_steps - 1)
            if commits and job.request.kind == "rollout" and not job.backup and step:
                self.progress(vm, job, max(step, job.committed))
            self._lose(job)
            lease = HeldLease(job.request.request_id, job.fence)
            self.scheduler.hand_back(agent_id, [lease])
        self._report(vm)
        self.members.leave(agent_id, "drained", now)
        self._gone(agent_id, now, lost=False)

    def vanished(self, vm: VirtualVm) -> None:
        """The VM is gone, and nobody has said so: its silence will tell."""
        self.note("vanished", vm.agent_id)
        for job in vm.halt():
            self._lose(job)
        self._report(vm)

    def _lose(self, job: Job) -> None:
        self.counts.lost_gpu_s += job.gpu_s
        # What had not begun waits its turn again: nothing of it is to be recovered.
        if job.request.kind == "rollout" and job.rate:
            self._lost_at.setdefault(job.request.request_id, self.clock.now)

    def _gone(self, agent_id: str, at: float, lost: bool) -> None:
        self.scheduler.leave(agent_id)
        self.ledger.left(agent_id, at, lost)
        del self.vms[agent_id]
        self.dispatch_soon()

    def tick(self) -> None:
        """Heartbeats of all that live, and what silence and time do."""
        now = self.clock.now
        for agent_id, vm in self.vms.items():
            if vm.alive and vm.role == "agent":
                self.members.seen(agent_id, now)
                self._report(vm)
        for change in self.members.tick(now):
            if change.state == "lost":
                self.note("lost", change.agent_id)
                seen = self.members.members[change.agent_id].last_seen
                self._gone(change.agent_id, seen, lost=True)
        if self.scheduler.tick(now):
            self.dispatch_soon()
        if self.cycle.state.phase in ("explore", "train"):
            self.act(lambda cycle: cycle.tick())

    def _report(self, vm: VirtualVm) -> None:
        self.ledger.heartbeat(vm.agent_id, vm.busy_until_now(), vm.loading_s)

    # --- decisions ----------------------------------------------------------------------------

    def act(self, event: Callable[[Cycle], list[Decision]], looks: bool = True) -> None:
        """Let the iteration machine take an event, and do what it decides.

        Args:
            looks: whether it looks at the fleet for this event.
        """
        if looks or len(self.cycle.requests) == len(self.cycle.results) + 1:
            self.cycle.moment = self.spots.moment(self.clock.now, self.train_fraction)
        for decision in event(self.cycle):
            match decision:
                case AddRequests():
                    self.scheduler.add(decision.requests)
                    self.dispatch_soon()
                case StopRequests():
                    self._stop(self.scheduler.withdraw(decision.request_ids))
                case StartTraining():
                    self.train_fraction = 0.0
                    self._train(decision.message)
                case PhaseBegins():
                    self._begin_phase(decision.phase)
                case Planned():
                    self.note("plan", decision.reason)
                case Record() | Reopen():
                    pass

    def _begin_phase(self, phase: str) -> None:
        now = self.clock.now
        self.note("phase", phase, self.cycle.state.iteration)
        if self._phase is not None:
            name, since = self._phase
            self.counts.phase_s.setdefault(name, []).append(now - since)
        self._phase = (phase, now)
        if phase == "rollout":
            self.scheduler.forget_settled()

    def _stop(self, stops: Mapping[str, Sequence[HeldLease]]) -> None:
        for agent_id, leases in stops.items():
            vm = self.vms.get(agent_id)
            for lease in leases if vm is not None and vm.alive else ():
                assert vm is not None
                gpu_s = vm.stop(lease.request_id, lease.fence)
                if gpu_s is not None:
                    self.ledger.spent_in_vain(agent_id, gpu_s)
                    self.give(vm, 1)

    def dispatch_soon(self) -> None:
        if not self._dispatch_due:
            self._dispatch_due = True
            self.clock.at(self.clock.now, self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        now = self.clock.now
        for grant in self.scheduler.dispatch(self.members.may_lease, now):
            vm, entry = self.vms[grant.agent_id], grant.entry
            if not vm.alive:
                continue  # Nobody there to take it: the lease ends with the membership.
            request_id = entry.request.request_id
            self.counts.resumed += entry.progress_step > 0
            stale = vm.jobs.get(request_id)
            if stale is not None:  # Its lease ran out here, and comes back.
                self._stop({grant.agent_id: [HeldLease(request_id, stale.fence)]})
            self.note("grant", request_id, grant.agent_id, grant.fence)
            vm.grant(entry.request, grant.fence, entry.progress_step, grant.backup)

    def validate(self) -> None:
        """Raise AssertionError where what is kept up is not what it stands for."""
        self.scheduler.validate()
        self.members.validate()
        self.spots.validate()
        self.ledger.validate(self.clock.now)
        self.cycle.state.planner.times.validate(self.cycle.moment.agents)
        if self.cycle.explorer.exploration is not None:
            self.cycle.explorer.exploration.ranking.validate()

    def able(self) -> Iterable[VirtualVm]:
        """Agents that are there and can be sent weights."""
        return (vm for vm in self.vms.values() if vm.alive and vm.role == "agent")
