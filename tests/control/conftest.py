"""A real control server on a real socket, in front of a daemon that remembers what it is asked."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotlightd.config import Config, all_keys
from spotlightd.control import api, views
from spotlightd.control.client import ControlClient
from spotlightd.control.run_view import Answers
from spotlightd.control.server import ControlServer
from spotlightd.errors import SpotlightError
from spotlightd.submission import composed
from spotlightd.telemetry.metrics import DaemonCollector, Extra
from tests.control.runs import write_run

STATUS = api.Status(
    name="spotlightd",
    version="0.1.0",
    protocol=(1, 0),
    epoch=3,
    state_dir="/var/lib/spotlight",
    pid=4711,
    uptime_s=3725.0,
    run="words",
    run_state="running",
    phase="train",
    iteration=4,
    iterations=30,
    policy_version=4,
    reward=api.Reward(
        control_mean=0.5125,
        held_out=(api.HeldOutPoint(policy_version=0, scores={"ocr": 0.51}),),
    ),
    agents={"live": 2, "draining": 1},
    requests={"rollout": {"done": 64}, "explore": {"queued": 100, "leased": 12}},
    lost=0,
    gpu_seconds={"useful": 120.4, "wasted": 1.0, "loading": 6.0, "idle": 9.5},
    cost=api.Cost(currency="USD", reserved=1.25, spot=0.5, all_reserved=3.0),
    train_reward="ocr",
    last_event=2,
)

AGENT = api.AgentRow(
    agent_id="a-1",
    name="spot-one",
    role="agent",
    state="live",
    workers=1,
    leases=8,
    versions=(3, 4),
    last_seen_s=0.4,
    gpu_seconds={"useful": 30.0, "idle": 10.0},
)
# An id with all that a URL could trip over.
ODD_AGENT = api.AgentRow(
    agent_id="a/2 ü%",
    name="spot-two",
    role="agent",
    state="draining",
    workers=2,
    leases=0,
    versions=(),
    last_seen_s=75.0,
    gpu_seconds={},
    notice_s=110.0,
)
RUN = api.RunRow(
    name="words",
    state="running",
    iteration=4,
    iterations=30,
    policy_version=4,
    started_at=1.8e9,
    updated_at=1.8e9 + 60,
    reward_first=0.51,
)


PLAN = api.PlanView(
    mode="bandit",
    iteration=5,
    reason="46 seeds for each of 4 prompts at 8 steps",
    arms=(api.ArmRow(tail_steps=2, staleness=1, rho=0.91, rho_error=0.03),),
    windows_kept=40,
    windows_overrun=1,
    iterations=(
        api.PlannedIteration(iteration=3, figures={"zero_spread_share": 0.25}),
        api.PlannedIteration(iteration=4, figures={"rho": 0.912, "candidates": 46.0}),
    ),
)


WEIGHTS = views.WeightsRow(
    kind="adapter",
    version=4,
    bytes=4096,
    chunks=2,
    files=1,
    digest="ab" * 32,
    holders=("a-1",),
)


def event(event_id: int) -> api.EventRow:
    return api.EventRow(
        event_id=event_id, time=1.8e9, level="info", component="fleet", text=f"event {event_id}"
    )


class RecordingDaemon:
    """Implements control.port.Daemon."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.rows = [event(1), event(2)]
        self.arrived = asyncio.Event()
        self.waiting = threading.Event()
        self.failure: Exception | None = None
        self.waits_for = ""

    def status(self) -> api.Status:
        if self.failure:
            raise self.failure
        return STATUS

    def agents(self) -> list[api.AgentRow]:
        return [AGENT, ODD_AGENT]

    def runs(self) -> list[api.RunRow]:
        return [RUN]

    def plan(self) -> api.PlanView:
        return PLAN

    def weights(self) -> tuple[views.WeightsRow, ...]:
        return (WEIGHTS,)

    def config(self) -> list[views.ConfigRow]:
        return [views.ConfigRow(key="run.seed", value=7, origin="command line")]

    def metrics(self) -> bytes:
        return DaemonCollector(self).text(Extra())

    def ready(self) -> api.Health:
        return api.Health(ok=not self.waits_for, waiting_for=self.waits_for)

    def last_event(self) -> int:
        return self.rows[-1].event_id

    def revoke(self, agent_id: str) -> None:
        self.calls.append(("revoke", agent_id))

    def forget(self, agent_id: str) -> None:
        self.calls.append(("forget", agent_id))

    def set_run(self, state: str) -> None:
        self.calls.append(("run", state))

    async def submit(self, wanted: api.RunRequest) -> api.Submitted:
        config, _ = composed(Config(), dict.fromkeys(all_keys(), "default"), wanted, Path("/runs"))
        self.calls.append(("submit", config.run.name, config.run.iterations))
        return api.Submitted(run=config.run.name, state_dir=config.store.state_dir, iteration=0)

    def create_token(self, ttl_s: float, uses: int, pool: str) -> api.TokenCreated:
        self.calls.append(("token", ttl_s, uses, pool))
        return api.TokenCreated(
            token="spl1.127.0.0.1:9.key.id.secret",
            token_id="id",
            expires_at=1.8e9,
            uses=uses,
            pool=pool,
        )

    def events(self, after_id: int, limit: int) -> list[api.EventRow]:
        return [row for row in self.rows if row.event_id > after_id][:limit]

    async def wait_events(self, after_id: int, timeout: float) -> list[api.EventRow]:
        self.waiting.set()
        if found := self.events(after_id, api.MAX_EVENTS):
            return found
        try:
            async with asyncio.timeout(timeout):
                await self.arrived.wait()
        except TimeoutError:
            return []
        return self.events(after_id, api.MAX_EVENTS)

    def drain(self, agent_id: str, deadline_s: float) -> None:
        self.calls.append(("drain", agent_id, deadline_s))

    def set_prices(self, pool, prices):
        self.calls.append(("set_prices", pool, dict(prices)))

    def stop(self) -> None:
        self.calls.append(("stop",))


class Served:
    """The server's own thread and loop, so that blocking clients can be tested against it."""

    def __init__(self, path: Path, state_dir: Path, group: str = "no-such-group") -> None:
        self.path = path
        self.group = group
        self.state_dir = state_dir
        self.dashboard = ""
        self.daemon = RecordingDaemon()
        self.client = ControlClient(path)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: ControlServer | None = None

    def start(self) -> None:
        self._thread.start()
        self._server = self.on_loop(self._build())
        self.on_loop(self._server.start())
        self.dashboard = self._server.dashboard

    @property
    def server(self) -> ControlServer:
        assert self._server is not None
        return self._server

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(20)
        connection.connect(str(self.path))
        return connection

    def on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=20)

    def add_event(self, row: api.EventRow) -> None:
        async def add() -> None:
            self.daemon.rows.append(row)
            self.daemon.arrived.set()

        self.on_loop(add())

    def close_server(self) -> None:
        if self._server:
            self.on_loop(self._server.close())
            self._server = None

    def close(self) -> None:
        self.close_server()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=20)
        self._loop.close()

    async def _build(self) -> ControlServer:
        answers = Answers(self.state_dir)
        return ControlServer(self.daemon, answers, self.path, self.group, port=0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "control.sock", write_run(tmp_path / "state"))
    one.start()
    yield one
    one.close()


@pytest.fixture
def failing(served: Served):
    """Make the daemon's status() raise."""

    def fail(error: SpotlightError | Exception) -> None:
        served.daemon.failure = error

    return fail
