"""The processes of a chaos run: one daemon, and agents as if each had a VM and a network."""

import asyncio
import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import psutil

from spotlightd.wire.token import Token, make_token
from tests.chaos.proxy import Proxy

BIN = Path(sys.executable).parent
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
UP = re.compile(r"(?m)^(\S+) INFO +fleet +spotlightd is up ")

RECONNECT_S = 2.0
"""After a silence an agent may need so long until it is heard again."""


def start(
    command: str, arguments: list[str], log: Path, **environ: str
) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        return subprocess.Popen(
            [str(BIN / command), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, **environ},
            start_new_session=True,
        )


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started; none where it is gone."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@dataclass
class Vm:
    """One spot VM: an agent with its workers, behind a network of its own."""

    name: str
    process: "subprocess.Popen[bytes]"
    proxy: Proxy
    log: Path
    began: float
    """Clock time since 1970."""
    ended: float | None = None
    how: str = ""
    expected_codes: set[int] = field(default_factory=set)

    silent: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was frozen or cut off."""
    frozen_until: float = 0.0
    cut_until: float = 0.0
    """Clock times; faults may overlap, and the last to end ends them."""

    def silence(self, seconds: float, until: float) -> float:
        """It falls silent; return when what silences it ends, `until` or later."""
        now = time.time()
        self.silent.append((now, now + seconds))
        return max(until, now + seconds)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def heard_until(self, daemon_away: list[tuple[float, float]]) -> float:
        """Return when it could last be heard: its end, or the silence in which that fell."""
        assert self.ended is not None
        until = self.ended
        for since, end in sorted([*self.silent, *daemon_away], reverse=True):
            if since <= until <= end + RECONNECT_S:
                until = since
        return until

    def kill(self) -> None:
        """The VM vanishes: every process of it at once."""
        send_all(family(self.process.pid), signal.SIGKILL)
        self.process.wait()
        self.ended, self.how = time.time(), "killed"


@dataclass
class Fleet:
    """Agents that come and go. Names, addresses and state folders are never used twice."""

    folder: Path
    token: Token
    ports: tuple[int, int]
    """Enrolment and link."""
    vms: list[Vm] = field(default_factory=list)

    def running(self) -> list[Vm]:
        return [vm for vm in self.vms if vm.running]

    async def add(self) -> Vm:
        number = len(self.vms) + 1
        host = f"127.1.{number // 200}.{number % 200 + 1}"
        proxy = Proxy(host, "127.0.0.1", self.ports)
        await proxy.start()
        token = make_token(replace(self.token, endpoint=f"{host}:{self.ports[0]}"))
        name = f"vm{number:03}"
        log = self.folder / f"{name}.log"
        arguments = ["join", "--name", name, "--state-dir", str(self.folder / name)]
        arguments += ["--chunk-bind", "127.0.0.1", "--connect-timeout", "60"]
        arguments += ["--preempt-provider", "none", "--notice-grace", "20"]
        process = start("spotlight-agent", arguments, log, SPOTLIGHT_TOKEN=token)
        self.vms.append(Vm(name, process, proxy, log, time.time()))
        return self.vms[-1]

    def note_ends(self) -> None:
        """Write down when agents ended that ended by themselves."""
        for vm in self.vms:
            if vm.ended is None and not vm.running:
                vm.ended, vm.how = time.time(), f"exit code {vm.process.returncode}"

    async def close(self) -> None:
        for vm in self.running():
            send_all(family(vm.process.pid), signal.SIGCONT)
            # 130: it was interrupted before it had joined.
            vm.expected_codes |= {0, 130}
            vm.process.send_signal(signal.SIGINT)
        for vm in self.vms:
            try:
                await asyncio.to_thread(vm.process.wait, 25)
            except subprocess.TimeoutExpired:
                vm.kill()
                vm.how = "did not end"
        self.note_ends()
        await asyncio.gather(*(vm.proxy.close() for vm in self.vms))


@dataclass
class DaemonHost:
    """The reserved node: starts the daemon again whenever it ends, as systemd would."""

    arguments: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    stopping: bool = False
    refused: list[int] = field(default_factory=list)
    """Exit codes other than of a kill or of a full disk."""
    ends: list[float] = field(default_factory=list)
    """Clock times at which it ended."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Clear while it must stay down."""

    def __post_init__(self) -> None:
        self.held.set()

    async def keep_up(self) -> None:
        while not self.stopping:
            await self.held.wait()
            self.process = start("spotlightd", self.arguments, self.log)
            self.starts += 1
            code = await asyncio.to_thread(self.process.wait)
            self.ends.append(time.time())
            if code not in (0, -signal.SIGKILL, 75):
                self.refused.append(code)
            if code == 75:
                # The disk is full; systemd waits a little, too.
                await asyncio.sleep(0.5)

    def away(self) -> list[tuple[float, float]]:
        """Return from when to when nobody listened."""
        ups = [datetime.fromisoformat(at).timestamp() for at in UP.findall(self.log.read_text())]
        return [(end, min((up for up in ups if up > end), default=math.inf)) for end in self.ends]

    def kill(self) -> None:
        """SIGKILL; the kernel takes its children with it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def trainer(self) -> psutil.Process | None:
        for process in family(self.process.pid) if self.process else []:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "spotlightd.trainer" in process.cmdline():
                    return process
        return None

    async def stop(self) -> int:
        """End it as an operator would; return its exit code."""
        self.stopping = True
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)
