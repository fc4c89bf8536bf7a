"""The agent's workers and scorer: start, load, bind, restart, and how their time was spent."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.children import Child
from spotlightd.errors import InputError, SpotlightError
from spotlightd.wire import pipe
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer
from spotlightd.wire.messages import Message

logger = logging.getLogger(__name__)

MAX_DEATHS = 5
"""Times that one worker may die without a denoising step before the agent gives up."""

StartWorker = Callable[[], Awaitable[Child]]
OnMessage = Callable[["WorkerSlot", Any, list[Buffer]], None]


@dataclass
class WorkerSlot:
    """One GPU's place: its current worker process, if any, and its account of time."""

    index: int
    child: Child | None = None
    began: float = field(default_factory=time.monotonic)
    loading_since: float | None = None
    loading_s: float = 0.0
    busy_s: float = 0.0
    denoise_steps: int = 0
    versions: set[int] = field(default_factory=set)
    """Adapter versions bound in the current process."""
    held: set[str] = field(default_factory=set)
    """Requests that it works on."""
    open: bool = True
    """It takes leases one by one: no sequence-parallel view with others has it, or waits for it."""
    deaths: int = 0
    commit_every: int = 0
    commit_share: float = 0.0
    """What a step commit costs this worker, as a share of a denoising step."""

    def loading_total_s(self) -> float:
        now = time.monotonic()
        return self.loading_s + (now - self.loading_since if self.loading_since else 0.0)

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        if self.child is not None:
            self.child.send(message, frames)


async def start_worker() -> Child:
    return await Child.start("agent.worker", pipe.FROM_WORKER, pipe.TO_WORKER)


class Workers:
    """Keeps every slot's worker running.

    Args:
        load: sent first to each worker.
        on_message: told whatever a worker says.
        on_death: told the slot whose worker died, before the next one starts.
        start: starts a worker process.
    """

    def __init__(
        self,
        count: int,
        load: w.Load,
        on_message: OnMessage,
        on_death: Callable[[WorkerSlot], None],
        start: StartWorker = start_worker,
    ) -> None:
        self.slots = [WorkerSlot(index) for index in range(count)]
        self._load = load
        self._on_message = on_message
        self._on_death = on_death
        self._start = start
        self._adapters: dict[int, w.Bind] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> list["asyncio.Task[None]"]:
        """Start all; a task that ends with an error means that the agent cannot go on."""
        self._tasks = [
            asyncio.create_task(self._keep(slot), name=f"worker {slot.index}")
            for slot in self.slots
        ]
        return self._tasks

    def bind(self, version: int, path: Path, digest: str | None, kept: Sequence[int]) -> None:
        """Bind a version in every worker, now and after a restart; forget those not kept."""
        self._adapters[version] = w.Bind(version, str(path), digest)
        self._adapters = {v: bind for v, bind in self._adapters.items() if v in kept}
        for slot in self.slots:
            slot.send(w.Bind(version, str(path), digest))

    def ready_versions(self) -> tuple[int, ...]:
        """Return the versions that every running worker can sample with."""
        running = [slot.versions for slot in self.slots if slot.child is not None]
        common = set.intersection(*running) if running else set()
        return tuple(sorted(common & self._adapters.keys()))

    def can_sample(self, version: int) -> bool:
        """Whether any running worker has this version."""
        return any(s.child is not None and version in s.versions for s in self.slots)

    def kill(self, index: int, reason: str) -> None:
        """End a worker that hangs; its slot starts another."""
        child = self.slots[index].child
        if child is not None:
            logger.warning("worker %d is killed: %s", index, reason)
            child.process.kill()

    def least_loaded(self, version: int) -> WorkerSlot | None:
        able = [s for s in self.slots if s.child is not None and version in s.versions and s.open]
        return min(able, key=lambda slot: len(slot.held)) if able else None

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*(s.child.stop() for s in self.slots if s.child is not None))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, slot: WorkerSlot) -> None:
        while not self._stopping:
            slot.loading_since = time.monotonic()
            slot.child = await self._start()
            slot.child.send(self._load)
            with contextlib.suppress(EOFError):
                await self._listen(slot, slot.child)
            if not self._stopping:
                await self._bury(slot)

    async def _listen(self, slot: WorkerSlot, child: Child) -> None:
        while True:
            message, frames = await child.receive()
            match message:
                case w.Loaded():
                    self._loaded(slot)
                case w.Bound():
                    slot.versions = {message.version, *list(slot.versions)[-1:]}
                    slot.loading_s += message.seconds
                case w.Boundary():
                    slot.busy_s += message.busy_s
                    slot.denoise_steps += message.denoise_steps
                    slot.deaths = 0
                    self._note_pace(slot, message)
                case w.Fatal():
                    raise InputError(f"worker {slot.index}: {message.reason}")
                case _:
                    pass
            self._on_message(slot, message, frames)

    def _note_pace(self, slot: WorkerSlot, boundary: w.Boundary) -> None:
        slot.commit_share = boundary.commit_share
        if boundary.commit_every != slot.commit_every and boundary.commit_share:
            slot.commit_every = boundary.commit_every
            logger.info(
                "worker %d: a step commit costs %.1f %% of a step, one every %d",
                slot.index,
                100 * boundary.commit_share,
                boundary.commit_every,
            )

    def _loaded(self, slot: WorkerSlot) -> None:
        slot.loading_s, slot.loading_since = slot.loading_total_s(), None
        for bind in self._adapters.values():
            slot.send(bind)

    async def _bury(self, slot: WorkerSlot) -> None:
        child, slot.child = slot.child, None
        assert child is not None
        await child.stop()
        slot.deaths += 1
        code = child.process.returncode
        logger.warning("worker %d died (exit code %s): starting it again", slot.index, code)
        self._on_death(slot)
        slot.held.clear()
        slot.versions.clear()
        slot.loading_s, slot.loading_since = slot.loading_total_s(), None
        if slot.deaths >= MAX_DEATHS:
            raise SpotlightError(f"worker {slot.index} died {slot.deaths} times: giving up")
