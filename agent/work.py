"""The way of a lease through the agent: grant, worker, scorer, result, acknowledgement.

Grant -> WorkerSlot -> Finished -> scorer -> Result -> Ack
                  '--> StepState ----------> Progress -> Ack
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from agent.children import Child
from agent.notice_race import Leaving
from agent.workers import Workers, WorkerSlot
from spotlightd.wire import messages as m
from spotlightd.wire import pipe
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer
from spotlightd.wire.pull import PullState, states_by_fence
from spotlightd.wire.rewards import RewardOptions

if TYPE_CHECKING:
    from agent.groups import Groups

logger = logging.getLogger(__name__)

SCORER_BATCH = 8
DECIDE_S = 2.0
"""Upon a notice: without a decision after so long, everything is committed."""

Send = Callable[[m.Message, Sequence[Buffer]], None]


@dataclass
class Waiting:
    """A finished trajectory whose image waits for its rewards."""

    message: w.Finished
    frames: dict[str, Buffer]
    target: str
    prompt: str
    keeps_frames: bool
    """Exploration sends scores alone."""


class Work:
    """Everything leased to this agent, until it is acknowledged."""

    def __init__(
        self,
        capacity: int,
        rewards: tuple[str, ...],
        send: Send,
        reward_options: RewardOptions | None = None,
    ) -> None:
        self.pull = PullState(capacity)
        self.workers: Workers | None = None
        self._rewards = rewards
        self._reward_options = reward_options or RewardOptions()
        self._send = send
        self.groups: Groups | None = None
        self._slots: dict[str, WorkerSlot] = {}
        self._carried_gpu_s: dict[str, float] = {}
        """GPU-seconds of requests that moved to another worker, to be reported with their next."""
        self._waiting: dict[str, Waiting] = {}
        self._scoring: list[str] = []
        self._progress: dict[tuple[str, int], list[tuple[m.Progress, list[Buffer]]]] = {}
        """By request and fence, step commits that are not acknowledged, oldest first."""
        self._flushing: set[int] = set()
        """Workers that have not answered Flush yet."""
        self._scorer: Child | None = None
        self.leaving: Leaving | None = None
        """While this agent leaves and finishes what it holds."""
        self._flushed = False

    async def start_scorer(self) -> "asyncio.Task[None]":
        """Start the scorer; the task ends with an error when it cannot go on."""
        return asyncio.create_task(self._score_forever(), name="scorer")

    @property
    def settled(self) -> bool:
        """Nothing is in flight, and everything sent is acknowledged."""
        working = self._flushing or self._waiting or self._scoring or self._racing
        return not (working or self.pull.unacked or self._progress)

    @property
    def _racing(self) -> bool:
        return self.leaving is not None and bool(self.sampling())

    # --- from the daemon ----------------------------------------------------------------------

    def granted(self, grant: m.Grant, frames: Sequence[Buffer]) -> None:
        states = states_by_fence(grant, frames)
        if self.groups is not None and grant.leases:
            self.groups.fed()
        leases = self.pull.granted(grant.leases)
        if self.pull.draining:
            # It crossed the notice. To fail it would cost what others committed of it.
            self.give_up([lease.request.request_id for lease in leases])
            return
        for lease in leases:
            assert self.workers is not None
            state = states[lease.fence]
            slot = self.workers.least_loaded(lease.request.policy_version)
            if slot is not None:
                self.start(lease, state, slot)
            elif self.groups is not None and self.workers.can_sample(lease.request.policy_version):
                self.groups.wait_for_room(lease, state)
            else:
                self._fail(lease.request.request_id, lease.fence, "no worker has this version", 0.0)

    def acked(self, ack: m.Ack) -> None:
        if ack.what == "progress":
            # One for each, in order: an older step's must not pass for the newest one's.
            key = (ack.request_id, ack.fence)
            waiting = self._progress.pop(key, [])[1:]
            if waiting:
                self._progress[key] = waiting
        else:
            self.pull.acked(ack.request_id, ack.fence)

    def withdrawn(self, held: Sequence[m.HeldLease]) -> None:
        dropped = self.pull.withdrawn(held)
        for lease in dropped:
            self._waiting.pop(lease.request_id, None)
        self._cancel(dropped)
        finished = [lease for lease in dropped if lease.request_id not in self._slots]
        if finished:
            self._send(m.HandBack(tuple(finished), 0.0), ())

    def _cancel(self, leases: Sequence[m.HeldLease]) -> None:
        by_slot: dict[int, list[m.HeldLease]] = {}
        for lease in leases:
            slot = self._slots.get(lease.request_id)
            if slot is not None:
                by_slot.setdefault(slot.index, []).append(lease)
        for index, rows in by_slot.items():
            assert self.workers is not None
            self.workers.slots[index].send(w.CancelLeases(tuple(rows)))

    def resend(self, everything: bool = False) -> None:
        now = time.monotonic()
        if everything:
            self._resend_progress()
        for report in self.pull.resend(now) if everything else self.pull.due(now):
            self._send(report.message, report.frames)

    def _resend_progress(self) -> None:
        """Of each lease that still holds, send the newest state again: it says all that the older
        ones did, and upon a notice there is no next one.
        """
        held = self.pull.held
        self._progress = {
            (request_id, fence): waiting[-1:]
            for (request_id, fence), waiting in self._progress.items()
            if request_id in held and held[request_id].fence == fence
        }
        for ((progress, frames),) in self._progress.values():
            # Its time may be in the accounts already.
            self._send(msgspec.structs.replace(progress, gpu_s=0.0), frames)

    # --- where requests are -------------------------------------------------------------------

    def start(self, lease: m.Lease, state: Buffer | None, slot: WorkerSlot) -> None:
        """Let a worker that is in no view with others run a lease."""
        self.assign(lease.request.request_id, slot)
        slot.send(*sample_message(lease, state))

    def assign(self, request_id: str, slot: WorkerSlot) -> None:
        self._slots[request_id] = slot
        slot.held.add(request_id)

    def release(self, request_id: str, gpu_s: float = 0.0) -> None:
        """Take a request from its worker; what it cost so far is reported with what comes next."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            slot.held.discard(request_id)
        if gpu_s:
            self._carried_gpu_s[request_id] = self._carried_gpu_s.get(request_id, 0.0) + gpu_s

    def slot_of(self, request_id: str) -> WorkerSlot | None:
        return self._slots.get(request_id)

    def sampling(self) -> dict[str, m.Lease]:
        """Return what is leased and has no image yet."""
        held, scoring = self.pull.held, self.pull.scoring
        return {r: lease for r, lease in held.items() if r not in scoring}

    def unplaced(self) -> dict[str, m.Lease]:
        """Return what is leased and on no worker: on its way between two views."""
        return {r: lease for r, lease in self.sampling().items() if r not in self._slots}

    def give_up(self, request_ids: Sequence[str]) -> None:
        """Hand back to the daemon, whose last commit another worker resumes from."""
        sampling = self.sampling()
        held = [m.HeldLease(r, sampling[r].fence) for r in request_ids if r in sampling]
        for lease in held:
            self.release(lease.request_id)
        self.pull.withdrawn(held)
        if held:
            self._send(m.HandBack(tuple(held), 0.0), ())

    def commit(self, handed: w.Handed, frames: list[Buffer]) -> None:
        """Send the state of a request on its way between two views: there will be no next."""
        state = w.StepState(
            handed.request_id, handed.fence, handed.step_index, handed.gpu_s, handed.frames
        )
        self._step_state(state, frames)

    # --- leaving ------------------------------------------------------------------------------

    def leave(self, deadline_s: float) -> None:
        """Stop pulling; finish what is held where the time allows it, commit it otherwise."""
        if self.groups is None or not self.sampling():
            self.flush()
            return
        self.pull.draining = True
        now = time.monotonic()
        self.leaving = Leaving(now + deadline_s, now + DECIDE_S)
        self.groups.begin_race(deadline_s)

    def race(self, reserve_s: float) -> None:
        """Finish, and commit what is not done so long before the deadline; flushed is flushed."""
        if self.leaving is not None:
            self.leaving.reserve_s = reserve_s

    def hurry(self, deadline: float) -> None:
        """The deadline may be nearer than it was."""
        if self.leaving is not None:
            self.leaving.deadline = min(self.leaving.deadline, deadline)

    def tick(self, now: float) -> None:
        if self.leaving is not None and now >= self.leaving.commit_at:
            self.flush()

    def flush(self) -> None:
        """Stop pulling; every worker sends the state of what it has, and drops it."""
        if self._flushed:
            return
        self.pull.draining, self._flushed, self.leaving = True, True, None
        if self.groups is not None:
            self.groups.flush()
        for slot in self.workers.slots if self.workers else ():
            # A worker that has nothing, or is still loading, has nothing to save.
            if slot.child is not None and slot.held:
                self._flushing.add(slot.index)
                slot.send(w.Flush(stop=True))

    def hand_back_rest(self) -> None:
        """Give up what was not finished; its last state was committed before."""
        held = tuple(m.HeldLease(r, lease.fence) for r, lease in self.pull.held.items())
        if held:
            self._send(m.HandBack(held, 0.0), ())

    # --- from workers -------------------------------------------------------------------------

    def worker_said(self, slot: WorkerSlot, message: object, frames: list[Buffer]) -> None:
        if self.groups is not None:
            self.groups.worker_said(slot, message, frames)
        match message:
            case w.StepState():
                self._step_state(message, frames)
            case w.Finished():
                self._finished(slot, message, frames)
            case w.Broken():
                self._release(slot, message.request_id)
                self._fail(message.request_id, message.fence, message.reason, message.gpu_s)
            case w.Cancelled():
                for lease in message.held:
                    self._release(slot, lease.request_id)
                self._send(m.HandBack(message.held, message.gpu_s), ())
            case w.Flushed():
                self._flushing.discard(slot.index)
                for lease in message.held:
                    self._release(slot, lease.request_id)
            case _:
                pass

    def worker_died(self, slot: WorkerSlot) -> None:
        """Its leases go on in its view, or back to the daemon, to be resumed from their commits."""
        if self.groups is not None:
            self.groups.worker_died(slot)
        self._flushing.discard(slot.index)
        self.give_up(list(slot.held))

    def _release(self, slot: WorkerSlot, request_id: str) -> None:
        slot.held.discard(request_id)
        # It may have gone on to another worker before this one's last word came.
        if self._slots.get(request_id) is slot:
            del self._slots[request_id]

    def _step_state(self, message: w.StepState, frames: list[Buffer]) -> None:
        lease = self.pull.held.get(message.request_id)
        if lease is None or lease.fence != message.fence:
            return
        gpu_s = message.gpu_s + self._carried_gpu_s.pop(message.request_id, 0.0)
        progress = m.Progress(
            message.request_id, message.fence, message.step_index, gpu_s, message.frames
        )
        self._progress.setdefault((message.request_id, message.fence), []).append(
            (progress, frames)
        )
        self._send(progress, frames)

    def _finished(self, slot: WorkerSlot, message: w.Finished, frames: list[Buffer]) -> None:
        self._release(slot, message.request_id)
        carried = self._carried_gpu_s.pop(message.request_id, 0.0)
        message = msgspec.structs.replace(message, gpu_s=message.gpu_s + carried)
        lease = self.pull.held.get(message.request_id)
        if lease is None or lease.fence != message.fence:
            self._send(m.HandBack((), message.gpu_s), ())
            return
        self.pull.sampled(message.request_id)
        named = dict(zip((spec.name for spec in message.frames), frames, strict=True))
        request = lease.request
        self._waiting[message.request_id] = Waiting(
            message, named, request.target, request.prompt, request.kind != "explore"
        )
        self._score()

    def _fail(self, request_id: str, fence: int, reason: str, gpu_s: float) -> None:
        message = m.Failed(request_id, fence, reason[:2000], False, gpu_s)
        if self.pull.finished(message, (), time.monotonic()):
            self._send(message, ())

    # --- scoring ------------------------------------------------------------------------------

    async def _score_forever(self) -> None:
        while True:
            self._scorer = await Child.start(
                "spotlightd.rewards.scorer", pipe.FROM_SCORER, pipe.TO_SCORER
            )
            self._score()
            try:
                while True:
                    message, _ = await self._scorer.receive()
                    if isinstance(message, w.Fatal):
                        raise RuntimeError(f"the scorer cannot go on: {message.reason}")
                    assert isinstance(message, w.Scores)
                    self._scored(message)
            except EOFError:
                logger.warning("the scorer died: starting it again")
                # What it was busy with is scored again.
                self._scoring = []
                await self._scorer.stop()
            finally:
                scorer, self._scorer = self._scorer, None
                await scorer.stop()

    def _score(self) -> None:
        if self._scorer is None or self._scoring or not self._waiting:
            return
        self._scoring = list(self._waiting)[:SCORER_BATCH]
        batch = [self._waiting[request_id] for request_id in self._scoring]
        images = [waiting.frames["image"] for waiting in batch]
        items = tuple(w.ScoreItem(b.message.request_id, b.target, b.prompt) for b in batch)
        specs = tuple(m.FrameSpec("image", memoryview(image).nbytes) for image in images)
        self._scorer.send(w.Score(items, self._rewards, specs, self._reward_options), images)

    def _scored(self, message: w.Scores) -> None:
        self._scoring = []
        for item in message.items:
            waiting = self._waiting.pop(item.request_id, None)
            if waiting is not None:
                self._report(waiting, item, message.version)
        self._score()

    def _report(self, waiting: Waiting, item: w.Scored, scorer: str) -> None:
        done = waiting.message
        if item.error:
            self._fail(done.request_id, done.fence, f"scorer: {item.error}", done.gpu_s)
            return
        frames = list(waiting.frames.values()) if waiting.keeps_frames else []
        result = m.Result(
            done.request_id,
            done.fence,
            item.scores,
            item.text,
            done.gpu_s,
            done.resumed_from,
            done.frames if waiting.keeps_frames else (),
            scorer,
        )
        if self.pull.finished(result, frames, time.monotonic()):
            self._send(result, frames)


def sample_message(
    lease: m.Lease, state: Buffer | None, generation: int = 0
) -> tuple[w.Sample, tuple[Buffer, ...]]:
    """Return the message that gives a worker a lease, and its frames."""
    if state is None:
        return w.Sample(lease, (), generation), ()
    specs = (m.FrameSpec("trajectory", memoryview(state).nbytes),)
    return w.Sample(lease, specs, generation), (state,)
