"""What a regroup costs: planned, after a SIGKILL, and after a SIGSTOP, between and within steps.

    python benchmarks/regroup.py [--json FILE] [--check] [--regroups 200] [--leaks 1000]

Four of the agent's workers, one thread each, denoise one image after another with gloo; the agent's
own views, leases and store drive them (`_vm.py`). Three regroups in four are planned and change the
members; of the others, two in three kill a member in mid-step and one stops it.

Times, in ms:

- planned: from the boundary at which the old view ended to the last member's entry into the next;
  the wait for that boundary, the rest of a denoising step, is said apart;
- killed, stopped: from the signal to the first survivor's word (detect), to the last survivor's
  entry (agree), to the first step done (step); until the replacement is loaded and bound (back),
  and from then until it is in a view with all others, which kept on denoising (rejoin).

Every trajectory is then replayed by one process, and must be the same within 1e-5. Steps done more
than once are counted, and so are descriptors and threads of all workers over --leaks regroups.

Targets (--check), for cores that nobody else uses: planned p95 20 ms, killed p95 200 ms to the
first step done, stopped p95 the timeout plus 200 ms to the last survivor's entry, one step redone
per failure, no descriptor or thread more.
"""

import asyncio
import itertools
import logging
import random
import signal
import sys
import time
from collections import defaultdict

import psutil
from _report import finish, make_parser
from _vm import Event, Vm, make_model, make_request, preload, reversed_since

from agent.arrange import Arrangement
from spotlightd.wire import worker as w

WORKERS = 4
STEPS = 400
TIMEOUT_S = 2.0
TOLERANCE = 1e-5
ALL = tuple(range(WORKERS))
SHAPES = (ALL, (0, 1), (2, 3), (1,), ALL, (0, 1, 2), (2, 3), (0, 1))
"""Views of one image in turn: aligned groups, one worker, and three, which divide nothing."""
TARGETS = {
    "planned_p95_ms": 20.0,
    "killed_step_p95_ms": 200.0,
    "stopped_agree_p95_ms": 1000 * TIMEOUT_S + 200.0,
    "steps_redone_per_failure": 1.0,
    "descriptors_more": 0.0,
    "threads_more": 0.0,
    "largest_difference": TOLERANCE,
}


class Bench:
    """Drives regroups, and keeps the milliseconds of each of their parts."""

    def __init__(self, vm: Vm) -> None:
        self.vm = vm
        self.times: dict[str, list[float]] = defaultdict(list)
        self.requests: list[str] = []
        self.failures = 0
        self._seeds = itertools.count(1)

    async def image(self) -> str:
        """Return the request that is being denoised, a new one where the last is finished."""
        sampling = list(self.vm.work.sampling())
        if sampling:
            return sampling[0]
        await self.vm.until(self.vm.all_ready)
        request = make_request(next(self._seeds), STEPS)
        self.requests.append(request.request_id)
        began = time.monotonic()
        self.vm.grant([request])
        await self.vm.until(lambda: self.vm.first(w.Boundary, began))
        return request.request_id

    async def planned(self, indexes: tuple[int, ...], note: bool = True) -> bool:
        """Move the image to a view of these workers; return False where it was finished first."""
        name = await self.image()
        view = self.vm.groups.views.view_of(indexes[0])
        if view is not None and view.indexes == indexes:
            return True
        began = time.monotonic()
        self.vm.rearrange(Arrangement(indexes, (name,)))
        if not await self.entered(indexes, began, name):
            return False
        events = reversed_since(self.vm.events, began)
        handed = next(e.at for e in events if isinstance(e.message, w.Handed))
        entered = max(
            e.at for e in events if isinstance(e.message, w.Entered) and e.slot in indexes
        )
        if note:
            self.times["boundary"].append(handed - began)
            self.times["planned"].append(entered - handed)
        return True

    async def entered(self, indexes: tuple[int, ...], since: float, name: str) -> bool:
        """Wait until these workers are in one view and have taken a step there."""
        views = self.vm.groups.views

        def there() -> bool | None:
            view = views.view_of(indexes[0])
            if name not in self.vm.work.sampling():
                return True
            if view is None or view.indexes != indexes or view.requests != (name,):
                return None
            if view.entered < set(indexes):
                return None
            last = max(
                (
                    e.at
                    for e in reversed_since(self.vm.events, since)
                    if isinstance(e.message, w.Entered) and e.message.generation == view.generation
                ),
                default=since,
            )
            return self.step_after(last, indexes) is not None or None

        await self.vm.until(there)
        return name in self.vm.work.sampling()

    def step_after(self, at: float, indexes: tuple[int, ...]) -> Event | None:
        for event in reversed_since(self.vm.events, at):
            boundary = isinstance(event.message, w.Boundary) and event.message.denoise_steps > 0
            if boundary and event.slot in indexes:
                return event
        return None

    async def failure(self, kind: str, how: signal.Signals, victim: int) -> None:
        if not await self.planned(ALL, note=False):
            return
        name = await self.image()
        view = self.vm.groups.views.view_of(victim)
        if view is None or view.indexes != ALL:
            return
        self.failures += 1
        rest = tuple(i for i in ALL if i != victim)
        began = time.monotonic()
        self.vm.kill(victim, how)
        if not await self.entered(rest, began, name):
            return
        events = reversed_since(self.vm.events, began)
        left = [e.at for e in events if isinstance(e.message, w.Left) and e.message.why == "broken"]
        entered = max(e.at for e in events if isinstance(e.message, w.Entered) and e.slot in rest)
        step = self.step_after(entered, rest)
        assert step is not None
        for part, at in (("detect", left[0]), ("agree", entered), ("step", step.at)):
            self.times[f"{kind}_{part}"].append(at - began)
        await self.vm.until(self.vm.all_ready)
        self.times[f"{kind}_back"].append(time.monotonic() - began)
        moved = sum(
            isinstance(e.message, w.Boundary) for e in reversed_since(self.vm.events, step.at)
        )
        self.times["steps_meanwhile"].append(moved / 1000)
        back = time.monotonic()
        if await self.planned(ALL, note=False):
            self.times["rejoin"].append(time.monotonic() - back)

    async def leaks(self, count: int) -> tuple[float, float]:
        """Return descriptors and threads that all workers have more after `count` regroups."""
        for indexes in SHAPES:
            await self.planned(indexes, note=False)
        before = self.held()
        for number in range(count):
            await self.planned(SHAPES[number % len(SHAPES)], note=False)
        for indexes in SHAPES:
            await self.planned(indexes, note=False)
        after = self.held()
        return float(after[0] - before[0]), float(after[1] - before[1])

    def held(self) -> tuple[int, int]:
        pids = [slot.child.process.pid for slot in self.vm.workers.slots if slot.child is not None]
        processes = [psutil.Process(pid) for pid in pids]
        return sum(p.num_fds() for p in processes), sum(p.num_threads() for p in processes)

    def redone(self) -> int:
        """Return leaders' steps beyond those that the finished trajectories needed."""
        steps = sum(
            e.message.denoise_steps for e in self.vm.events if isinstance(e.message, w.Boundary)
        )
        return int(steps) - STEPS * len(self.vm.frames)


