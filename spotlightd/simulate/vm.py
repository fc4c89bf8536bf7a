"""What one VM's workers do with their leases, step by step, in virtual time.

A worker denoises one trajectory at a time; what it holds beyond that waits. Where the daemon has
left credit unanswered for a while and workers are idle, they help with what is left: sequence
parallelism, by the agent's own rule (`dit.degrees.plan`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from spotlightd.dit.degrees import WORTH, Curve, plan
from spotlightd.simulate.clock import Clock
from spotlightd.wire.messages import Role
from spotlightd.wire.sampling import Request

UNANSWERED_S = 0.3
"""After so long without work for an idle worker the VM may form groups (docs/sequence-parallel)."""
EPSILON = 1e-6


@dataclass(eq=False)
class Job:
    """A lease, and how far it is. In denoising steps; decoding counts as some at the end."""

    request: Request
    fence: int
    backup: bool
    done: float
    committed: int
    """Step of the latest commit."""
    length: float
    rate: float = 0.0
    """Steps a second; 0 while it waits."""
    gpus: float = 0.0
    """Workers that it has, in parts where several share one."""
    since: float = 0.0
    """When `done` was true."""
    gpu_s: float = 0.0
    """GPU-seconds since the latest commit."""
    mark: int = 0
    """Rises with every change of the rate: what was expected before is void."""


class Port(Protocol):
    """Where a VM's words go."""

    def progress(self, vm: "VirtualVm", job: Job, step: int) -> None: ...
    def denoised(self, vm: "VirtualVm", job: Job) -> None: ...
    def begun(self, vm: "VirtualVm", job: Job) -> None: ...


@dataclass(frozen=True)
class Pace:
    """How fast work goes on one VM."""

    step_s: float
    decode_s: float
    commit_every: int
    """Denoising steps between commits of a rollout; 0: none."""
    curve: Curve | None
    """Speedups by degree; None: every image has one worker."""
    regroup_s: float


class VirtualVm:
    """Invariant: at most `workers` jobs run, and none waits while fewer do."""

    def __init__(
        self, clock: Clock, port: Port, agent_id: str, role: Role, workers: int, pace: Pace
    ) -> None:
        self.agent_id, self.role, self.workers = agent_id, role, workers
        self.alive = True
        self.versions: tuple[int, ...] = ()
        self.jobs: dict[str, Job] = {}
        """All that are not denoised yet, oldest first."""
        self.busy_s = self.loading_s = 0.0
        self._clock, self._port, self._pace = clock, port, pace
        self._running = 0
        self._grouped = False
        self._looked = 0
        """Rises with every change of what runs: a look at groups that was due before is void."""

    def grant(self, request: Request, fence: int, step: int, backup: bool) -> None:
        length = request.sampler.num_steps + self._pace.decode_s / self._pace.step_s
        known = self.jobs.get(request.request_id)
        if known is not None:  # Its lease ran out, and it got the next one: a newer fence replaces.
            self._advance(known)
            self._remove(known)
        self.jobs[request.request_id] = Job(request, fence, backup, float(step), step, length)
        if self._grouped:
            self._spread([job for job in self.jobs.values() if job.rate])
        self._fill()

    def stop(self, request_id: str, fence: int) -> float | None:
        """Drop a lease; return its GPU-seconds since the last commit, None where it is not held."""
        job = self.jobs.get(request_id)
        if job is None or job.fence != fence:
            return None
        self._advance(job)
        self._remove(job)
        self._fill()
        return job.gpu_s

    def halt(self) -> list[Job]:
        """Everything ends here and now: return all jobs, as far as they are."""
        self.alive = False
        jobs = list(self.jobs.values())
        for job in jobs:
            self._advance(job)
            job.mark += 1
        self.jobs.clear()
        return jobs

    def busy_until_now(self) -> float:
        """Return cumulated GPU-seconds. Asked at every beat, so nothing is written here."""
        now, busy_s = self._clock.now, self.busy_s
        for job in self.jobs.values():
            if job.rate and now > job.since:
                busy_s += (now - job.since) * job.gpus
        return busy_s

    # --- inside -------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Workers without a job take what waits, in order."""
        if self._running < min(self.workers, len(self.jobs)):
            for job in self.jobs.values():
                if not job.rate:
                    self._set_rate(job, 1 / self._pace.step_s, 1.0, 0.0)
                    self._running += 1
                    self._port.begun(self, job)
                    if self._running == self.workers:
                        break
        self._looked += 1
        if self._pace.curve is not None and 0 < self._running < self.workers:
            self._clock.at(self._clock.now + UNANSWERED_S, self._group, self._looked)

    def _group(self, looked: int) -> None:
        """Idle workers help, where the work that is there ends sooner so."""
        curve = self._pace.curve
        if looked != self._looked or not self.alive or curve is None:
            return
        jobs = list(self.jobs.values())
        for job in jobs:
            self._advance(job)
        left = [max(job.length - job.done, EPSILON) for job in jobs]
        regroup = self._pace.regroup_s / self._pace.step_s
        found = plan(left, self.workers, curve, regroup)
        rates = (job.rate * self._pace.step_s for job in jobs)
        stays = max(steps / rate for steps, rate in zip(left, rates, strict=True))
        if found.makespan + regroup > WORTH * stays:
            return
        self._grouped = True
        for group in found.groups:
            share = 1 / len(group.images)
            for index in group.images:
                rate = curve.at(group.degree) * share / self._pace.step_s
                self._set_rate(jobs[index], rate, group.degree * share, self._pace.regroup_s)

    def _spread(self, jobs: Iterable[Job]) -> None:
        """More work has come: every image has one worker again."""
        self._grouped = False
        for job in jobs:
            self._set_rate(job, 1 / self._pace.step_s, 1.0, self._pace.regroup_s)

    def _set_rate(self, job: Job, rate: float, gpus: float, pause_s: float) -> None:
        self._advance(job)
        job.rate, job.gpus, job.since = rate, gpus, self._clock.now + pause_s
        self._expect(job)

    def _expect(self, job: Job) -> None:
        target, every = job.length, self._pace.commit_every
        if every and job.request.kind == "rollout" and not job.backup:
            boundary = (math.floor(job.done + EPSILON) // every + 1) * every
            target = boundary if boundary < job.request.sampler.num_steps else job.length
        job.mark += 1
        when = job.since + (target - job.done) / job.rate
        self._clock.at(when, self._reach, job, job.mark, target)

    def _reach(self, job: Job, mark: int, target: float) -> None:
        if job.mark != mark:
            return
        self._advance(job)
        job.done = target
        if target < job.length:
            self._port.progress(self, job, int(target))
            self._expect(job)
            return
        self._remove(job)
        self._fill()
        self._port.denoised(self, job)

    def _advance(self, job: Job) -> None:
        elapsed = self._clock.now - job.since
        if job.rate and elapsed > 0:
            job.done = min(job.done + elapsed * job.rate, job.length)
            job.gpu_s += elapsed * job.gpus
            self.busy_s += elapsed * job.gpus
            job.since = self._clock.now

    def _remove(self, job: Job) -> None:
        del self.jobs[job.request.request_id]
        job.mark += 1
        self._running -= job.rate > 0
        if not self.jobs:
            self._grouped = False
