"""Strikes: what each fault of a schedule does to the processes, the network and the disk."""

import asyncio
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.disk import Disk, flip_a_byte, truncate_tail
from tests.chaos.observer import Observer
from tests.chaos.schedule import Fault
from tests.chaos.vms import DaemonHost, Fleet, Vm, family, send_all


@dataclass
class Faults:
    """Executes faults and counts what was really hit."""

    fleet: Fleet
    daemon: DaemonHost
    disk: Disk
    state: Path
    observer: Observer
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)
    owed_deaths: int = 0
    """Agents that a burst should have killed, had there been so many."""
    lasting: set["asyncio.Task[None]"] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    """Digests of blobs whose content was changed."""

    async def strike(self, fault: Fault) -> None:
        await getattr(self, f"_{fault.kind}")(fault)

    async def settle(self) -> None:
        """Wait until every network is whole, every process runs and the disk has room again."""
        await asyncio.gather(*self.lasting)

    def _some(self, fault: Fault) -> list[Vm]:
        running = self.fleet.running()
        if not running:
            return []
        first = int(fault.draw * len(running))
        return (running[first:] + running[:first])[: fault.count]

    def _last(self, seconds: float, end: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            end()

        task = asyncio.create_task(wait())
        self.lasting.add(task)
        task.add_done_callback(self.lasting.discard)

    # --- agents -------------------------------------------------------------------------------

    async def _kill_agents(self, fault: Fault) -> None:
        struck = self._some(fault)
        self.owed_deaths += fault.count - len(struck)
        for vm in struck:
            vm.kill()
        self.done["agent_deaths"] += len(struck)

    async def pay_debts(self) -> None:
        """Kill as many as bursts have not found, once there are agents again."""
        running = self.fleet.running()
        if self.owed_deaths and len(running) > 1:
            self.owed_deaths -= 1
            running[0].kill()
            self.done["agent_deaths"] += 1

    async def _kill_worker(self, fault: Fault) -> None:
        for vm in self._some(fault):
            workers = [p for p in family(vm.process.pid) if "agent.worker" in _command(p)]
            send_all(workers[:1], signal.SIGKILL)
            self.done["worker_kills"] += len(workers[:1])

    async def _freeze(self, fault: Fault) -> None:
        for vm in self._some(fault):
            frozen = family(vm.process.pid)
            send_all(frozen, signal.SIGSTOP)
            vm.frozen_until = vm.silence(fault.seconds, vm.frozen_until)
            self._last(fault.seconds, lambda vm=vm, frozen=frozen: _thaw(vm, frozen))
            self.done["freezes"] += 1

    async def _notice(self, fault: Fault) -> None:
        for vm in self._some(fault):
            # It may still be joining, and then it ends as whoever is told to in between.
            vm.expected_codes |= {3, -signal.SIGTERM}
            vm.process.send_signal(signal.SIGTERM)
            self.done["notices"] += 1

    async def _partition(self, fault: Fault) -> None:
        struck = self._some(fault)
        mode = "cut" if fault.draw * 1e6 % 2 < 1 else "silent"
        for vm in struck:
            vm.proxy.set_mode(mode)  # type: ignore[arg-type]
            vm.cut_until = vm.silence(fault.seconds, vm.cut_until)
            self._last(fault.seconds, lambda vm=vm: _reconnect(vm))
        self.done["partitions"] += bool(struck)

    # --- the reserved node --------------------------------------------------------------------

    async def _kill_daemon(self, _: Fault) -> None:
        self.daemon.kill()
        self.done["daemon_kills"] += 1

    async def _kill_trainer(self, _: Fault) -> None:
        trainer = self.daemon.trainer()
        if trainer is not None:
            send_all([trainer], signal.SIGKILL)
            self.done["trainer_kills"] += 1

    # --- the disk -----------------------------------------------------------------------------

    async def _fill_disk(self, fault: Fault) -> None:
        if not self.disk.mounted:
            return
        self.disk.fill()
        for vm in self.fleet.running():
            # A newcomer is told to try again.
            vm.expected_codes.add(75)
        self.done["full_disks"] += 1
        self._last(fault.seconds, self.disk.clear)

    async def _damage_blob(self, fault: Fault) -> None:
        """Flip a byte in a trajectory of the current iteration, or in a step commit."""
        digests = self._current_blobs()
        paths = [self.state / "blobs" / digest[:2] / digest for digest in digests]
        paths = [path for path in paths if path.exists()]
        if paths:
            path = paths[int(fault.draw * len(paths))]
            self.observer.excuse_holders_of(path.name)
            flip_a_byte(path, fault.draw)
            self.damaged.add(path.name)
            self.done["damaged_blobs"] += 1

    def _current_blobs(self) -> list[str]:
        try:
            connection = sqlite3.connect(f"file:{self.state}/spotlight.db?mode=ro", uri=True)
            try:
                rows = connection.execute(
                    "SELECT trajectory FROM result JOIN request USING (request_id), run "
                    "WHERE trajectory != '' AND iteration = run.policy_version UNION "
                    "SELECT progress_blob FROM request WHERE progress_blob != ''"
                ).fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return []
        return sorted(digest for (digest,) in rows)

    async def _truncate_wal(self, fault: Fault) -> None:
        """The machine loses power, and the end of the log with it, against all that fsync says."""
        self.daemon.held.clear()
        self.daemon.kill()
        self.done["daemon_kills"] += 1
        log = self.state / "spotlight.db-wal"
        if log.exists() and log.stat().st_size:
            self.observer.look()
            lost = truncate_tail(log, fault.draw)
            self.observer.excuse_what_is_gone()
            self.say(f"the last {lost} bytes of the log are gone")
            self.done["truncated_wals"] += 1
        self.daemon.held.set()


def _thaw(vm: Vm, frozen: list[psutil.Process]) -> None:
    if time.time() >= vm.frozen_until:
        send_all(frozen, signal.SIGCONT)


def _reconnect(vm: Vm) -> None:
    if time.time() >= vm.cut_until:
        vm.proxy.set_mode("open")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
