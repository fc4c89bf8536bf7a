"""What the holders of leases report: progress, results, failures, leases handed back.

    report -> Scheduler (may it be written?) -> Store (durable) -> Scheduler, Ledger -> Ack

An Ack leaves only after the store has committed what it acknowledges. When the disk refuses,
nothing is acknowledged and the holder sends again.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol

from spotlightd.errors import SpotlightError
from spotlightd.fleet.latency import Latency
from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.sections import RewardsSection
from spotlightd.store.rows import StoredResult
from spotlightd.store.store import Store
from spotlightd.wire import messages as m
from spotlightd.wire import training
from spotlightd.wire.codec import Buffer


class Port(Protocol):
    """What the reports need of the service that they belong to."""

    def ack(
        self,
        agent_id: str,
        request_id: str,
        fence: int,
        what: Literal["progress", "result", "failed"],
        outcome: Literal["committed", "stale"],
    ) -> None: ...
    def event(self, level: str, component: str, text: str, **context: str) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> None: ...
    def spent(self, agent_id: str, gpu_s: float) -> None: ...
    def dispatch_soon(self) -> None: ...
    def stop_holders(self, stops: Mapping[str, Sequence[m.HeldLease]]) -> None: ...


class Listener(Protocol):
    """Who is told what the fleet brings (the conductor)."""

    def result_committed(self, result: StoredResult, gpu_s: float) -> None: ...
    def request_given_up(self, request_id: str) -> None: ...
    def trainer_ready(self, message: training.TrainerReady) -> None: ...
    def damaged(self, message: training.Damaged) -> None: ...
    def trained(self, message: training.Trained) -> None: ...
    def heartbeat(self, agent_id: str, denoise_steps: int, busy_s: float) -> None: ...


class Reports:
    """Takes each report to the disk and back to its sender."""

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        store: Store,
        rewards: RewardsSection,
        port: Port,
        listener: Listener,
    ) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._store = store
        self._rewards = rewards
        self._port = port
        self._listener = listener
        self.commits = Latency()
        """From a result's arrival to its being durable."""
        self._scorers: dict[str, str] = {}
        """Scorer version by agent, as last reported."""

    def progress(
        self, agent_id: str, message: m.Progress, frames: list[Buffer], now: float
    ) -> None:
        entry = self._scheduler.entries.get(message.request_id)
        # A state of no step, or of all of them, is nothing that another worker could resume from.
        possible = entry and 0 < message.step_index < entry.request.sampler.num_steps
        outcome = self._scheduler.progress(message.request_id, message.fence, now)
        if outcome == "stale" or len(frames) != 1 or not possible:
            self._ledger.spent_in_vain(agent_id, message.gpu_s)
            self._port.ack(agent_id, message.request_id, message.fence, "progress", "stale")
            return
        self._port.spawn(self._commit_progress(agent_id, message, bytes(frames[0])))

    async def _commit_progress(self, agent_id: str, message: m.Progress, state: bytes) -> None:
        request_id, fence, step = message.request_id, message.fence, message.step_index
        try:
            outcome, blob = await asyncio.wrap_future(
                self._store.commit_progress(request_id, fence, step, state, message.gpu_s)
            )
        except SpotlightError as error:
            self._port.event(
                "error", "store", f"progress of {request_id} is not committed: {error}"
            )
            return
        if outcome == "committed":
            self._scheduler.progress_committed(request_id, fence, step, blob)
            self._port.spent(agent_id, message.gpu_s)
        self._port.ack(agent_id, request_id, fence, "progress", outcome)

    def result(self, agent_id: str, message: m.Result, frames: list[Buffer]) -> None:
        request_id, fence = message.request_id, message.fence
        entry = self._scheduler.entries.get(request_id)
        named = dict(zip((spec.name for spec in message.frames), frames, strict=True))
        wanted = set(self._rewards.names)
        if entry is not None and (
            not wanted <= message.scores.keys()
            or (entry.request.kind == "rollout" and "trajectory" not in named)
        ):
            reason = "the result lacks a reward or its trajectory"
            self.failed(agent_id, m.Failed(request_id, fence, reason, False, message.gpu_s))
            return
        outcome = self._scheduler.result(request_id, fence)
        self._compare_scorers(agent_id, message.scorer)
        if outcome == "committed":
            self._port.spawn(self._commit_result(agent_id, message, named))
        elif outcome == "stale":
            self._ledger.spent_in_vain(agent_id, message.gpu_s)
            self._port.ack(agent_id, request_id, fence, "result", "stale")
        elif entry is not None and not entry.committing:
            self._port.ack(agent_id, request_id, fence, "result", "committed")

    def _compare_scorers(self, agent_id: str, version: str) -> None:
        """Say once who scores unlike the first: rewards of one group must be comparable."""
        if not version or self._scorers.get(agent_id) == version:
            return
        self._scorers[agent_id] = version
        first = next(iter(self._scorers))
        if self._scorers[first] != version:
            self._port.event(
                "warning",
                "rewards",
                f"{agent_id} scores with version {version}, {first} with {self._scorers[first]}: "
                f"install the same packages and reward models on both",
            )

    async def _commit_result(
        self, agent_id: str, message: m.Result, named: dict[str, Buffer]
    ) -> None:
        request_id = message.request_id
        trajectory, image = named.get("trajectory"), named.get("image")
        began = time.monotonic()
        try:
            outcome, stored = await asyncio.wrap_future(
                self._store.commit_result(message, trajectory, image, agent_id)
            )
        except SpotlightError as error:
            self._scheduler.commit_failed(request_id)
            text = f"result of {request_id} is not committed: {error}"
            self._port.event("error", "store", text, request_id=request_id, agent_id=agent_id)
            return
        self.commits.observe(time.monotonic() - began)
        self._port.stop_holders(self._scheduler.settled(request_id))
        self._port.ack(agent_id, request_id, message.fence, "result", outcome)
        if outcome == "committed":
            self._port.spent(agent_id, message.gpu_s)
            self._listener.result_committed(stored, message.gpu_s)

    def failed(self, agent_id: str, message: m.Failed) -> None:
        verdict = self._scheduler.failed(message.request_id, message.fence, message.final)
        self._ledger.spent_in_vain(agent_id, message.gpu_s)
        outcome: Literal["committed", "stale"] = "stale" if verdict is None else "committed"
        if verdict is not None:
            text = f"{message.request_id} failed on {agent_id} ({verdict}): {message.reason}"
            who = {"request_id": message.request_id, "agent_id": agent_id}
            self._port.event("warning", "fleet", text, **who)
        if verdict == "given_up":
            self._store.settle([message.request_id], "failed")
            self._listener.request_given_up(message.request_id)
        elif verdict == "again":
            self._store.requeue([message.request_id], drop_progress=True)
            self._port.dispatch_soon()
        self._port.ack(agent_id, message.request_id, message.fence, "failed", outcome)

    def hand_back(self, agent_id: str, message: m.HandBack) -> None:
        self._ledger.spent_in_vain(agent_id, message.gpu_s)
        returned = self._scheduler.hand_back(agent_id, message.held)
        if returned:
            self._store.requeue(returned)
            self._port.dispatch_soon()
