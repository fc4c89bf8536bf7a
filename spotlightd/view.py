"""What the control socket sees of the daemon: its state, and the few things to ask of it."""

import os
import time
from collections.abc import Callable, Mapping

from spotlightd import __version__
from spotlightd.conductor import Conductor
from spotlightd.control import api
from spotlightd.errors import TryAgainError
from spotlightd.fleet.enrolment import Enrolment
from spotlightd.fleet.gate import Gate
from spotlightd.fleet.service import FleetService
from spotlightd.store.store import Store
from spotlightd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR


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
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._conductor = conductor
        self._enrolment = enrolment
        self._gate = gate
        self._enrol_endpoint = enrol_endpoint
        self._server_key = server_key
        self._stop = stop
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
            phase=cycle.state.phase if cycle else "starting",
            iteration=cycle.state.iteration if cycle else 0,
            iterations=config.run.iterations,
            policy_version=self._fleet.weights.current_version or 0,
            reward=self._reward(),
            agents=states,
            requests=self._store.request_counts(),
            lost=self._store.count_lost(),
            gpu_seconds=ledger.totals(now),
            cost=api.Cost(
                currency=config.ledger.currency,
                reserved=ledger.cost(now, "trainer"),
                spot=ledger.cost(now, "agent"),
                all_reserved=ledger.cost_all_reserved(now, config.ledger.reserved_price),
            ),
        )

    def _reward(self) -> api.Reward:
        train = self._fleet.config.rewards.train
        metrics = self._store.metrics()
        controls = [
            row[f"control.{train}"] for row in metrics.values() if f"control.{train}" in row
        ]
        points = tuple(
            api.HeldOutPoint(
                policy_version=version,
                scores={k.removeprefix("held_out."): v for k, v in row.items() if "held_out." in k},
            )
            for version, row in metrics.items()
            if f"held_out.{train}" in row
        )
        return api.Reward(control_mean=controls[-1] if controls else None, held_out=points)

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
        run, reward = self._store.run(), self._reward()
        if run is None:
            return []
        train = self._fleet.config.rewards.train
        return [
            api.RunRow(
                name=run.name,
                state="done" if self._conductor.finished.is_set() else "running",
                iteration=run.policy_version,
                iterations=self._fleet.config.run.iterations,
                policy_version=run.policy_version,
                started_at=run.started_at,
                updated_at=run.updated_at,
                reward_first=reward.held_out[0].scores[train] if reward.held_out else None,
                reward_last=reward.held_out[-1].scores[train] if reward.held_out else None,
            )
        ]

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
        figures = {
            iteration: {
                name.removeprefix("planner."): value
                for name, value in row.items()
                if name.startswith("planner.")
            }
            for iteration, row in self._store.metrics().items()
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
        return [
            api.EventRow(event_id=i, time=at, level=level, component=component, text=text)  # type: ignore[arg-type]
            for i, at, level, component, text in self._store.events(after_id, limit)
        ]

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

    def drain(self, agent_id: str, deadline_s: float) -> None:
        member = self._fleet.members.present(agent_id)
        if member is None or member.role != "agent":
            raise TryAgainError(f"{agent_id} cannot be drained: it is not an agent that is present")
        self._fleet.drain(agent_id, deadline_s, "drained by the operator")

    def set_prices(self, pool: str, prices: Mapping[str, float]) -> None:
        self._gate.set_prices(pool, prices)

    def stop(self) -> None:
        self._stop()
