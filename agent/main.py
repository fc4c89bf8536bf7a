"""The agent: wires its parts together and sees them through one life.

    daemon ==CURVE== AgentLink -> Agent -> WeightPeer (versions)
                                     |---> Work -> Workers, scorer (children)
                                     '---> Lifecycle (decides when to leave)

One asyncio loop, no torch: a process that talks to the network never computes.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import zmq.asyncio

from agent.enrol import Identity, join_or_load, refusal
from agent.group_store import keep_store
from agent.groups import Groups
from agent.lifecycle import SAFETY_S, Advice, Leave, Lifecycle, Notice
from agent.link import AgentLink
from agent.metadata.providers import choose_provider
from agent.metadata.watch import MetadataWatcher
from agent.preemption import watch_file, watch_signals
from agent.session import Session
from agent.settings import AgentSettings
from agent.speeds import Speeds, model_digest
from agent.weight_peer import Place, WeightPeer
from agent.work import Work
from agent.workers import Workers, WorkerSlot
from spotlightd import notify
from spotlightd.errors import SpotlightError
from spotlightd.wire import messages as m
from spotlightd.wire import weights as ww
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer
from spotlightd.wire.token import Token

logger = logging.getLogger(__name__)

TICK_S = 0.05
RESEND_CHECK_S = 1.0
SP_TIMEOUT_S = 5.0
"""Of one collective: members take the same step, and no worker computes between two for so long."""
MAX_SOURCE = 200


def run(settings: AgentSettings, token: Token | None) -> int:
    """Join (with a token) or rejoin, work until it ends, and return the exit code.

    Raises SpotlightError for what the user can mend.
    """
    return asyncio.run(_run(settings, token))


async def _run(settings: AgentSettings, token: Token | None) -> int:
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SpotlightError(f"cannot make {settings.state_dir}: {error.strerror}") from None
    # A wrong option is said before anything is asked of the daemon.
    choose_provider(settings.preempt_provider)
    identity = await join_or_load(
        token, settings.state_dir, settings.name, settings.connect_timeout_s
    )
    agent = Agent(settings, identity)
    try:
        return await agent.run()
    finally:
        await agent.close()


class Agent:
    """One agent process."""

    def __init__(self, settings: AgentSettings, identity: Identity) -> None:
        self.settings = settings
        self.lifecycle = Lifecycle()
        self._context = zmq.asyncio.Context()
        self._link = AgentLink(self._context, identity)
        self._weights = WeightPeer(
            self._context,
            Place(
                settings.weights_dir or settings.state_dir,
                settings.weights_budget,
                settings.chunk_bind,
                (identity.public_key, identity.private_key),
            ),
            self._link.send,
            self._weights_ready,
            self._fail,
        )
        self._session = Session(
            settings, identity, self._link, lambda: self._weights.port, self._said_hello
        )
        self._metadata: MetadataWatcher | None = None
        self._work: Work | None = None
        self._workers: Workers | None = None
        self._groups: Groups | None = None
        self._base: Path | None = None
        self._unbound: list[tuple[ww.Manifest, Path]] = []
        """Adapters that arrived before the workers were started."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Future[Leave] = asyncio.get_running_loop().create_future()
        self._beat_s = 1.0
        self._ticks = 0
        self._given: tuple[int, ...] = ()
        self._beating: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Work until the lifecycle says leave; return its exit code."""
        watch_signals(self.settings.notice_grace_s, self._noticed)
        self._weights.start()
        self._link.start(
            self._handle, self._reconnected, lambda: self._fail(self._session.refused())
        )
        self._session.hello()
        self._spawn(self._session.until_welcomed())
        if self.settings.preempt_file is not None:
            path, grace_s = self.settings.preempt_file, self.settings.notice_grace_s
            self._spawn(self._watch(watch_file(path, grace_s)))
        provider = choose_provider(self.settings.preempt_provider)
        if provider is not None:
            self._metadata = MetadataWatcher(provider, self.settings.metadata_url)
            self._spawn(self._watch(self._metadata.events()))
        self._spawn(self._tick())
        self._spawn(notify.keep_watchdog(self._proof_of_life))
        leave = await self._ending
        notify.stopping(leave.reason)
        if self._beating is not None:
            self._beating.cancel()
        logger.info("leaving: %s; denoising steps done: %d", leave.reason, self._steps_done())
        if self._work is not None:
            self._work.hand_back_rest()
        self._link.send(m.Goodbye(leave.reason))
        return leave.exit_code

    async def close(self) -> None:
        if self._groups is not None:
            self._groups.speeds.save()
        if self._workers is not None:
            await self._workers.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._weights.close()
        await self._link.close()
        self._context.term()
        if self._metadata is not None and self.lifecycle.notice is not None:
            await self._metadata.acknowledge()

    # --- session ------------------------------------------------------------------------------

    def _said_hello(self) -> m.Held:
        """A Hello is on its way: what was said of versions is said again, and what is held."""
        self._given = ()
        return self._work.pull.hello() if self._work else ()

    def _reconnected(self) -> None:
        if self._session.welcome is not None and not self._ending.done():
            self._session.hello()

    def _handle(self, message: m.Message, frames: list[Buffer]) -> None:
        match message:
            case m.Welcome():
                self._welcomed(message)
            case m.HelloAgain():
                self._session.hello_again()
            case m.HeartbeatReply():
                self._session.beaten(message)
            case m.ServerKey():
                logger.info("the daemon has a new key: moving to it")
                self._session.moved(message)
            case ww.PublishedVersion() | ww.AnnouncedVersion() | ww.Peers() | ww.PeerTicket():
                self._weights.handle(message)
            case m.Grant() | m.Ack() | m.Withdraw():
                self._handle_work(message, frames)
            case m.Drain():
                # The reason names the notice's source on its way back, where it is short.
                source = message.reason[:MAX_SOURCE] or "the daemon"
                deadline_s = max(message.deadline_s, 2.0)
                self._noticed(Notice(source, deadline_s, preempted=not message.run_finished))
            case m.Refused():
                self._fail(refusal(message))
            case _:
                logger.warning("the daemon sent an unexpected %s", type(message).__name__)

    def _handle_work(self, message: m.Grant | m.Ack | m.Withdraw, frames: list[Buffer]) -> None:
        if self._work is None:
            return
        match message:
            case m.Grant():
                self._work.granted(message, frames)
            case m.Ack():
                self._work.acked(message)
            case m.Withdraw():
                self._work.withdrawn(message.held)
        self._give()

    def _welcomed(self, welcome: m.Welcome) -> None:
        first = self._session.welcomed(welcome)
        self._beat_s = welcome.heartbeat_s
        self._spawn(self._weights.welcomed(welcome))
        if first:
            logger.info("joined as %s", welcome.agent_id)
            self.lifecycle.welcomed()
            capacity = self.settings.workers * self.settings.max_batch
            self._work = Work(capacity, welcome.rewards, self._link.send, welcome.reward_options)
            self._spawn(self._start_scorer(self._work))
            self._beating = self._spawn(self._heartbeat())
            self._start_workers()
        else:
            assert self._work is not None
            self._work.resend(everything=True)
        self._give()

    async def _start_scorer(self, work: Work) -> None:
        await (await work.start_scorer())

    # --- weights ------------------------------------------------------------------------------

    def _weights_ready(self, manifest: ww.Manifest, folder: Path) -> None:
        if self._ending.done():
            # It has said goodbye, or is about to: a beat would look as if it wanted to come back.
            return
        # Others hear at once that it is here.
        self._link.send(self._beat())
        if manifest.kind == "base":
            self._base = folder
            self._start_workers()
        else:
            # The first adapter may be here before the base model is.
            self._unbound.append((manifest, folder))
            self._bind_all()

    def _bind_all(self) -> None:
        if self._workers is None:
            return
        for manifest, folder in self._unbound:
            path = folder / "adapter.safetensors"
            self._workers.bind(manifest.version, path, manifest.tensors, self._weights.holds)
        self._unbound.clear()

    def _start_workers(self) -> None:
        welcome = self._session.welcome
        if self._base is None or welcome is None or self._workers is not None:
            return
        load = w.Load(
            str(self._base),
            welcome.lora_rank,
            welcome.lora_alpha,
            welcome.dtype,
            self.settings.threads,
            welcome.commit_every,
        )
        assert self._work is not None
        self._workers = Workers(
            self.settings.workers, load, self._worker_said, self._work.worker_died
        )
        self._work.workers = self._workers
        self._start_groups(self._work, self._workers, self._base)
        for task in self._workers.start():
            self._spawn(_wait_for(task))
        self._bind_all()

    def _start_groups(self, work: Work, workers: Workers, base: Path) -> None:
        most = min(self.settings.max_sp_degree, self.settings.workers)
        if most < 2:
            return
        speeds = Speeds(self.settings.state_dir / "speeds.json", model_digest(base))
        self._groups = work.groups = Groups(work, workers, speeds, SP_TIMEOUT_S, most, self._spawn)
        self._spawn(keep_store(self._groups))

    # --- work ---------------------------------------------------------------------------------

    def _worker_said(self, slot: WorkerSlot, message: object, frames: list[Buffer]) -> None:
        assert self._work is not None
        self._work.worker_said(slot, message, frames)
        if isinstance(message, w.Bound):
            self.lifecycle.ready()
        self._give()

    def _give(self) -> None:
        """Ask for work when there is room, and whenever another version can be sampled."""
        if self._work is None or self._workers is None or self.lifecycle.phase != "pulling":
            return
        versions = self._workers.ready_versions()
        if not versions:
            return
        credit = self._work.pull.take_credit()
        if credit or versions != self._given:
            self._given = versions
            self._link.send(m.Give(credit, versions))

    async def _heartbeat(self) -> None:
        while True:
            self._link.send(self._beat())
            await asyncio.sleep(self._beat_s)

    def _steps_done(self) -> int:
        """Denoising steps x trajectories of all workers since they started."""
        return sum(slot.denoise_steps for slot in self._workers.slots) if self._workers else 0

    def _beat(self) -> m.Heartbeat:
        slots = self._workers.slots if self._workers else []
        busy = sum(slot.busy_s for slot in slots)
        loading = sum(slot.loading_total_s() for slot in slots)
        alive = sum(time.monotonic() - slot.began for slot in slots)
        return m.Heartbeat(
            self._steps_done(),
            busy,
            loading,
            max(alive - busy - loading, 0.0),
            self._weights.holds,
            self._workers.ready_versions() if self._workers else (),
            self._weights.held,
        )

    # --- leaving ------------------------------------------------------------------------------

    async def _watch(self, announced: AsyncIterator[Notice | Advice]) -> None:
        async for one in announced:
            if isinstance(one, Notice):
                self._noticed(one)
            elif self.lifecycle.advised(one):
                logger.warning("%s advises to move: finishing what is held", one.source)
                self._link.send(m.Notice(None, one.source))

    def _noticed(self, notice: Notice) -> None:
        begin = self.lifecycle.noticed(notice, time.monotonic())
        if begin is None:
            if self._work is not None and self.lifecycle.deadline is not None:
                self._work.hurry(self.lifecycle.deadline)
            return
        logger.warning("%s: leaving within %.0f s", notice.source, notice.deadline_s)
        self._link.send(m.Notice(notice.deadline_s, notice.source))
        self._weights.stop_serving()
        if self._work is not None:
            self._work.leave(notice.deadline_s - SAFETY_S)

    async def _proof_of_life(self) -> None:
        """A round trip through the loop that reads the link and ticks; workers may be busy."""
        ticks = self._ticks
        while self._ticks == ticks:
            await asyncio.sleep(TICK_S)

    async def _tick(self) -> None:
        last_resend = time.monotonic()
        while True:
            now = time.monotonic()
            self._ticks += 1
            work = self._work
            settled, empty = work is None or work.settled, work is None or not work.pull.held
            if self._groups is not None:
                self._groups.tick(now)
            if work is not None:
                work.tick(now)
            leave = self.lifecycle.tick(now, settled, empty)
            if leave is not None and not self._ending.done():
                # The last account of time goes out before goodbye.
                self._link.send(self._beat())
                self._ending.set_result(leave)
            if self._work is not None and now - last_resend > RESEND_CHECK_S:
                last_resend = now
                self._work.resend()
            await asyncio.sleep(TICK_S)

    # --- tasks --------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not self._ending.done():
            self._ending.set_exception(error)


async def _wait_for(task: "asyncio.Task[None]") -> None:
    await task


__all__: Sequence[str] = ("Agent", "run")
