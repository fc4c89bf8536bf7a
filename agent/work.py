"""The way of a lease through the agent: grant, worker, scorer, result, acknowledgement.

Grant -> WorkerSlot -> Finished -> scorer -> Result -> Ack
                  '--> StepState ----------> Progress -> Ack
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.children import Child
from agent.workers import Workers, WorkerSlot
from spotlightd.wire import messages as m
from spotlightd.wire import pipe
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer
from spotlightd.wire.pull import PullState, states_by_fence
from spotlightd.wire.rewards import RewardOptions

logger = logging.getLogger(__name__)

SCORER_BATCH = 8

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
        self._slots: dict[str, WorkerSlot] = {}
        self._waiting: dict[str, Waiting] = {}
        self._scoring: list[str] = []
        self._progress: set[tuple[str, int, int]] = set()
        """(request, fence, step) of step commits that are not acknowledged."""
        self._flushing: set[int] = set()
        """Workers that have not answered Flush yet."""
        self._scorer: Child | None = None

    async def start_scorer(self) -> "asyncio.Task[None]":
        """Start the scorer; the task ends with an error when it cannot go on."""
        return asyncio.create_task(self._score_forever(), name="scorer")

    @property
    def settled(self) -> bool:
        """Nothing is in flight, and everything sent is acknowledged."""
        working = self._flushing or self._waiting or self._scoring
        return not (working or self.pull.unacked or self._progress)

    # --- from the daemon ----------------------------------------------------------------------

    def granted(self, grant: m.Grant, frames: Sequence[Buffer]) -> None:
        states = states_by_fence(grant, frames)
        for lease in self.pull.granted(grant.leases):
            assert self.workers is not None
            slot = self.workers.least_loaded(lease.request.policy_version)
            if slot is None:
                self._fail(lease.request.request_id, lease.fence, "no worker has this version", 0.0)
                continue
            state = states[lease.fence]
            self._slots[lease.request.request_id] = slot
            slot.held.add(lease.request.request_id)
            specs = () if state is None else (m.FrameSpec("trajectory", memoryview(state).nbytes),)
            slot.send(w.Sample(lease, specs), () if state is None else (state,))

    def acked(self, ack: m.Ack) -> None:
        if ack.what == "progress":
            self._progress = {p for p in self._progress if p[:2] != (ack.request_id, ack.fence)}
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
            # Step commits are not repeated: the next one, or the result, says more.
            self._progress.clear()
        for report in self.pull.resend(now) if everything else self.pull.due(now):
            self._send(report.message, report.frames)

    # --- leaving ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Stop pulling; every worker sends the state of what it has, and drops it."""
        self.pull.draining = True
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
        """Its leases go back to the daemon: another worker resumes from the last commit."""
        self._flushing.discard(slot.index)
        held = [
            m.HeldLease(request_id, self.pull.held[request_id].fence)
            for request_id in slot.held
            if request_id in self.pull.held
        ]
        for lease in held:
            self._release(slot, lease.request_id)
        self.pull.withdrawn(held)
        if held:
            self._send(m.HandBack(tuple(held), 0.0), ())

    def _release(self, slot: WorkerSlot, request_id: str) -> None:
        slot.held.discard(request_id)
        self._slots.pop(request_id, None)

    def _step_state(self, message: w.StepState, frames: list[Buffer]) -> None:
        lease = self.pull.held.get(message.request_id)
        if lease is None or lease.fence != message.fence:
            return
        self._progress.add((message.request_id, message.fence, message.step_index))
        progress = m.Progress(
            message.request_id, message.fence, message.step_index, message.gpu_s, message.frames
        )
        self._send(progress, frames)

    def _finished(self, slot: WorkerSlot, message: w.Finished, frames: list[Buffer]) -> None:
        self._release(slot, message.request_id)
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
