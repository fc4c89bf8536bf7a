"""The daemon's real process against thousands of emulated agents over loopback.

    python benchmarks/fleet_scale.py [--json FILE] [--check] [--agents 2000] [--trajectory-s 30]

Each agent enrols its own key, and holds its own CURVE session; it beats once a second, asks for
work, commits a trajectory's state (45 kB) twice and then the result with an image, durably, on this
disk. Only denoising is a timer (30 s, with a spread), and no weights travel. The trainer's process
is there and idle. After a while of steady work half of the agents vanish at the same moment,
without a word, and the others finish everything. Then the daemon is stopped, and its store audited.

Lease latency is from the agent's asking to its having the lease, while there is work. The emulator
is one process beside the daemon; how late it was itself is printed, and is part of each latency.

Targets (--check): p99 of lease latency 50 ms in steady work, under one core for the daemon, no
agent suspected that was not gone, no lease expired, nothing lost, nothing committed twice.
"""

import asyncio
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
from _emulated_fleet import EmulatedAgent, Seen, join_all
from _report import finish, make_parser, percentile

from spotlightd.control.client import ControlClient
from spotlightd.demo.processes import DemoProcess, Processes
from spotlightd.errors import SpotlightError, UnreachableError
from spotlightd.limits import raise_file_limit

PROMPTS, PER_AGENT = 11, 4
"""Requests: prompts x agents / 4. Some are left when half of the fleet vanishes."""
LOOK_S = 0.5
TIMEOUT_S = 240.0
CONFIG = """
[run]
iterations = 1
evaluate_prompts = 1
evaluate_seeds = 1
trainer_rolls_out = false
[planner]
mode = "off"
prompts_per_iteration = {prompts}
group_size = {group}
[sampler]
sde_form = "flow_cps"
[fleet]
backup_leases = false
[store]
state_dir = "{folder}/state"
[control]
socket = "{folder}/c.sock"
dashboard = false
[telemetry]
trackers = []
"""


