"""The daemon is killed and started again: seconds until it gives out its first new lease.

    python benchmarks/restart.py [--json FILE] [--check] [--kills 50]

spotlightd and two agents produce rollouts, of which there are always more. At random moments the
daemon is killed (SIGKILL) and started again at once, with the same command. The clock runs from
the start of the new process until the store holds a lease whose fence is of the new epoch: Python
starts, state and work in flight come back, the agents notice, introduce themselves and ask for
more. Agents hold on to what they have meanwhile, so a worker that has just begun asks only when it
is through: its wait is part of the figure, and batches of two images keep it short. A bare start of
Python that imports the daemon is the floor, measured in the same run.

Target (--check): 2 s at p95.
"""

import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import finish, make_parser, percentile

from spotlightd.control.client import ControlClient
from spotlightd.demo.processes import DemoProcess, Processes
from spotlightd.errors import SpotlightError, UnreachableError

TARGET_S = 2.0
AGENTS = 2
TIMEOUT_S = 60.0
LOOK_S = 0.005
CONFIG = """
[run]
iterations = 1
evaluate_prompts = 1
evaluate_seeds = 1
[planner]
mode = "off"
prompts_per_iteration = 8
group_size = 512
[sampler]
sde_form = "flow_cps"
[store]
state_dir = "{folder}/state"
[control]
socket = "{folder}/c.sock"
"""


class Leases:
    """The store's leases, seen from outside."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def newest_epoch(self) -> int:
        """Return the epoch of the youngest fence, 0 where there is none."""
        try:
            connection = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        except sqlite3.OperationalError:
            return 0
        try:
            return int(connection.execute("SELECT MAX(fence) >> 32 FROM request").fetchone()[0])
        except (sqlite3.OperationalError, TypeError):
            return 0  # No table yet, or no request.
        finally:
            connection.close()

    def wait_for_epoch_after(self, epoch: int, daemon: DemoProcess) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and daemon.running:
            newest = self.newest_epoch()
            if newest > epoch:
                return newest
            time.sleep(LOOK_S)
        raise SpotlightError(f"no lease within {TIMEOUT_S:.0f} s: see {daemon.log}")


def start_fleet(processes: Processes, config: Path, socket: Path) -> DemoProcess:
    daemon = processes.daemon(config)
    client, deadline = ControlClient(socket), time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and daemon.running:
        try:
            token = client.create_token(ttl_s=3600, uses=AGENTS, pool="benchmark").token
            break
        except UnreachableError:
            time.sleep(0.05)
    else:
        raise SpotlightError(f"spotlightd does not come up: see {daemon.log}")
    for number in range(AGENTS):
        processes.agent(f"vm{number}", token, "--max-batch", "2", niceness=0)
    return daemon


def bare_start_s() -> float:
    """Return the seconds that Python takes to start and to import the daemon."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import spotlightd.main"], check=True)
    return time.monotonic() - began


def measure(kills: int, seed: int, folder: Path) -> dict[str, float]:
    rng = random.Random(seed)
    config = folder / "spotlight.toml"
    config.write_text(CONFIG.format(folder=folder))
    leases = Leases(folder / "state/spotlight.db")
    processes = Processes(folder)
    waits, floors = [], []
    try:
        daemon = start_fleet(processes, config, folder / "c.sock")
        epoch = leases.wait_for_epoch_after(0, daemon)
        for number in range(kills):
            time.sleep(rng.uniform(0.5, 2.5))
            daemon.process.kill()
            daemon.process.wait()
            if number % 10 == 0:
                floors.append(bare_start_s())
            began = time.monotonic()
            daemon = processes.daemon(config)
            epoch = leases.wait_for_epoch_after(epoch, daemon)
            waits.append(time.monotonic() - began)
            print(f"kill {number + 1}: first lease after {waits[-1]:.2f} s", flush=True)
    finally:
        processes.stop_all()
    return {
        "kills": float(kills),
        "bare_start_s": percentile(floors, 50),
        **{f"first_lease_p{p}_s": percentile(waits, p) for p in (50, 95, 99)},
        "first_lease_max_s": max(waits),
        "p50_over_bare_start": percentile(waits, 50) / percentile(floors, 50),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="spotlight-restart-") as name:
            figures = measure(args.kills, args.seed, Path(name))
    except SpotlightError as error:
        print(f"restart: {error}", file=sys.stderr)
        return int(error.exit_code)
    title = f"Restart to first lease, {args.kills} kills, {AGENTS} agents"
    return finish(title, figures, args, at_most={"first_lease_p95_s": TARGET_S})


if __name__ == "__main__":
    sys.exit(main())
