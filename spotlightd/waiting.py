"""What the control socket sees of a daemon that waits for a run, and the taking of one.

Until there is another, pictures, curves, money and events are the last run's.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

from spotlightd import __version__
from spotlightd.control import api, views
from spotlightd.control.rows import config_of, config_rows, event_rows, row_of
from spotlightd.errors import TryAgainError, UsageError
from spotlightd.home import Home
from spotlightd.inputs import read_inputs
from spotlightd.store.history import History
from spotlightd.store.rows import RunIntent
from spotlightd.submission import check_goes_on
from spotlightd.telemetry.metrics import DaemonCollector, Extra
from spotlightd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR

ASKED = "no run goes on here: spotlightctl runs submit CONFIG begins one"


class WaitingView:
    """Implements `control.api.Daemon`.

    Args:
        last: the run that was last worked on; None: there has been none.
    """

    def __init__(self, home: Home, last: api.RunRow | None) -> None:
        self.taken = asyncio.Event()
        """Set once a run was submitted."""
        self.dashboard = ""
        self._home = home
        self._last = last
        self._history = None if last is None else History(Path(last.state_dir))
        self._taking = asyncio.Lock()
        self._collector = DaemonCollector(self)
        self._began = time.monotonic()

    def close(self) -> None:
        if self._history is not None:
            self._history.close()

    # --- taking a run -------------------------------------------------------------------------

    async def submit(self, wanted: api.RunRequest) -> api.Submitted:
        async with self._taking:
            if self.taken.is_set():
                raise TryAgainError("another run was submitted just now, and begins")
            # Prompts may be many, and a disk slow.
            submitted = await asyncio.to_thread(self._submit, wanted)
            self.taken.set()
        return submitted

    def _submit(self, wanted: api.RunRequest) -> api.Submitted:
        config, origins = self._home.composed(wanted)
        read_inputs(config)
        state_dir, run = Path(config.store.state_dir), config.run
        before = row_of(state_dir)
        if before is not None:
            if before.state == "done" and before.iteration >= run.iterations:
                raise UsageError(
                    f"run '{run.name}' is done ({before.iteration} iterations): set run.iterations "
                    f"above that to go on, or give this one another name (--set run.name=NAME)"
                )
            check_goes_on(config, origins, config_of(state_dir))
        self._home.submit(wanted, state_dir)
        return api.Submitted(
            run=run.name,
            state_dir=str(state_dir),
            iteration=0 if before is None else before.iteration,
        )

    # --- looking ------------------------------------------------------------------------------

    def status(self) -> api.Status:
        last, history = self._last, self._history
        return api.Status(
            name="spotlightd",
            version=__version__,
            protocol=(PROTOCOL_MAJOR, PROTOCOL_MINOR),
            epoch=0,
            state_dir=str(self._home.folder),
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began,
            run=last.name if last else "",
            run_state="waiting",
            phase="waiting",
            iteration=last.iteration if last else 0,
            iterations=last.iterations if last else 0,
            policy_version=last.policy_version if last else 0,
            reward=api.Reward(control_mean=None, held_out=()),
            agents={},
            requests=history.counts() if history else {},
            lost=history.lost() if history else 0,
            gpu_seconds={},
            cost=api.Cost(
                currency=self._home.own.ledger.currency, reserved=0.0, spot=0.0, all_reserved=0.0
            ),
            train_reward=self._home.own.rewards.train,
            last_event=self.last_event(),
            dashboard=self.dashboard,
        )

    def ready(self) -> api.Health:
        return api.Health(ok=False, waiting_for="a run: spotlightctl runs submit CONFIG")

    def agents(self) -> list[api.AgentRow]:
        return []

    def runs(self) -> list[api.RunRow]:
        """Ended ones are told of by `Answers`."""
        return []

    def plan(self) -> api.PlanView:
        return api.PlanView(
            mode="",
            iteration=0,
            reason="no run goes on",
            arms=(),
            windows_kept=0,
            windows_overrun=0,
            iterations=(),
        )

    def weights(self) -> tuple[views.WeightsRow, ...]:
        return ()

    def config(self) -> list[views.ConfigRow]:
        return config_rows(self._home.own, self._home.origins)

    def metrics(self) -> bytes:
        return self._collector.text(Extra())

    def events(self, after_id: int, limit: int) -> list[api.EventRow]:
        return [] if self._history is None else event_rows(self._history.events(after_id, limit))

    async def wait_events(self, after_id: int, timeout: float) -> list[api.EventRow]:
        rows = self.events(after_id, api.MAX_EVENTS)
        if not rows:
            # Nothing happens here until a run begins, and its events are told by its own view.
            await asyncio.sleep(timeout)
        return rows

    def last_event(self) -> int:
        return 0 if self._history is None else self._history.last_event()

    # --- what only a run can do -----------------------------------------------------------------

    def create_token(self, ttl_s: float, uses: int, pool: str) -> api.TokenCreated:
        raise TryAgainError(ASKED)

    def drain(self, agent_id: str, deadline_s: float) -> None:
        raise TryAgainError(ASKED)

    def revoke(self, agent_id: str) -> None:
        raise TryAgainError(ASKED)

    def forget(self, agent_id: str) -> None:
        raise TryAgainError(ASKED)

    def set_run(self, state: RunIntent) -> None:
        raise TryAgainError(ASKED)

    def set_prices(self, pool: str, prices: Mapping[str, float]) -> None:
        raise TryAgainError(ASKED)

    def stop(self) -> None:
        self._home.stop.set()
