"""A whole run under fire: real processes, and everything that can die dying.

    make chaos [SEED=1] [ARGS="--seconds 120 --json chaos.json"]

A daemon with its trainer, and three agents behind networks of their own, train the embedded model
while agents are killed in bursts, frozen, cut off and given notices, workers and the trainer are
killed, and the daemon is killed again and again, its disk filled, its blobs damaged, the end of its
log torn off. Whatever dies is started again, as a cloud and systemd would. Then everything that was
ever committed must be there, once, and be what its seed says; the accounts must add up.

The seed fixes the schedule of faults (`--print-schedule`); what they hit depends on the moment.
Exit code 1 when anything is lost, doubled, changed or unaccounted for.
"""

import argparse
import asyncio
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spotlightd.config import load
from spotlightd.control.client import ControlClient
from spotlightd.errors import SpotlightError, UnreachableError
from spotlightd.store.store import Store
from spotlightd.wire.token import parse_token
from tests.chaos.audit import Audit, audit_ledger, audit_store, audit_trajectories, commit_cost
from tests.chaos.disk import Disk
from tests.chaos.faults import Faults
from tests.chaos.observer import Observer
from tests.chaos.schedule import FLEET, Fault, Plan, count_deaths, make_schedule
from tests.chaos.vms import DaemonHost, Fleet