class Cpu:
    """CPU seconds of one process, its threads included, over wall time."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._wall, self._cpu = time.monotonic(), self._used()

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def lap(self) -> float:
        """Return the cores used since the last lap."""
        wall, cpu = self._wall, self._cpu
        self._wall, self._cpu = time.monotonic(), self._used()
        return (self._cpu - cpu) / (self._wall - wall)


def ask(folder: Path, sql: str) -> list[tuple[object, ...]]:
    database = folder / "state/spotlight.db"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def count(folder: Path, sql: str) -> int:
    ((found,),) = ask(folder, sql)
    assert isinstance(found, int)
    return found


def start(processes: Processes, folder: Path, agents: int) -> tuple[DemoProcess, str]:
    config = folder / "spotlight.toml"
    group = max(agents // PER_AGENT, 2)
    config.write_text(CONFIG.format(folder=folder, prompts=PROMPTS, group=group))
    daemon = processes.daemon(config)
    client, deadline = ControlClient(folder / "c.sock"), time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and daemon.running:
        try:
            return daemon, client.create_token(ttl_s=3600, uses=agents, pool="scale").token
        except UnreachableError:
            time.sleep(0.1)
    raise SpotlightError(f"spotlightd does not come up: see {daemon.log}")


async def until_done(folder: Path, agents: list[EmulatedAgent], daemon: DemoProcess) -> None:
    """Wait for all rollouts but those that the keeper keeps."""
    deadline = time.monotonic() + TIMEOUT_S
    sql = "SELECT COUNT(*) FROM request WHERE kind = 'rollout' AND state != 'done'"
    while count(folder, sql) > len(agents[0].kept):
        if time.monotonic() > deadline or not daemon.running:
            raise SpotlightError(f"{count(folder, sql)} rollouts are left: see {daemon.log}")
        await asyncio.sleep(LOOK_S)


def between(rows: list[tuple[float, float]], began: float, ended: float) -> list[float]:
    return [seconds for at, seconds in rows if began <= at < ended]


async def play(
    folder: Path,
    processes: Processes,
    daemon: DemoProcess,
    token: str,
    agents: int,
    trajectory_s: float,
    steady_s: float,
) -> dict[str, float]:
    """Return the figures. Raises SpotlightError where the work does not end."""
    seen, began = Seen(), time.monotonic()
    context, fleet = await join_all(token, agents, trajectory_s, seen)
    joined = time.monotonic()
    while not fleet[0].kept:
        await asyncio.sleep(LOOK_S)
    steady, cpu = time.monotonic(), Cpu(daemon.process.pid)
    await asyncio.sleep(steady_s)
    vanished, steady_cores = time.monotonic(), cpu.lap()
    held: set[str] = set()
    for agent in fleet[1 + agents // 2 :]:
        held |= agent.vanish()
    gone = {agent.agent_id for agent in fleet[1 + agents // 2 :]}
    held -= seen.acked.keys()
    await until_done(folder, fleet, daemon)
    done, vanish_cores = time.monotonic(), cpu.lap()
    memory = psutil.Process(daemon.process.pid).memory_info().rss
    processes.stop_all()
    for agent in fleet[: 1 + agents // 2]:
        agent.vanish()
    context.destroy(linger=0)
    leases = between(seen.lease_s, steady, vanished)
    # While there is work for everybody; at the end of a phase an agent waits for the next one.
    after = between(seen.lease_s, vanished, vanished + trajectory_s)
    beats = between(seen.beat_s, steady, vanished)
    figures = {
        "agents": float(agents),
        "enrolled_per_second": agents / (joined - began),
        "leases_per_second": len(leases) / (vanished - steady),
        "lease_p50_ms": percentile(leases, 50) * 1e3,
        "lease_p99_ms": percentile(leases, 99) * 1e3,
        "lease_max_ms": max(leases) * 1e3,
        "heartbeats_per_second": len(beats) / (vanished - steady),
        "heartbeat_p99_ms": percentile(beats, 99) * 1e3,
        "emulator_late_p99_ms": percentile(seen.lag_s, 99) * 1e3,
        "daemon_cores": steady_cores,
        "daemon_memory_mb": memory / 1e6,
        "vanished": float(len(gone)),
        "vanished_held": float(len(held)),
        "vanished_daemon_cores": vanish_cores,
        "finished_after_s": done - vanished,
        "resumed_elsewhere": float(seen.resumed),
    }
    if after:  # A short run has leased everything by then.
        figures["vanished_lease_p99_ms"] = percentile(after, 99) * 1e3
    return figures | audit(folder, seen, gone, held)


def audit(folder: Path, seen: Seen, gone: set[str], held: set[str]) -> dict[str, float]:
    """Read from the store of the ended daemon what became of every request."""
    results = {row[0]: row[1:] for row in ask(folder, "SELECT request_id, fence, agent_id, "
               "trajectory FROM result")}  # fmt: skip
    kinds = dict(ask(folder, "SELECT request_id, kind FROM request"))
    missing = sum(1 for r, fence in seen.acked.items() if results.get(r, (None,))[0] != fence)
    blobs = folder / "state/blobs"
    lost = sum(
        1
        for request_id, (_, _, digest) in results.items()
        if kinds[request_id] == "rollout" and not (blobs / str(digest)[:2] / str(digest)).is_file()
    )
    texts = [str(text) for (text,) in ask(folder, "SELECT text FROM event")]
    suspected = sum(
        1 for text in texts if " is suspect" in text and text.split(" ", 1)[0] not in gone
    )
    return {
        "results": float(len(results)),
        "acknowledged_but_missing": float(missing),
        "trajectories_missing": float(lost),
        "committed_twice": float(
            count(
                folder,
                "SELECT COUNT(*) FROM (SELECT 1 FROM result GROUP BY request_id HAVING "
                "COUNT(*) > 1)",
            )
        ),
        "done_without_result": float(
            count(
                folder,
                "SELECT COUNT(*) FROM request LEFT JOIN result USING (request_id) WHERE "
                "state = 'done' AND result.request_id IS NULL",
            )
        ),
        "of_vanished_not_done": float(sum(1 for request_id in held if request_id not in results)),
        "suspected_though_there": float(suspected),
        "leases_expired": float(sum("leases expired" in text for text in texts)),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--trajectory-s", type=float, default=30.0)
    parser.add_argument("--steady-s", type=float, default=45.0, help="until half of them vanish")
    parser.add_argument("--keep", type=Path, help="folder for state and logs, which then stay")
    args = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="spotlight-scale-") as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        processes = Processes(folder)
        try:
            daemon, token = start(processes, folder, args.agents)
            shape = args.agents, args.trajectory_s, args.steady_s
            figures = asyncio.run(play(folder, processes, daemon, token, *shape))
        except SpotlightError as error:
            print(f"fleet_scale: {error}", file=sys.stderr)
            return int(error.exit_code)
        finally:
            processes.stop_all()
    none = (
        "acknowledged_but_missing",
        "trajectories_missing",
        "committed_twice",
        "done_without_result",
        "of_vanished_not_done",
        "suspected_though_there",
        "leases_expired",
    )
    return finish(
        f"{args.agents} agents, half of them gone after {args.steady_s:g} s",
        figures,
        args,
        at_most={"lease_p99_ms": 50.0, "daemon_cores": 1.0} | dict.fromkeys(none, 0.0),
    )


if __name__ == "__main__":
    sys.exit(main())