def largest_difference(vm: Vm) -> float:
    """Replay every finished trajectory in this process, alone; return the largest difference."""
    import torch

    from spotlightd.dit.sampler import Sampler
    from spotlightd.dit.trajectory import decode_trajectory

    torch.set_num_threads(1)
    model = make_model(torch)
    worst = 0.0
    for request_id, frame in vm.frames.items():
        request = make_request(int(request_id.partition("-")[2]), STEPS)
        got = decode_trajectory(frame, request, model.latent_shape(32, 128))
        sampler = Sampler(model)
        alone = sampler.start(request)
        while not alone.done:
            sampler.advance([alone])
        worst = max(worst, float((got.latents_LD - alone.latents_LD).abs().max()))
        for ours, theirs in zip(got.window_log_probs, alone.window_log_probs, strict=True):
            worst = max(worst, abs(ours - theirs))
    return worst


async def measure(regroups: int, leaks: int, seed: int) -> dict[str, float]:
    preload()
    choose = random.Random(seed)
    async with Vm(WORKERS, TIMEOUT_S) as vm:
        bench = Bench(vm)
        for indexes in SHAPES:
            await bench.planned(indexes, note=False)
        done = 0
        while done < regroups:
            if done % 4 < 3:
                await bench.planned(SHAPES[done % len(SHAPES)])
            elif done % 12 == 11:
                await bench.failure("stopped", signal.SIGSTOP, choose.choice(ALL))
            else:
                await bench.failure("killed", signal.SIGKILL, choose.choice(ALL))
            done += 1
        await vm.until(vm.all_ready)
        descriptors, threads = await bench.leaks(leaks) if leaks else (0.0, 0.0)
        await vm.until(lambda: len(vm.frames) == len(bench.requests))
        redone = bench.redone()
    figures = {"regroups": float(regroups), "failures": float(bench.failures)}
    for part, seconds in sorted(bench.times.items()):
        ranked = sorted(seconds)
        for percent in (50, 95, 99):
            at = min(len(ranked) - 1, round(percent / 100 * (len(ranked) - 1)))
            figures[f"{part}_p{percent}_ms"] = 1000 * ranked[at]
    for percent in (50, 95, 99):
        figures[f"steps_meanwhile_p{percent}"] = figures.pop(f"steps_meanwhile_p{percent}_ms", 0.0)
    figures["images"] = float(len(vm.frames))
    figures["steps_redone"] = float(redone)
    figures["steps_redone_per_failure"] = redone / max(bench.failures, 1)
    figures["regroups_for_leaks"] = float(leaks)
    figures["descriptors_more"], figures["threads_more"] = descriptors, threads
    figures["largest_difference"] = largest_difference(vm)
    return figures


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--regroups", type=int, default=200)
    parser.add_argument("--leaks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    figures = asyncio.run(measure(args.regroups, args.leaks, args.seed))
    title = f"{WORKERS} workers, gloo, one thread each, timeout {TIMEOUT_S:g} s"
    targets = {name: limit for name, limit in TARGETS.items() if name in figures}
    return finish(title, figures, args, at_most=targets)


if __name__ == "__main__":
    sys.exit(main())
