"""What the control socket sees of the daemon: its state, and the few things to ask of it."""

import os
import time
from collections.abc import Callable, Mapping

from spotlightd import __version__
from spotlightd.conductor import Conductor
from spotlightd.config import Origins
from spotlightd.control import api, views
from spotlightd.control.rows import config_rows, event_rows, run_row
from spotlightd.errors import TryAgainError
from spotlightd.fleet.enrolment import Enrolment
from spotlightd.fleet.gate import Gate
from spotlightd.fleet.service import FleetService
from spotlightd.store.history import History
from spotlightd.store.rows import RunIntent
from spotlightd.store.store import Store
from spotlightd.telemetry.metrics import DaemonCollector, Extra
from spotlightd.weights.manifest import manifest_digest, total_bytes
from spotlightd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR

NEWEST_EVALUATIONS = 20
"""That a status tells of, beside the first."""
PLANS_SHOWN = 200
"""Newest iterations whose plans are told."""
FIGURES_OF = 5
"""Iterations among which the newest measured ones are looked for."""


class DaemonView:
    """Implements `control.api.Daemon`."""

    def __init__(
        self,
        store: Store,
        fleet: FleetService,
        conductor: Conductor,
        enrolment: Enrolment,
        gate: Gate,
        enrol_endpoint: Callable[[], str],
        server_key: str,
        stop: Callable[[], None],
        origins: Origins,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._conductor = conductor
        self._enrolment = enrolment
        self._gate = gate
        self._enrol_endpoint = enrol_endpoint
        self._server_key = server_key
        self._stop = stop
        self._origins = origins
        self._history = History(store.state_dir)
        self._collector = DaemonCollector(self)
        self.dashboard = ""
        """Its address; set once it is served."""
        self._began = time.monotonic()

    def status(self) -> api.Status:
        config, now = self._fleet.config, time.time()
        cycle = self._conductor.cycle
        ledger = self._fleet.ledger
        states: dict[str, int] = {}
        for member in self._fleet.members.members.values():
            if member.role == "agent":
                states[member.state] = states.get(member.state, 0) + 1
        return api.Status(
            name="spotlightd",
            version=__version__,
            protocol=(PROTOCOL_MAJOR, PROTOCOL_MINOR),
            epoch=self._fleet.scheduler.epoch,
            state_dir=str(self._store.state_dir),
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began,
            run=config.run.name,
            run_state=self._run_state(),
            phase=cycle.state.phase if cycle else "starting",
            iteration=cycle.state.iteration if cycle else 0,
            iterations=config.run.iterations,
            policy_version=self._fleet.weights.current_version or 0,
            reward=self._reward(),
            agents=states,
            requests=self._history.counts(),
            lost=self._history.lost(),
            gpu_seconds=ledger.totals(now),
            cost=api.Cost(
                currency=config.ledger.currency,
                reserved=ledger.cost(now, "trainer"),
                spot=ledger.cost(now, "agent"),
                all_reserved=ledger.cost_all_reserved(now, config.ledger.reserved_price),
            ),
            train_reward=config.rewards.train,
            last_event=self.last_event(),
            dashboard=self.dashboard,
        )

    def _run_state(self) -> str:
        if self._conductor.stopped:
            return "stopped"
        if self._conductor.finished.is_set():
            return "done"
        return "paused" if self._fleet.paused else "running"

    def _reward(self) -> api.Reward:
        train, history = self._fleet.config.rewards.train, self._history
        evaluated = history.ends_of(f"held_out.{train}", NEWEST_EVALUATIONS)
        points = tuple(
            api.HeldOutPoint(policy_version=v, scores=history.figures(v, "held_out."))
            for v in evaluated
        )
        return api.Reward(control_mean=history.latest(f"control.{train}"), held_out=points)

    def agents(self) -> list[api.AgentRow]:
        now = time.monotonic()
        return [
            api.AgentRow(
                agent_id=member.agent_id,
                name=member.name,
                role=member.role,
                state=member.state,
                workers=member.workers,
                leases=len(puller.held) if puller else 0,
                versions=tuple(sorted(puller.versions)) if puller else (),
                last_seen_s=now - member.last_seen,
                gpu_seconds=self._fleet.ledger.classes(member.agent_id, time.time()),
                notice_s=self._notice(member.agent_id),
            )
            for member in self._fleet.members.members.values()
            for puller in [self._fleet.scheduler.pullers.get(member.agent_id)]
        ]

    def _notice(self, agent_id: str) -> float | None:
        taken_at = self._fleet.notices.get(agent_id)
        return None if taken_at is None else max(taken_at - time.time(), 0.0)

    def runs(self) -> list[api.RunRow]:
        row = run_row(self._history, self._store.state_dir, self._run_state())
        return [] if row is None else [row]

    def plan(self) -> api.PlanView:
        cycle = self._conductor.cycle
        config = self._fleet.config
        arms: list[api.ArmRow] = []
        kept = overrun = 0
        if cycle is not None:
            planner = cycle.state.planner
            kept, overrun = planner.margin.hits, planner.margin.misses
            for tail, staleness, belief in planner.arms.rows():
                arms.append(
                    api.ArmRow(
                        tail_steps=tail,
                        staleness=staleness,
                        rho=belief.rho(),
                        rho_error=belief.error(),
                    )
                )
        last = self._history.last_iteration()
        figures = {
            iteration: self._history.figures(iteration, "planner.")
            for iteration in range(max(last - PLANS_SHOWN + 1, 0), last + 1)
        }
        return api.PlanView(
            mode=config.planner.mode,
            iteration=cycle.planned_iteration if cycle else 0,
            reason=cycle.state.reason if cycle else "the run has not begun",
            arms=tuple(arms),
            windows_kept=kept,
            windows_overrun=overrun,
            iterations=tuple(
                api.PlannedIteration(iteration=iteration, figures=row)
                for iteration, row in sorted(figures.items())
                if row
            ),
        )

    def events(self, after_id: int, limit: int) -> list[api.EventRow]:
        if after_id > self.last_event():
            # A reader that followed the run before: ids begin anew with each.
            after_id = 0
        return event_rows(self._history.events(after_id, limit))

    async def wait_events(self, after_id: int, timeout: float) -> list[api.EventRow]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            rows = self.events(after_id, api.MAX_EVENTS)
            if rows:
                return rows
            await self._fleet.events.wait(deadline - time.monotonic())
        return self.events(after_id, api.MAX_EVENTS)

    def create_token(self, ttl_s: float, uses: int, pool: str) -> api.TokenCreated:
        token, token_id, expires_at = self._enrolment.create_token(
            self._enrol_endpoint(), self._server_key, ttl_s, uses, pool
        )
        return api.TokenCreated(
            token=token, token_id=token_id, expires_at=expires_at, uses=uses, pool=pool
        )

    def last_event(self) -> int:
        return self._history.last_event()

    def weights(self) -> tuple[views.WeightsRow, ...]:
        desk, members = self._fleet.weights, self._fleet.members
        rows = []
        for manifest in desk.published():
            holders = tuple(
                agent_id
                for agent_id, member in members.members.items()
                if members.present(agent_id) and manifest.version in member.ready_versions
            )
            rows.append(
                views.WeightsRow(
                    kind=manifest.kind,
                    version=manifest.version,
                    bytes=total_bytes(manifest),
                    chunks=sum(len(file.chunks) for file in manifest.files),
                    files=len(manifest.files),
                    digest=manifest_digest(manifest),
                    holders=holders if manifest.kind == "adapter" else (),
                )
            )
        return tuple(sorted(rows, key=lambda row: (row.kind, -row.version)))

    def config(self) -> list[views.ConfigRow]:
        return config_rows(self._fleet.config, self._origins)

    def ready(self) -> api.Health:
        cycle = self._conductor.cycle
        if self._run_state() in ("done", "stopped"):
            missing = "nothing: the run is over"
        elif cycle is None or cycle.state.phase == "starting":
            missing = "the trainer, which is loading the model"
        elif self._fleet.paused:
            missing = "`spotlightctl runs resume`: the run is paused"
        else:
            missing = ""
        return api.Health(ok=not missing, waiting_for=missing)

    def metrics(self) -> bytes:
        recent = self._history.recent(FIGURES_OF)
        figures = {name: value for row in recent for name, value in row.items()}
        extra = Extra(
            self._fleet.reports.commits,
            self._fleet.notices_seen,
            figures,
            self._fleet.weights.bytes_served(),
        )
        return self._collector.text(extra)

    def drain(self, agent_id: str, deadline_s: float) -> None:
        member = self._fleet.members.present(agent_id)
        if member is None or member.role != "agent":
            raise TryAgainError(f"{agent_id} cannot be drained: it is not an agent that is present")
        self._fleet.drain(agent_id, deadline_s, "drained by the operator")

    def revoke(self, agent_id: str) -> None:
        self._gate.revoke(agent_id)

    def forget(self, agent_id: str) -> None:
        self._gate.forget(agent_id)

    def set_run(self, state: RunIntent) -> None:
        if self._conductor.finished.is_set():
            raise TryAgainError(
                f"the run is {self._run_state()}: start the daemon with more iterations to go on"
            )
        self._store.set_run_state(state).result()
        self._fleet.event("info", "control", f"the run is {state}, as the operator asked")
        if state == "stopped":
            self._conductor.end()
        else:
            self._fleet.paused = state == "paused"
            self._fleet.dispatch_soon()

    def set_prices(self, pool: str, prices: Mapping[str, float]) -> None:
        self._gate.set_prices(pool, prices)

    async def submit(self, wanted: api.RunRequest) -> api.Submitted:
        cycle = self._conductor.cycle
        at = cycle.state.iteration if cycle else 0
        config = self._fleet.config.run
        raise TryAgainError(
            f"run '{config.name}' goes on here (iteration {at} of {config.iterations}), and a "
            f"daemon works on one at a time: wait, or end that one with spotlightctl runs stop"
        )

    def close(self) -> None:
        self._history.close()

    def stop(self) -> None:
        self._stop()
