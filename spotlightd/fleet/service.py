"""Acts on the fleet's decisions: each message of a peer in, store writes and answers out.

    Link -> handle -> Membership, Scheduler (decide) -> leases out
                 '--> Reports -> Store (durable) -> answer -> listener

Nothing here decides who gets what; nothing in the scheduler waits.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal

from spotlightd.config import Config
from spotlightd.errors import SpotlightError
from spotlightd.fleet.auth import AllowList
from spotlightd.fleet.enrolment import fits, skew
from spotlightd.fleet.entries import Entry, Granted
from spotlightd.fleet.events import EventLog
from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.link import Link
from spotlightd.fleet.membership import Change, Member, Membership
from spotlightd.fleet.prices import Prices
from spotlightd.fleet.reports import Listener, Reports
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.fleet.trainer_account import TRAINER, TrainerAccount
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.fleet.welcome import welcome
from spotlightd.store.store import Store
from spotlightd.wire import messages as m
from spotlightd.wire import training
from spotlightd.wire import weights as ww
from spotlightd.wire.codec import Buffer

logger = logging.getLogger(__name__)

__all__ = ["TRAINER", "FleetService"]


class FleetService:
    """Owns the membership, the scheduler and the ledger of a run."""

    def __init__(
        self,
        config: Config,
        store: Store,
        link: Link,
        allowed: AllowList,
        scheduler: Scheduler,
        ledger: Ledger,
        weights: WeightsDesk,
        listener: Listener,
    ) -> None:
        fleet = config.fleet
        self.config = config
        self.scheduler = scheduler
        self.members = Membership(fleet.suspect_s, fleet.lost_s, fleet.forget_s)
        self.ledger = ledger
        self.prices = Prices(config.ledger.spot_price, config.ledger.zone_prices)
        self.weights = weights
        self.events = EventLog(store)
        self.draining = False
        """Set when the run is over: whoever says Hello is sent away."""
        self.notices: dict[str, float] = {}
        """Agent id -> wall-clock time at which its VM is taken away."""
        self.train_fraction = 0.0
        self.paused = False
        """Nothing new is leased; what is leased is finished."""
        self.notices_seen: Counter[str] = Counter()
        """Preemption notices by source, since the daemon's start."""
        self._store = store
        self._link = link
        self._allowed = allowed
        self._listener = listener
        self._keys: dict[str, str] = {}
        """Agent id -> key under which it was last heard."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dispatch_due = False
        self.trainer = TrainerAccount(ledger, config.ledger.reserved_price)
        self.reports = Reports(scheduler, ledger, store, config.rewards, self, listener)

    # --- what the link brings -----------------------------------------------------------------

    def handle(self, key: str, message: m.Message, frames: list[Buffer]) -> None:
        """Handle one authentic message; called on the event loop."""
        agent_id, now = self._allowed.peers[key].agent_id, time.monotonic()
        self._keys[agent_id] = key
        if isinstance(message, m.Hello):
            self._hello(key, message, now)
            return
        if self.members.present(agent_id) is None:
            self._send(agent_id, m.HelloAgain())
            return
        change = self.members.seen(agent_id, now)
        if change:
            self._changed(change)
        self._handle_present(agent_id, message, frames, now)

    def _handle_present(
        self, agent_id: str, message: m.Message, frames: list[Buffer], now: float
    ) -> None:
        match message:
            case m.Heartbeat():
                self._heartbeat(agent_id, message)
            case m.Give():
                self.scheduler.give(agent_id, message.credit, message.versions)
                self.dispatch_soon()
            case m.Progress():
                self.reports.progress(agent_id, message, frames, now)
            case m.Result():
                self.reports.result(agent_id, message, frames)
            case m.Failed():
                self.reports.failed(agent_id, message)
            case m.HandBack():
                self.reports.hand_back(agent_id, message)
            case m.Notice():
                self._notice(agent_id, message)
            case m.Goodbye():
                self._leave(agent_id, message.reason, lost=False)
            case ww.GetManifest() | ww.WhoHas() | ww.BadPeer() | ww.NoRoom():
                answer, sentence = self.weights.handle(message, agent_id)
                if answer is not None:
                    self._send(agent_id, answer)
                if sentence:
                    self.event("error", "weights", sentence)
            case _ if agent_id == TRAINER:
                self._handle_trainer(message)
            case _:
                logger.warning("%s sent an unexpected %s", agent_id, type(message).__name__)

    def _notice(self, agent_id: str, notice: m.Notice) -> None:
        self.notices_seen[notice.source] += 1
        left = "it finishes what it holds"
        if notice.deadline_s is not None:
            self.notices[agent_id] = time.time() + notice.deadline_s
            left = f"{notice.deadline_s:.0f} s left"
        self._changed(self.members.drain(agent_id, f"notice from {notice.source}: {left}"))
        self.scheduler.revoke_credit(agent_id)

    def _handle_trainer(self, message: m.Message) -> None:
        match message:
            case training.TrainerReady():
                self.trainer.ready()
                self._listener.trainer_ready(message)
            case training.TrainProgress():
                self.train_fraction = message.fraction
            case training.Damaged():
                self.event("error", "trainer", f"{message.reason}: produced again, then trained")
                self._listener.damaged(message)
            case training.Trained():
                self.trainer.spent(message.seconds)
                self._listener.trained(message)
            case _:
                logger.warning("the trainer sent an unexpected %s", type(message).__name__)

    # --- sessions -----------------------------------------------------------------------------

    def _hello(self, key: str, hello: m.Hello, now: float) -> None:
        peer = self._allowed.peers[key]
        agent_id = peer.agent_id
        if not fits(hello.protocol):
            self._send(agent_id, skew(hello.protocol))
            return
        port = hello.chunk_port
        endpoint = f"tcp://{self._link.address(key)}:{port}" if port else ""
        member = Member(agent_id, hello.name, peer.role, hello.workers, now, now)
        member.chunk_endpoint, member.zone, member.protocol = endpoint, hello.zone, hello.protocol
        self._changed(self.members.hello(member))
        superseded = self.scheduler.join(agent_id, peer.role, hello.held, now)
        # A backup's fence is not the store's business before its result comes first.
        kept = [lease for lease in hello.held if self.scheduler.holds(agent_id, lease)]
        self._store.set_leases([(lease.request_id, lease.fence, agent_id) for lease in kept])
        price = self.config.ledger.reserved_price
        if peer.role == "agent":
            price = self.prices.of(peer.pool, hello.zone)
        self.ledger.join(
            agent_id, hello.name, peer.role, hello.workers, price, time.time(), hello.up_s
        )
        self._send(agent_id, welcome(self.config, agent_id, self.scheduler.epoch))
        moved = self._link.newer_key(key) if hello.protocol >= (1, 1) else None
        if moved is not None:
            self._send(agent_id, moved)
        if superseded:
            self._send(agent_id, m.Withdraw(tuple(superseded)))
        if self.draining:
            self._send(agent_id, m.Drain(0.0, "the run is finished", run_finished=True))
        elif peer.role == "agent":
            self.weights.joined(member, key)
            for greeting in self.weights.greeting(agent_id):
                self._send(agent_id, greeting)

    def _heartbeat(self, agent_id: str, beat: m.Heartbeat) -> None:
        self.members.members[agent_id].ready_versions = beat.ready_versions
        self.weights.heartbeat(agent_id, beat)
        self.ledger.heartbeat(agent_id, beat.busy_s, beat.loading_s, time.time())
        self._listener.heartbeat(agent_id, beat.denoise_steps, beat.busy_s)
        self._send(agent_id, m.HeartbeatReply(self.scheduler.epoch))

    def _leave(self, agent_id: str, reason: str, lost: bool) -> None:
        change = self.members.leave(agent_id, reason, time.monotonic(), lost)
        if change:
            self._changed(change)
            self._gone(agent_id, lost)

    def _gone(self, agent_id: str, lost: bool) -> None:
        self.weights.left(agent_id)
        requeued = self.scheduler.leave(agent_id)
        if requeued:
            self._store.requeue(requeued)
            self.event("info", "fleet", f"{len(requeued)} leases of {agent_id} go to others")
        silence = 0.0
        if lost and agent_id != TRAINER:
            silence = time.monotonic() - self.members.members[agent_id].last_seen
        self.ledger.left(agent_id, time.time() - silence, lost)
        self.notices.pop(agent_id, None)
        self.dispatch_soon()

    def trainer_ended(self, code: int) -> None:
        """The trainer's process is gone: its leases go to others until it is back."""
        self._leave(TRAINER, f"its process ended with exit code {code}", lost=True)

    def tick(self) -> None:
        """Apply the passing of time: silent agents, expired leases."""
        for change in self.members.tick(time.monotonic()):
            self._changed(change)
            if change.state == "lost":
                self._gone(change.agent_id, lost=True)
        tickets = self.weights.tick(time.monotonic())
        if tickets is not None:
            self.broadcast(tickets)
        expired = self.scheduler.tick(time.monotonic())
        if expired:
            self._store.requeue(expired)
            self.event("warning", "fleet", f"{len(expired)} leases expired without progress")
            self.dispatch_soon()

    def agents_present(self) -> list[str]:
        return [
            agent_id
            for agent_id, member in self.members.members.items()
            if member.role == "agent" and self.members.present(agent_id)
        ]

    def keys_present(self) -> list[str]:
        return [self._keys[agent_id] for agent_id in self.agents_present()]

    def expel(self, agent_id: str, key: str, why: str, refusal: m.Refused) -> None:
        """Its key is on the allow-list no more: nothing that it says from now on is heard."""
        self.spawn(self._dismiss(key, refusal))
        self._leave(agent_id, why, lost=True)

    def renew_tickets(self) -> None:
        """Void the tickets of all, whoever was expelled included, and give out new ones."""
        self.broadcast(self.weights.new_tickets())

    async def _dismiss(self, key: str, refusal: m.Refused) -> None:
        await self._link.send(key, refusal)
        self._link.drop(key)

    def drain(self, agent_id: str, deadline_s: float, reason: str) -> None:
        """Ask an agent to finish or hand back what it holds, and to leave."""
        change = self.members.drain(agent_id, reason)
        if change:
            self._changed(change)
            self.scheduler.revoke_credit(agent_id)
            self._send(agent_id, m.Drain(deadline_s, reason))

    # --- work ---------------------------------------------------------------------------------

    def dispatch_soon(self) -> None:
        """Deal leases once, after all messages that wait now: then everybody's credit counts."""
        if not self._dispatch_due:
            self._dispatch_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        if self.paused:
            return
        grants = self.scheduler.dispatch(self.members.may_lease, time.monotonic())
        if not grants:
            return
        self._store.set_leases(
            [(g.entry.request.request_id, g.fence, g.agent_id) for g in grants if not g.backup]
        )
        by_agent: dict[str, list[Granted]] = defaultdict(list)
        for grant in grants:
            by_agent[grant.agent_id].append(grant)
        for agent_id, rows in by_agent.items():
            self.spawn(self._grant(agent_id, rows))

    async def _grant(self, agent_id: str, grants: Sequence[Granted]) -> None:
        leases: list[m.Lease] = []
        frames: list[Buffer] = []
        for grant in grants:
            entry = grant.entry
            state = await self._resume_state(entry)
            if state is not None:
                frames.append(state)
            step = entry.progress_step if state is not None else 0
            lease_s = self.config.fleet.lease_s
            leases.append(m.Lease(entry.request, grant.fence, lease_s, step, grant.backup))
        specs = tuple(m.FrameSpec("trajectory", memoryview(f).nbytes) for f in frames)
        if not await self._deliver(agent_id, m.Grant(tuple(leases), specs), frames):
            self._leave(agent_id, "cannot be reached", lost=True)

    async def _resume_state(self, entry: Entry) -> bytes | None:
        digest, request_id = entry.progress_blob, entry.request.request_id
        if digest is None:
            return None
        try:
            return await asyncio.to_thread(self._store.blobs.get, digest)
        except SpotlightError as error:
            # Starting afresh gives the same trajectory, only later.
            self.event("error", "store", f"{error}; {request_id} starts afresh")
            self._store.forget_progress(request_id, digest)
            if entry.progress_blob == digest:
                entry.progress_step, entry.progress_blob = 0, None
            return None

    def withdraw(self, request_ids: Iterable[str]) -> None:
        """Stop requests that nobody needs any more."""
        request_ids = list(request_ids)
        self.stop_holders(self.scheduler.withdraw(request_ids))
        self._store.settle(request_ids, "cancelled")

    def stop_holders(self, stops: Mapping[str, Sequence[m.HeldLease]]) -> None:
        """Tell holders, by agent id, to drop these leases."""
        for agent_id, held in stops.items():
            self._send(agent_id, m.Withdraw(tuple(held)))

    # --- money --------------------------------------------------------------------------------

    def spent(self, agent_id: str, gpu_s: float) -> None:
        self.ledger.committed(agent_id, gpu_s)
        if agent_id == TRAINER:
            self.trainer.spent(gpu_s, committed=True)

    # --- sending ------------------------------------------------------------------------------

    def ack(
        self,
        agent_id: str,
        request_id: str,
        fence: int,
        what: Literal["progress", "result", "failed"],
        outcome: Literal["committed", "stale"],
    ) -> None:
        self._send(agent_id, m.Ack(request_id, fence, what, outcome))

    def _send(self, agent_id: str, message: m.Message) -> None:
        self.spawn(self._deliver(agent_id, message))

    def send_trainer(self, message: m.Message) -> None:
        self._send(TRAINER, message)

    def broadcast(self, *sent: m.Message) -> None:
        """Send to every agent that is present."""
        for agent_id in self.agents_present():
            for message in sent:
                self._send(agent_id, message)

    def announce_weights(self) -> None:
        """Tell every agent of the current version, each with peers of its own."""
        for agent_id, published in self.weights.announcements(self.agents_present()):
            self._send(agent_id, published)

    async def _deliver(
        self, agent_id: str, message: m.Message, frames: Sequence[Buffer] = ()
    ) -> bool:
        return await self._link.send(self._keys.get(agent_id, ""), message, frames)

    def _changed(self, change: Change | None) -> None:
        if change is not None:
            member = self.members.members.get(change.agent_id)
            name = f" ({member.name})" if member else ""
            level = "warning" if change.state in ("suspect", "lost") else "info"
            text = f"{change.agent_id}{name} is {change.state}: {change.reason}"
            self.event(level, "fleet", text, agent_id=change.agent_id)

    def event(self, level: str, component: str, text: str, **context: str) -> None:
        """Log and store what happened; `context` has names of `logs.FIELDS`."""
        self.events.add(level, component, text, context)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("work on a message failed", exc_info=task.exception())

    async def close(self) -> None:
        """Wait for commits that are under way."""
        pending: list[Awaitable[Any]] = list(self._tasks)
        await asyncio.gather(*pending, return_exceptions=True)
