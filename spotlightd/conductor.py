"""Acts on the decisions of the iteration machine: stores the phase, then hands out its work.

    fleet and trainer --events--> Cycle (decides) --decisions--> store, scheduler, trainer, weights

Events are taken one at a time, in order: a phase is durable with all its requests before the
first of them is leased.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from spotlightd import logs
from spotlightd.config import Config
from spotlightd.fleet.entries import Entry
from spotlightd.fleet.moment import SpotView
from spotlightd.fleet.service import TRAINER, FleetService
from spotlightd.planner.cycle import Cycle, CycleState
from spotlightd.planner.decisions import (
    AddRequests,
    Decision,
    Phase,
    PhaseBegins,
    Planned,
    Record,
    Reopen,
    StartTraining,
    StopRequests,
)
from spotlightd.planner.plan import CyclePlan, PromptSpec
from spotlightd.planner.timing import Moment
from spotlightd.planner.training import CommittedResult
from spotlightd.store.rows import StoredRequest, StoredResult
from spotlightd.store.store import Store
from spotlightd.wire.sampling import Request, RequestKind
from spotlightd.wire.training import Damaged, Trained, TrainerReady

logger = logging.getLogger(__name__)

RESUMED_KINDS: dict[Phase, tuple[RequestKind, ...]] = {
    "starting": (),
    "evaluate": ("evaluate", "explore"),
    "explore": ("explore",),
    "rollout": ("rollout",),
    "train": ("rollout", "explore"),
    "finished": (),
}
"""Requests that a phase still needs after a restart."""

IMAGES_KEPT = 10
"""Iterations whose rollout images are kept."""


class Conductor:
    """Drives one run. `finished` is set when its last evaluation is committed."""

    def __init__(
        self,
        config: Config,
        store: Store,
        prompts: list[PromptSpec],
        held_out: list[PromptSpec],
    ) -> None:
        self.config = config
        self.finished = asyncio.Event()
        self.stopped = False
        """The operator ended the run before its last iteration."""
        self.cycle: Cycle | None = None
        self._store = store
        self._prompts, self._held_out = prompts, held_out
        self._events: asyncio.Queue[Callable[[Cycle], list[Decision]]] = asyncio.Queue()
        self._fleet: FleetService | None = None
        self._spots: SpotView | None = None
        self._phase_began = time.monotonic()
        self._steps_seen: dict[str, tuple[int, float]] = {}
        """By agent: denoising steps and busy seconds of its last heartbeat."""
        self._phase: tuple[str, int] | None = None
        """Phase and iteration that are being timed."""

    def attach(self, fleet: FleetService) -> None:
        """Name the fleet that this conductor gives work to."""
        self._fleet = fleet
        self._spots = SpotView(fleet.scheduler, fleet.members)

    @property
    def fleet(self) -> FleetService:
        assert self._fleet is not None, "attach a fleet first"
        return self._fleet

    # --- events -------------------------------------------------------------------------------

    def result_committed(self, result: StoredResult, gpu_s: float) -> None:
        committed = _committed(result, gpu_s)
        self._events.put_nowait(lambda cycle: cycle.committed(committed))

    def request_given_up(self, request_id: str) -> None:
        self._events.put_nowait(lambda cycle: cycle.given_up(request_id))

    def damaged(self, message: Damaged) -> None:
        self._events.put_nowait(lambda cycle: cycle.damaged(message))

    def trained(self, message: Trained) -> None:
        self.fleet.train_fraction = 0.0
        self._publish(message.policy_version)
        self._events.put_nowait(lambda cycle: cycle.trained(message))

    def trainer_ready(self, message: TrainerReady) -> None:
        """The first time, the run takes its sigma array from the model and begins or resumes."""
        if self.cycle is None:
            self.cycle = self._begin(message.sigmas)
        self._publish(message.policy_version)
        version = message.policy_version
        self._events.put_nowait(lambda cycle: cycle.trainer_ready(version))

    def heartbeat(self, agent_id: str, denoise_steps: int, busy_s: float) -> None:
        """An agent's counts since its start: how fast its GPUs are."""
        steps, seconds = self._steps_seen.get(agent_id, (0, 0.0))
        self._steps_seen[agent_id] = (denoise_steps, busy_s)
        if self.cycle is not None:
            times = self.cycle.state.planner.times
            times.heartbeat(agent_id, denoise_steps - steps, busy_s - seconds)

    def end(self) -> None:
        """End the run where it is; what was acknowledged is kept, and it can go on later."""
        self.stopped = True
        self.finished.set()

    def tick(self) -> None:
        """Time passes: agents may have left or joined."""
        if self.fleet.paused:
            # Nobody is to be missed meanwhile.
            return
        if self.cycle is not None and self.cycle.state.phase in ("explore", "train"):
            self._events.put_nowait(lambda cycle: cycle.tick())

    def _moment(self) -> Moment:
        """The clock, and the agents that can be given exploration now."""
        assert self._spots is not None, "attach a fleet first"
        return self._spots.moment(time.monotonic(), self.fleet.train_fraction)

    async def run(self) -> None:
        """Take events until cancelled. Those that came while the disk was busy share a write."""
        while True:
            events = [await self._events.get()]
            while not self._events.empty():
                events.append(self._events.get_nowait())
            if self.cycle is not None:
                decisions: list[Decision] = []
                for event in events:
                    self.cycle.moment = self._moment()
                    decisions += event(self.cycle)
                await self._act(self.cycle, decisions)

    # --- decisions ----------------------------------------------------------------------------

    async def _act(self, cycle: Cycle, decisions: list[Decision]) -> None:
        if not decisions:
            return
        added = [r for d in decisions if isinstance(d, AddRequests) for r in d.requests]
        await self._save(cycle, added)
        for decision in decisions:
            match decision:
                case AddRequests():
                    logger.info("%d requests: %s", len(decision.requests), decision.reason)
                    self.fleet.scheduler.add(decision.requests)
                    self.fleet.dispatch_soon()
                case StopRequests():
                    logger.info("%d requests: %s", len(decision.request_ids), decision.reason)
                    self.fleet.withdraw(decision.request_ids)
                case Reopen():
                    logger.warning("produced again: %s", decision.reason)
                    await asyncio.wrap_future(self._store.reopen(decision.request_ids))
                case StartTraining():
                    self.fleet.train_fraction = 0.0
                    self.fleet.send_trainer(decision.message)
                case Record():
                    self._store.add_metrics(decision.iteration, decision.metrics)
                    self._log_metrics(decision)
                case Planned():
                    text = f"exploring for iteration {decision.iteration}: {decision.reason}"
                    self.fleet.event("info", "planner", text)
                case PhaseBegins():
                    self._begin_phase(decision)

    async def _save(self, cycle: Cycle, added: list[Request]) -> None:
        state = msgspec.json.encode(cycle.state).decode()
        await asyncio.wrap_future(self._store.save_cycle(state, cycle.state.iteration, added))

    def _begin_phase(self, begins: PhaseBegins) -> None:
        now = time.monotonic()
        ended, self._phase_began = now - self._phase_began, now
        text = f"iteration {begins.iteration}: {begins.phase} begins ({begins.reason})"
        self.fleet.event("info", "planner", text)
        if self._phase is not None:
            phase, iteration = self._phase
            figures = {f"phase_s.{phase}": ended, f"phase_began.{phase}": time.time() - ended}
            self._store.add_metrics(iteration, figures)
        self._phase = (begins.phase, begins.iteration)
        logs.set_context(iteration=begins.iteration, policy_version=begins.iteration)
        if begins.phase == "rollout":
            self.fleet.scheduler.forget_settled()
            kept = self.config.store.trajectories_kept
            self._store.forget_before(begins.iteration - kept, begins.iteration - IMAGES_KEPT)
        if begins.phase == "finished":
            self.finished.set()

    def _log_metrics(self, record: Record) -> None:
        shown = {
            name: round(value, 4)
            for name, value in record.metrics.items()
            if name.split(".")[0] in ("held_out", "control", "rollout", "staleness", "planner")
        }
        if shown:
            logger.info("iteration %d: %s", record.iteration, shown)

    # --- beginning and resuming ---------------------------------------------------------------

    def resume(self) -> None:
        """Go on at once with what is stored, where there is something: leases need no trainer."""
        run = self._store.run()
        if run is None or not run.sigmas or not run.cycle:
            return
        self.cycle = self._begin(run.sigmas)
        if (self._adapter_folder(run.policy_version) / "adapter.safetensors").exists():
            self._publish(run.policy_version)

    def _begin(self, sigmas: tuple[float, ...]) -> Cycle:
        run = self._store.run()
        assert run is not None, "the run is stored before the trainer starts"
        if not run.sigmas:
            self._store.save_sigmas(sigmas)
        state = msgspec.json.decode(run.cycle, type=CycleState) if run.cycle else None
        plan = CyclePlan(self.config, run.sigmas or sigmas, self._prompts, self._held_out)
        cycle = Cycle(plan, state)
        if state is not None:
            self._resume(cycle, state)
            if cycle.complete:
                self.finished.set()
        return cycle

    def _resume(self, cycle: Cycle, state: CycleState) -> None:
        """Put back the requests and results of the phase in which the daemon ended."""
        stored = self._store.requests({state.iteration, state.iteration + 1})
        # While training, exploration is the next iteration's; an evaluation may follow it.
        ahead = {"explore": 1} if state.phase == "train" else {}
        rows = [
            row
            for row in stored
            if row.request.kind in RESUMED_KINDS[state.phase]
            and row.state != "cancelled"
            and row.request.iteration == state.iteration + ahead.get(row.request.kind, 0)
        ]
        results = self._store.results({row.request.request_id for row in rows})
        cycle.restore([row.request for row in rows], [_committed(result) for result in results])
        cycle.failed = {row.request.request_id for row in rows if row.state == "failed"}
        for row in rows:
            if row.state in ("queued", "leased"):
                self._restore_request(row)
        self.fleet.event(
            "info",
            "planner",
            f"the run goes on in iteration {state.iteration}, phase {state.phase}: "
            f"{len(results)} results kept, {len(rows) - len(results)} requests open",
        )
        # Results may have completed the phase just before the daemon ended.
        self._events.put_nowait(lambda current: current.resume())

    def _restore_request(self, row: StoredRequest) -> None:
        """Holders get the time until they would count as lost to say Hello and go on. The trainer
        ended with the daemon.
        """
        awaited = row.state == "leased" and row.agent_id != TRAINER
        entry = Entry(
            row.request,
            fence=row.fence,
            progress_step=row.progress_step,
            progress_blob=row.progress_blob,
        )
        deadline = time.monotonic() + self.config.fleet.lost_s
        self.fleet.scheduler.restore(entry, row.agent_id if awaited else None, deadline)

    def _adapter_folder(self, version: int) -> Path:
        return Path(self.config.store.state_dir) / "weights" / str(version)

    def _publish(self, version: int) -> None:
        if self.fleet.weights.current_version == version:
            return
        self.fleet.weights.publish_adapter(version, self._adapter_folder(version))
        self.fleet.announce_weights()


def _committed(result: StoredResult, gpu_s: float = 0.0) -> CommittedResult:
    return CommittedResult(
        result.request_id, result.scores, result.trajectory, result.agent_id, gpu_s
    )