LOOK_S = 0.5
SAY_S = 15.0
AFTERMATH_ITERATIONS = 2
AFTERMATH_S = 120.0
CONFIG = {
    "run.iterations": "100000",
    "run.evaluate_prompts": "2",
    "run.evaluate_seeds": "1",
    "planner.prompts_per_iteration": "2",
    "planner.group_size": "8",
    "sampler.num_steps": "10",
    "sampler.sde_form": "flow_cps",
    "fleet.heartbeat_s": "0.5",
    "fleet.suspect_s": "2",
    "fleet.lost_s": "4",
    "fleet.lease_s": "8",
    "fleet.attempts": "20",
    "fleet.commit_every": "1",
    "store.trajectories_kept": "100000",
    "weights.chunk_bytes": "262144",
}


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Chaos:
    """One run."""

    def __init__(
        self, folder: Path, seed: int, plan: Plan, console: Console, keep_state: bool
    ) -> None:
        self.folder, self.plan, self.console = folder, plan, console
        self.keep_state = keep_state
        self.schedule = make_schedule(seed, plan)
        self.disk = Disk(folder / "disk", size_mb=768)
        self.state = folder / "disk" / "state"
        self.socket = folder / "c.sock"
        self.ports = free_ports(3)
        self.flags = CONFIG | {
            "run.seed": str(seed),
            "store.state_dir": f'"{self.state}"',
            "control.socket": f'"{self.socket}"',
            "link.enrol_port": str(self.ports[0]),
            "link.link_port": str(self.ports[1]),
            "link.chunk_port": str(self.ports[2]),
        }
        sets = [part for key, value in self.flags.items() for part in ("--set", f"{key}={value}")]
        self.daemon = DaemonHost(["run", *sets], folder / "daemon.log")
        self.observer = Observer(self.state / "spotlight.db")
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        self.console.print(f"{time.monotonic() - self.began:5.0f} s  {text}", highlight=False)

    async def run(self) -> Audit:
        if not self.disk.mount():
            self.say("mounting a tmpfs is not permitted here: no disk will be filled")
        keeping = asyncio.create_task(self.daemon.keep_up())
        try:
            fleet = Fleet(self.folder, parse_token(await self._token()), self._agent_ports)
            faults = Faults(fleet, self.daemon, self.disk, self.state, self.observer, self.say)
            background = [
                asyncio.create_task(self._keep_fleet(fleet)),
                asyncio.create_task(self._watch(fleet, faults)),
            ]
            try:
                await self._strike_all(faults)
                self.say("no more faults: the run must go on")
                await self._aftermath()
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await fleet.close()
                code = await self.daemon.stop()
                await keeping
            return await self._audit(fleet, faults, code)
        finally:
            self.daemon.stopping = True
            self.daemon.kill()
            if self.keep_state and self.disk.mounted and self.state.exists():
                shutil.copytree(self.state, self.folder / "state")
            self.disk.unmount()

    @property
    def _agent_ports(self) -> tuple[int, int]:
        return self.ports[0], self.ports[1]

    async def _token(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                client = ControlClient(self.socket)
                return (await asyncio.to_thread(client.create_token, 86400, 10000, "chaos")).token
            except UnreachableError:
                await asyncio.sleep(0.1)
        raise SpotlightError(f"spotlightd does not come up: see {self.folder / 'daemon.log'}")

    async def _keep_fleet(self, fleet: Fleet) -> None:
        """The cloud: whatever is lost is replaced."""
        while True:
            fleet.note_ends()
            if len(fleet.running()) < FLEET:
                await fleet.add()
            await asyncio.sleep(0.2)

    async def _watch(self, fleet: Fleet, faults: Faults) -> None:
        said = 0.0
        while True:
            await asyncio.to_thread(self.observer.look)
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                done = ", ".join(f"{number} {kind}" for kind, number in sorted(faults.done.items()))
                self.say(
                    f"version {self.observer.version}, {len(self.observer.seen)} results, "
                    f"{len(fleet.running())} agents up; {done or 'all quiet'}"
                )
            await asyncio.sleep(LOOK_S)

    async def _strike_all(self, faults: Faults) -> None:
        for fault in self.schedule:
            await asyncio.sleep(max(fault.at_s - (time.monotonic() - self.began), 0))
            await faults.strike(fault)
            await faults.pay_debts()
        while faults.owed_deaths:
            await faults.pay_debts()
            await asyncio.sleep(0.5)
        await faults.settle()

    async def _aftermath(self) -> None:
        """With everything whole again, two more iterations are trained."""
        target = self.observer.version + AFTERMATH_ITERATIONS
        deadline = time.monotonic() + AFTERMATH_S
        while self.observer.version < target and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        if self.observer.version < target:
            self.observer.problems.append(
                f"the run hangs: no {AFTERMATH_ITERATIONS} iterations in {AFTERMATH_S:.0f} s"
            )

    async def _audit(self, fleet: Fleet, faults: Faults, code: int) -> Audit:
        self.observer.look_last()
        audit = Audit(problems=list(self.observer.problems))
        audit.check(code == 0, f"spotlightd ended with exit code {code}")
        audit.check(not self.daemon.refused, f"spotlightd refused to go on: {self.daemon.refused}")
        for vm in fleet.vms:
            expected = vm.how == "killed" or vm.process.returncode in vm.expected_codes
            audit.check(expected, f"{vm.name} ended by itself: {vm.how}, see {vm.log}")
        wanted = count_deaths(self.schedule)
        audit.figures |= {kind: float(number) for kind, number in sorted(faults.done.items())}
        planned = wanted["kill_agents"]
        audit.check(faults.done["agent_deaths"] >= planned, "fewer agents died than were to")
        config, _ = load(None, self.flags, {})
        store = Store(self.state)
        try:
            audit_store(store, audit)
            audit_ledger(store, fleet.vms, self.daemon.away(), audit)
            self.say(f"replaying the trajectories of {self.observer.version + 1} versions")
            audit_trajectories(store, config, faults.damaged, audit, lambda _: None)
        finally:
            store.close()
        audit.figures["policy_version"] = self.observer.version
        audit.figures |= commit_cost([vm.log for vm in fleet.vms])
        return audit


def print_audit(audit: Audit, console: Console, seconds: float) -> None:
    table = Table(title=f"Chaos, {seconds:.0f} s")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in audit.figures.items():
        table.add_row(name.replace("_", " "), f"{value:.3g}" if value < 1 else f"{value:,.0f}")
    console.print(table)
    for problem in audit.problems[:40]:
        console.print(f"[red]![/] {problem}", highlight=False)
    console.print("nothing was lost" if not audit.problems else f"{len(audit.problems)} problems")


def scaled(plan: Plan, seconds: float) -> Plan:
    """A shorter run has as many faults a minute."""
    share = seconds / plan.seconds
    numbers = {k: max(round(v * share), 1) for k, v in asdict(plan).items() if k != "seconds"}
    return replace(plan, seconds=seconds, **numbers)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0], epilog="Example: make chaos SEED=2"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="how long faults last")
    parser.add_argument("--json", type=Path, help="write figures and problems to this file")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and state, kept")
    parser.add_argument("--print-schedule", action="store_true", help="print the faults, and stop")
    args = parser.parse_args()
    plan = Plan() if args.seconds == Plan.seconds else scaled(Plan(), args.seconds)
    if args.print_schedule:
        print_schedule(make_schedule(args.seed, plan))
        return 0
    # A shell starts what it puts in the background with SIGINT ignored, and children would inherit
    # that: an agent that is interrupted while it starts would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = Path(temporary)
        if args.keep:
            args.keep.mkdir(parents=True)
            folder = args.keep.resolve()
        chaos = Chaos(folder, args.seed, plan, console, keep_state=args.keep is not None)
        audit = asyncio.run(chaos.run())
        print_audit(audit, console, time.monotonic() - chaos.began)
    if args.json:
        args.json.write_text(json.dumps(asdict(audit), indent=2) + "\n")
    return 1 if audit.problems else 0


def print_schedule(faults: list[Fault]) -> None:
    for fault in faults:
        print(f"{fault.at_s:7.2f} s  {fault.kind:12}  x{fault.count}  {fault.seconds:.1f} s")
    print(dict(Counter(count_deaths(faults))))


if __name__ == "__main__":
    sys.exit(main())
