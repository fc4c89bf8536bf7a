"""Sequence-parallel views at work on one VM: carries out what `views.py` and `degrees.py` decide.

    leases -> solo views, one worker each -> last wave: some part, wider ones form -> solo again

Every worker is in a view of its own until a wider one asks for it. A view ends at a step boundary:
its leader hands each trajectory over, and whoever is in the next view gets it with the lease. When
a member dies or hangs, each survivor hands over what it holds; the most advanced state goes on in
a view of the survivors at once, and the replacement joins when a plan next asks for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agent.arrange import Arrangement
from agent.situation import Kept, Situation
from agent.speeds import Speeds
from agent.views import AskToPart, Closed, Enter, Instruction, Kill, View, Views, survivors
from agent.work import Work, sample_message
from agent.workers import Workers, WorkerSlot
from spotlightd.dit.degrees import WORTH, Group, plan, until
from spotlightd.wire import messages as m
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer

logger = logging.getLogger(__name__)

PATIENCE_S = 0.06
"""Between a view's first sign of breaking and the last member's word. Gloo's errors reach all
members within 50 ms of a death, measured on loaded cores; who is killed in error is replaced."""
PART_S = 30.0
"""For a worker to reach a boundary: the longest denoising step."""
HUNGRY_S = 0.3
"""Without a grant for credit given, so long: the phase has nothing more for this VM."""
MOST_BREAKS = 3
"""Views that may break under one trajectory until it goes on alone."""


class Groups:
    """Sequence-parallel views over the workers of one agent.

    Args:
        timeout_s: of one collective.
        most: highest degree.
        spawn: starts a task whose failure ends the agent.
    """

    def __init__(
        self,
        work: Work,
        workers: Workers,
        speeds: Speeds,
        timeout_s: float,
        most: int,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self.views = Views(PATIENCE_S, PART_S)
        self.port = 0
        """Of the store where groups meet; 0 until it is there."""
        self.speeds = speeds
        self._work = work
        self._workers = workers
        self._timeout_s = timeout_s
        self._most = most
        self._spawn = spawn
        self._kept: dict[str, Kept] = {}
        self._target: list[Arrangement] | None = None
        self._planning: asyncio.Task[None] | None = None
        self._planned_for: object = None
        self._hungry_since: float | None = None
        self._regroup_s = 0.05
        self._parted_at: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        """Rings when a member is overdue."""

    # --- events -------------------------------------------------------------------------------

    def worker_said(self, slot: WorkerSlot, message: object, frames: list[Buffer]) -> None:
        match message:
            case w.Loaded():
                slot.open = False
                self.views.ready(slot.index)
                self._settle()
            case w.Entered():
                self._entered(slot, message)
            case w.Handed():
                self._handed(slot, message, frames)
            case w.Left():
                if message.why == "broken":
                    logger.warning("worker %d left a view: %s", slot.index, message.reason)
                now = time.monotonic()
                self._do(self.views.left(slot.index, message.generation, message.why, now))
            case w.Boundary() if message.denoise_steps:
                self._observe(slot, message)
            case w.Finished() | w.Broken():
                self._kept.pop(message.request_id, None)
            case _:
                pass

    def worker_died(self, slot: WorkerSlot) -> None:
        """Call before its leases are given up: those of a view with others go on there."""
        view = self.views.view_of(slot.index)
        if view is not None and len(view.members) > 1:
            for request_id in list(slot.held):
                self._work.release(request_id)
        self._do(self.views.gone(slot.index, time.monotonic()))

    def wait_for_room(self, lease: m.Lease, state: Buffer | None) -> None:
        """Every worker is in a view with others, or on its way: the next arrangement has this."""
        self._kept[lease.request.request_id] = Kept(state, lease.resume_step)
        self._settle()

    def fed(self) -> None:
        """A grant came: the daemon has work, and wide groups would waste it."""
        self._hungry_since = None

    def flush(self) -> None:
        """A notice: what is between two views is committed."""
        self._target = None
        for request_id in self._work.unplaced():
            self._commit(request_id)

    def tick(self, now: float) -> None:
        """See whether another arrangement would end the wave sooner."""
        pull = self._work.pull
        self._kept = {r: kept for r, kept in self._kept.items() if r in pull.held}
        waits = pull.promised > 0 and not pull.draining
        self._hungry_since = (self._hungry_since or now) if waits else None
        hungry = self._hungry_since is not None and now - self._hungry_since > HUNGRY_S
        if hungry and self._target is None and self._planning is None:
            self._planning = self._spawn(self._plan())

    # --- the arrangement ----------------------------------------------------------------------

    async def _plan(self) -> None:
        try:
            await self._plan_wave()
        finally:
            self._planning = None

    async def _plan_wave(self) -> None:
        """Ask for the best arrangement of what is left, and begin to bring it about."""
        at = self._situation()
        if at is None or len(at.indexes) < 2 or len(at.names) >= 2 * len(at.indexes):
            return
        seen = (frozenset(at.names), tuple(self.views.present.values()))
        step_s = self.speeds.step_s(at.size)
        if seen == self._planned_for or step_s is None:
            return
        self._planned_for = seen
        workers = len(at.indexes)
        curve = self.speeds.curve(at.size, min(workers, self._most))
        regroup = self._regroup_s / step_s
        chosen = await asyncio.to_thread(plan, at.left, workers, curve, regroup)
        if self._moved_since(at) or self._work.pull.draining:
            self._planned_for = None
            return
        degrees = {group.degree for group in at.groups}
        stays = until(at.groups, at.left, self.speeds.curve(at.size, max(degrees), degrees))
        if chosen.makespan + regroup > WORTH * stays:
            return
        logger.info("%s; as it is, in %.1f", chosen.reason, stays)
        self.rearrange(at.arrange(chosen.groups))

    def begin_race(self, deadline_s: float) -> None:
        """Upon a notice: finish all that is held before it, or commit it now."""
        self._target = None
        self._spawn(self._race(deadline_s))

    async def _race(self, deadline_s: float) -> None:
        at = self._situation()
        if at is not None:
            args = (self.speeds, self._most, self._regroup_s, deadline_s)
            found = await asyncio.to_thread(at.race, *args)
            logger.info("%s", found.reason)
            if found.finish and self._work.leaving and not self._moved_since(at):
                self._work.race(found.reserve_s)
                self.rearrange(at.arrange(found.groups))
                return
        self._work.flush()

    def _situation(self) -> Situation | None:
        """Return what is being denoised; None where that is nothing, or cannot be arranged now."""
        images = self._work.sampling()
        sizes = {(x.request.sampler.height, x.request.sampler.width) for x in images.values()}
        if not self.port or len(sizes) != 1 or self._work.unplaced() or not self._able(images):
            return None
        names = tuple(images)
        groups = []
        for view in self.views.views.values():
            held = self._requests_of(view.leader)
            indexes = tuple(i for i, name in enumerate(names) if name in held)
            if indexes:
                groups.append(Group(len(view.members), indexes))
        placed = sum(len(group.images) for group in groups)
        if placed < len(names) or any(view.parting for view in self.views.views.values()):
            return None
        return Situation(
            names,
            tuple(max(self._left(images[name]), 1.0) for name in names),
            tuple(sorted(self.views.present)),
            sizes.pop(),
            tuple(groups),
            {r: slot.index for r in names if (slot := self._work.slot_of(r)) is not None},
        )

    def _moved_since(self, at: Situation) -> bool:
        return set(self._work.sampling()) != set(at.names) or bool(self._work.unplaced())

    def rearrange(self, target: Sequence[Arrangement]) -> None:
        """Begin to bring about views of these workers with these requests; others stay."""
        open_views = {(v.indexes, self._requests_of(v.leader)) for v in self.views.views.values()}
        changed = [a for a in target if (a.indexes, frozenset(a.requests)) not in open_views]
        if not changed:
            return
        self._target = changed
        self._parted_at = time.monotonic()
        touched = {index for a in changed for index in a.indexes}
        touched |= {
            slot.index
            for a in changed
            for r in a.requests
            if (slot := self._work.slot_of(r)) is not None
        }
        for view in list(self.views.views.values()):
            if touched & set(view.indexes):
                for index in view.indexes:
                    self._workers.slots[index].open = False
                self._do(self.views.part(view.generation, self._parted_at))

    def _able(self, images: dict[str, m.Lease]) -> bool:
        versions = {lease.request.policy_version for lease in images.values()}
        slots = [self._workers.slots[index] for index in self.views.present]
        return all(versions <= slot.versions for slot in slots)

    def _requests_of(self, index: int) -> frozenset[str]:
        return frozenset(self._workers.slots[index].held)

    def _left(self, lease: m.Lease) -> float:
        kept = self._kept.get(lease.request.request_id)
        done = kept.steps if kept is not None else lease.resume_step
        return lease.request.sampler.num_steps - done

    # --- bringing it about --------------------------------------------------------------------

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Enter():
                    self._enter(instruction)
                case AskToPart():
                    self._workers.slots[instruction.index].send(w.Part(instruction.generation))
                case Kill():
                    self._workers.kill(instruction.index, instruction.reason)
                case Closed():
                    self._closed(instruction.view)
        if self._alarm is not None:
            self._alarm.cancel()
        deadline = self.views.next_deadline()
        if deadline is not None:
            self._alarm = asyncio.get_running_loop().call_at(deadline, self._overdue)

    def _overdue(self) -> None:
        self._do(self.views.tick(time.monotonic()))

    def _enter(self, enter: Enter) -> None:
        view, slot = enter.view, self._workers.slots[enter.index]
        sampling = self._work.sampling()
        for request_id in view.requests:
            kept = self._kept[request_id]
            slot.send(*sample_message(sampling[request_id], kept.state, view.generation))
            if enter.rank == 0:
                self._work.assign(request_id, slot)
        slot.open = len(view.members) == 1
        slot.send(
            w.Enter(
                view.generation,
                view.name,
                enter.rank,
                len(view.members),
                self.port,
                self._timeout_s,
                enter.forget,
            )
        )

    def _entered(self, slot: WorkerSlot, message: w.Entered) -> None:
        self.views.entered(slot.index, message.generation)
        view = self.views.view_of(slot.index)
        if view is None or len(view.members) == 1 or len(view.entered) < len(view.members):
            return
        if self._parted_at is not None:
            self._regroup_s += 0.3 * (time.monotonic() - self._parted_at - self._regroup_s)
            self._parted_at = None
        logger.info("generation %d: workers %s", view.generation, view.indexes)

    def _handed(self, slot: WorkerSlot, handed: w.Handed, frames: list[Buffer]) -> None:
        view = self.views.view_of(slot.index)
        lease = self._work.sampling().get(handed.request_id)
        if view is None or view.generation != handed.generation:
            return
        if lease is None or lease.fence != handed.fence:
            return
        kept = self._kept.setdefault(handed.request_id, Kept(None, 0))
        before = kept.handed
        if before is None or (before.generation, before.step_index) < (
            handed.generation,
            handed.step_index,
        ):
            kept.state, kept.steps, kept.handed = frames[0], handed.step_index, handed
        self._work.release(handed.request_id, handed.gpu_s)

    def _closed(self, view: View) -> None:
        unplaced = self._work.unplaced()
        requests = [r for r in view.requests if r in unplaced]
        if view.broken:
            # Made for workers of which one is gone.
            self._target = None
        if view.broken and requests and not self._work.pull.draining:
            for request_id in requests:
                self._kept[request_id].breaks += 1
            able = survivors(view, self.views.free())
            if max(self._kept[r].breaks for r in requests) > MOST_BREAKS:
                able = able[:1]
            if able:
                self._form(able, requests)
            else:
                # The daemon's commits are newer than what was handed over to this view.
                self._work.give_up(requests)
            self._planned_for = None
        self._settle()

    def _form(self, indexes: Sequence[int], requests: Sequence[str]) -> None:
        for request_id in requests:
            self._kept.setdefault(request_id, Kept(None, 0))
        self._do(self.views.form(indexes, requests))

    def _settle(self) -> None:
        """Open the views that are wanted once their workers are free, and solo ones for others."""
        reserved: set[int] = set()
        if self._target is not None:
            reserved = {i for a in self._target for i in a.indexes}
            free = (reserved & self.views.present.keys()) <= set(self.views.free())
            # Requests may come from views of other workers, which take longer to part.
            held = any(self._work.slot_of(r) for a in self._target for r in a.requests)
            if free and not held:
                target, self._target, reserved = self._target, None, set()
                for arrangement in target:
                    unplaced = self._work.unplaced()
                    able = [i for i in arrangement.indexes if i in self.views.present]
                    requests = [r for r in arrangement.requests if r in unplaced]
                    if able and requests:
                        self._form(able, requests)
        for index in self.views.free():
            if index not in reserved:
                self._form([index], ())
        if self._target is None:
            self._place_rest()

    def _place_rest(self) -> None:
        """Give what has no view to workers that are alone; where none is, a view must end."""
        for request_id, lease in self._work.unplaced().items():
            if self._work.pull.draining:
                self._commit(request_id)
                continue
            slot = self._workers.least_loaded(lease.request.policy_version)
            if slot is not None:
                kept = self._kept.setdefault(request_id, Kept(None, 0))
                self._work.start(lease, kept.state, slot)
            elif self.views.views:
                widest = max(self.views.views.values(), key=lambda view: len(view.members))
                self._do(self.views.part(widest.generation, time.monotonic()))
                return

    def _commit(self, request_id: str) -> None:
        kept = self._kept.get(request_id)
        if kept is not None and kept.handed is not None and kept.state is not None:
            self._work.commit(kept.handed, [kept.state])
            kept.handed = None

    # --- what is seen -------------------------------------------------------------------------

    def _observe(self, slot: WorkerSlot, boundary: w.Boundary) -> None:
        view = self.views.view_of(slot.index)
        sampling = self._work.sampling()
        held = [sampling[r] for r in slot.held if r in sampling]
        if view is None or not held:
            return
        sampler = held[0].request.sampler
        size, step_s = (sampler.height, sampler.width), boundary.busy_s / boundary.denoise_steps
        if self.speeds.observe(size, len(view.members), step_s):
            # Now it is known, not believed: look at the arrangement again at once.
            self._planned_for = None
        for lease in held:
            request_id = lease.request.request_id
            kept = self._kept.setdefault(request_id, Kept(None, lease.resume_step))
            kept.steps += boundary.denoise_steps / len(held)
