"""A VM without a daemon: the agent's own workers, store, views and leases, and a record of events.

Workers are the agent's code in processes of their own, forked from a server that has imported
everything, so that hundreds of them can be killed: what a start would cost is said apart.
"""

import asyncio
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.arrange import Arrangement
from agent.children import Child
from agent.group_store import keep_store
from agent.groups import Groups
from agent.speeds import Speeds
from agent.work import Work
from agent.workers import Workers, WorkerSlot
from spotlightd.models import EMBEDDED_DIR
from spotlightd.wire import messages as m
from spotlightd.wire import pipe
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer
from spotlightd.wire.sampling import Request, SamplerSettings

RANK, ALPHA = 4, 8.0
PROMPT = 'A shop sign that reads "OPEN".'
FORKING = multiprocessing.get_context("forkserver")


class Forked:
    """What `Child` needs of a process, over one that a fork server made."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _run_worker(sock: socket.socket) -> None:
    from agent.worker import main

    sys.exit(main(["worker", str(sock.detach())]))


async def start_forked() -> Child:
    ours, theirs = socket.socketpair()
    with theirs:
        process = FORKING.Process(target=_run_worker, args=(theirs,), daemon=True)
        await asyncio.to_thread(process.start)
    reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
    return Child(Forked(process), reader, writer, pipe.FROM_WORKER, pipe.TO_WORKER)


def preload() -> None:
    """Let the fork server import what workers need; call once, before anything is measured."""
    FORKING.set_forkserver_preload(["agent.worker", "spotlightd.dit.models.glyph_ocr"])


@dataclass
class Event:
    at: float
    slot: int
    message: Any


class Vm:
    """Use as an async context manager; `events` is what workers said, with the time it arrived.

    Args:
        workers: how many.
        timeout_s: of a collective.
        commit_every: denoising steps between commits of a rollout.
    """

    def __init__(self, workers: int, timeout_s: float = 5.0, most: int = 8) -> None:
        self.events: list[Event] = []
        self.committed: list[m.Message] = []
        self.frames: dict[str, Buffer] = {}
        """Finished trajectories by request."""
        self._count, self._timeout_s, self._most = workers, timeout_s, most
        self._fences = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="spotlight-vm-")

    async def __aenter__(self) -> "Vm":
        folder = Path(self._folder.name)
        await asyncio.to_thread(write_adapter, folder / "adapter.safetensors")
        self.work = Work(8 * self._count, (), self._sent)
        load = w.Load(str(EMBEDDED_DIR), RANK, ALPHA, "float32", 1, 0)
        self.workers = Workers(self._count, load, self._said, self.work.worker_died, start_forked)
        self.work.workers = self.workers
        speeds = Speeds(folder / "speeds.json", "embedded")
        self.groups = self.work.groups = Groups(
            self.work, self.workers, speeds, self._timeout_s, self._most, self._spawn
        )
        self._spawn(keep_store(self.groups))
        for task in self.workers.start():
            task.add_done_callback(self._ended)
        self.workers.bind(0, folder / "adapter.safetensors", None, (0,))
        self._spawn(self._tick())
        await self.until(lambda: len(self.workers.ready_versions()) and self.all_ready())
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.workers.stop()
        self._folder.cleanup()

    # --- what a caller does -------------------------------------------------------------------

    def all_ready(self) -> bool:
        """Every worker has its adapter and sits in a view, and groups can meet."""
        seats = all(self.groups.views.view_of(index) for index in range(self._count))
        return bool(self.groups.port) and seats and all(0 in s.versions for s in self.workers.slots)

    def grant(self, requests: list[Request]) -> None:
        leases = tuple(m.Lease(request, next(self._fences), 1e6) for request in requests)
        self.work.granted(m.Grant(leases), [])

    def rearrange(self, *target: Arrangement) -> None:
        self.groups.rearrange(target)

    def kill(self, index: int, how: signal.Signals = signal.SIGKILL) -> None:
        child = self.workers.slots[index].child
        assert child is not None
        os.kill(child.process.pid, how)

    async def until(self, wanted: Any, timeout_s: float = 120.0) -> Any:
        """Wait until `wanted` holds; workers' words wake us."""
        async with asyncio.timeout(timeout_s):
            while not (found := wanted()):
                self._news.clear()
                await self._news.wait()
        return found

    def first(self, kind: type, after: float, **fields: Any) -> Event | None:
        """Return the first event of a kind since `after` whose message has these fields."""
        for event in reversed_since(self.events, after):
            if isinstance(event.message, kind) and all(
                getattr(event.message, name) == value for name, value in fields.items()
            ):
                return event
        return None

    # --- what the agent does ------------------------------------------------------------------

    def _said(self, slot: WorkerSlot, message: object, frames: list[Buffer]) -> None:
        self.events.append(Event(time.monotonic(), slot.index, message))
        if isinstance(message, w.Finished):
            self.frames[message.request_id] = frames[0]
        self.work.worker_said(slot, message, frames)
        self._news.set()

    def _sent(self, message: m.Message, frames: Any = ()) -> None:
        self.committed.append(message)

    async def _tick(self) -> None:
        while True:
            self.groups.tick(time.monotonic())
            self.work.tick(time.monotonic())
            self._news.set()
            await asyncio.sleep(0.02)

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a task of the VM failed", "exception": task.exception()}
            )


def reversed_since(events: list[Event], after: float) -> list[Event]:
    """Return events since `after`, in order, without looking at the older ones."""
    newest = list(itertools.takewhile(lambda event: event.at >= after, reversed(events)))
    return newest[::-1]


def write_adapter(path: Path) -> None:
    """Write an adapter that changes something."""
    import torch

    from spotlightd.dit.lora import adapter_bytes

    path.write_bytes(adapter_bytes(make_model(torch)))


def make_model(torch: Any) -> Any:
    """Return the model that the workers of a `Vm` sample with."""
    from spotlightd.dit.lora import adapter_parameters, attach_lora
    from spotlightd.dit.models import load_model

    model = load_model(EMBEDDED_DIR)
    attach_lora(model, RANK, ALPHA)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    return model


def make_request(
    seed: int,
    steps: int,
    window: tuple[int, ...] = (0, 1),
    height: int = 32,
    width: int = 128,
) -> Request:
    sigmas = tuple(1 - i / steps for i in range(steps + 1))
    settings = SamplerSettings(sigmas, "flow_cps", 0.7, window, 1.0, height, width)
    return Request(f"r-{seed}", "rollout", 0, "open", PROMPT, "OPEN", seed, 0, settings)
