"""One run of a race: a daemon on one core, spot VMs on the other, taken away as a trace has it."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import psutil
from _race_figures import Event, Record, compress

from spotlightd.control.client import ControlClient
from spotlightd.control.fleet_view import accounts
from spotlightd.control.run_view import RunView
from spotlightd.demo.config import socket_path, write_config
from spotlightd.demo.processes import DemoProcess, Processes
from spotlightd.errors import SpotlightError, UnreachableError
from spotlightd.simulate.assumptions import load_assumptions
from spotlightd.simulate.traces import load_trace, seat_changes
from spotlightd.simulate.variants import Variant
from spotlightd.store.history import History
from spotlightd.telemetry.usage import PERIOD_S

POLL_S = 0.2
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
HELD_OUT = "held_out.ocr"
MOST_ROWS = 100


@dataclass(frozen=True)
class Settings:
    """What all runs of a race have in common, and may be compared only if they have it."""

    trace: str
    """Name of the trace."""
    speed: float
    """Times as fast as it was recorded."""
    target: float
    """Held-out reward that ends a run."""
    limit_s: float
    """From the start on; a run that takes longer has not reached its target."""
    iterations: int
    evaluate_every: int
    vms: int
    """Seats of spot VMs; they share one core."""
    reserved_price: float
    spot_price: float
    """Of one VM's hour: a core's price over the number of VMs that share it."""
    train_size: int
    """Rollouts of a group that train, in the variants that do not train all of them."""


def changes_of(variant: Variant, settings: Settings, seed: int) -> dict[str, str]:
    """Return the keys of the configuration that this run changes of the demo's."""
    own = {"planner.train_size": str(settings.train_size)} | variant.changes
    if not variant.reserved_rolls_out:
        own["run.trainer_rolls_out"] = "false"
    return own | {
        "run.name": variant.name,
        "run.seed": str(seed),
        "run.iterations": str(settings.iterations),
        "run.evaluate_every": str(settings.evaluate_every),
        "run.evaluate_seeds": "2",
        "ledger.reserved_price": str(settings.reserved_price),
        "ledger.spot_price": str(settings.spot_price),
        "telemetry.trackers": "[]",
        "control.dashboard": "false",
    }


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run this thread on one core; processes that are started meanwhile stay there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def race(
    folder: Path,
    variant: Variant,
    seed: int,
    settings: Settings,
    trace: Path,
    cores: tuple[int, int],
) -> Record:
    """Run to the target, in `folder`, which is emptied before.

    Args:
        cores: the reserved one and the spot one.

    Raises:
        SpotlightError: the daemon or an agent failed, and where its log is.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    given = load_assumptions().preemption
    events: list[Event] = []
    if variant.spot:
        until = settings.limit_s * settings.speed
        seats = seat_changes(load_trace(trace), settings.vms, seed, until)
        events = compress(seats, settings.speed, seed, given.notice_s, given.silent_share)
    processes = Processes(folder)
    run = _Run(folder, processes, settings, events, given.notice_s / settings.speed, cores[1])
    # What watches the run takes its little time from the spot core.
    with on_core(cores[1]):
        try:
            started = time.time()
            run.play(_start_daemon(folder, processes, variant, seed, settings, cores[0]))
        finally:
            processes.stop_all()
    return _record(folder / "state", variant.name, seed, settings, started, run.losses)


def _start_daemon(
    folder: Path, processes: Processes, variant: Variant, seed: int, settings: Settings, core: int
) -> DemoProcess:
    config = folder / "spotlight.toml"
    write_config(config, folder, seed, settings.iterations, exploration=True)
    changes = changes_of(variant, settings, seed)
    options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    with on_core(core):
        return processes.daemon(config, *options)


class _Run:
    """Follows one run: boots VMs, takes them away, and ends it at its target."""

    def __init__(
        self,
        folder: Path,
        processes: Processes,
        settings: Settings,
        events: list[Event],
        notice_s: float,
        spot_core: int,
    ) -> None:
        self.losses: list[tuple[float, int, str]] = []
        """(time, seat, `notice` or `silent`) of each VM that was taken away."""
        self._state = folder / "state"
        self._client = ControlClient(socket_path(folder))
        self._processes = processes
        self._settings = settings
        self._events = events
        self._notice_s = notice_s
        self._spot_core = spot_core
        self._vms: dict[int, DemoProcess] = {}
        """By seat."""
        self._noticed: set[str] = set()
        self._token = ""
        self._made = 0

    def play(self, daemon: DemoProcess) -> None:
        """Return when the daemon has ended."""
        self._until(self._answers, daemon)
        # Nothing begins before the VMs that are there at first can work.
        self._client.set_run("pause")
        self._token = self._client.create_token(ttl_s=86_400, uses=1000, pool="race").token
        self._play_until(0.0)
        self._until(self._all_ready, daemon)
        self._client.set_run("resume")
        began = time.monotonic()
        history = History(self._state)
        try:
            while daemon.running:
                elapsed = time.monotonic() - began
                self._play_until(elapsed)
                self._check_vms()
                reward = history.latest(HELD_OUT)
                reached = reward is not None and reward >= self._settings.target
                if reached or elapsed > self._settings.limit_s:
                    break
                time.sleep(POLL_S)
        finally:
            history.close()
        self._end(daemon)

    def _answers(self) -> bool:
        try:
            self._client.status()
        except UnreachableError:
            return False
        return True

    def _all_ready(self) -> bool:
        ready = sum(1 for row in self._client.agents() if row.role == "agent" and row.versions)
        return self._client.status().phase != "starting" and ready == len(self._vms)

    def _until(self, holds: Callable[[], bool], daemon: DemoProcess) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and daemon.running:
            if holds():
                return
            self._check_vms()
            time.sleep(POLL_S)
        raise SpotlightError(f"spotlightd or its agents do not come up; see {daemon.log.parent}")

    def _end(self, daemon: DemoProcess) -> None:
        if daemon.running:
            try:
                self._client.set_run("stop")
            except UnreachableError:
                pass  # It has just ended by itself.
        if daemon.process.wait(END_TIMEOUT_S) != 0:
            code = daemon.process.returncode
            raise SpotlightError(f"spotlightd ended with exit code {code}; its log is {daemon.log}")

    # --- the spot VMs -------------------------------------------------------------------------

    def _play_until(self, elapsed: float) -> None:
        while self._events and self._events[0].at <= elapsed:
            event = self._events.pop(0)
            match event.kind:
                case "boot":
                    self._boot(event.seat)
                case "notice":
                    self._notice(event.seat)
                case "gone":
                    self._gone(event.seat)

    def _boot(self, seat: int) -> None:
        self._made += 1
        name = f"spot-{seat + 1}-{self._made}"
        # It has a core of its own: nothing makes way for it, and it for nothing.
        own = os.getpriority(os.PRIO_PROCESS, 0)
        with on_core(self._spot_core):
            self._vms[seat] = self._processes.agent(
                name, self._token, "--preempt-provider", "none", niceness=own
            )

    def _notice(self, seat: int) -> None:
        vm = self._vms[seat]
        self._noticed.add(vm.name)
        self._processes.preempt_file(vm.name).write_text(f"{self._notice_s:g}")

    def _gone(self, seat: int) -> None:
        """The VM vanishes with every process of it, where it has not left by itself."""
        vm = self._vms.pop(seat)
        how = "notice" if vm.name in self._noticed else "silent"
        self.losses.append((time.time(), seat, how))
        if vm.running:
            parent = psutil.Process(vm.process.pid)
            for process in [*parent.children(recursive=True), parent]:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    pass  # It ended meanwhile.
            vm.process.wait()

    def _check_vms(self) -> None:
        for vm in self._vms.values():
            code = vm.process.poll()
            if code is not None and code not in (0, 3):
                raise SpotlightError(f"{vm.name} ended with exit code {code}; its log is {vm.log}")


def _record(
    state: Path,
    variant: str,
    seed: int,
    settings: Settings,
    started: float,
    losses: list[tuple[float, int, str]],
) -> Record:
    """Read what the run has left behind."""
    history, view = History(state), RunView(state)
    try:
        phases = history.phases(0.0, time.time())
        evaluated = {i: began for i, phase, began, _ in phases if phase == "evaluate"}
        first = min(began for i, phase, began, _ in phases if phase == "rollout")
        points = [
            (version, first if version == 0 else evaluated[version], figures["ocr"])
            for version in history.iterations_with(HELD_OUT)
            if (figures := history.figures(version, "held_out.")) and version in evaluated
        ]
        aligned = int(started) // PERIOD_S * PERIOD_S
        slots = int(time.time() - aligned) // PERIOD_S + 1
        # A row of usage tells what went before it.
        strips = view.strips(aligned + PERIOD_S, slots * PERIOD_S, slots, MOST_ROWS)
        kept = accounts(history)
        ledger = view.ledger(2)
        lost = history.lost()
        last = history.last_iteration()
    finally:
        history.close()
        view.close()
    cells = [
        {"row": _row(strip.name), "at": aligned + cell.slot * PERIOD_S}
        | {name: getattr(cell, name) for name in ("useful", "wasted", "loading", "idle")}
        for strip in strips.strips
        for cell in strip.cells
    ]
    return {
        "variant": variant,
        "seed": seed,
        "settings": asdict(settings),
        "started": started,
        "points": points,
        "phases": phases,
        "accounts": msgspec.to_builtins(kept),
        "billed": {"reserved": ledger.reserved, "spot": ledger.spot},
        "cells": cells,
        "losses": losses,
        "iterations": last,
        "lost": lost,
    }


def _row(name: str) -> str:
    """Return the seat of a VM, or `reserved`."""
    return " ".join(name.split("-")[:2]) if name.startswith("spot-") else "reserved"
