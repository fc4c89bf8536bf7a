"""The demo's processes: one daemon and its agents, started by the commands that users type."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotlightd.errors import SpotlightError

AGENT_NICENESS = 10
"""On one machine the agents would take the trainer's CPU; on spot VMs they have their own."""
STOP_GRACE_S = 15.0


@dataclass
class DemoProcess:
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    how_it_ended: str = ""

    @property
    def running(self) -> bool:
        return self.process.poll() is None


@dataclass
class Processes:
    """Starts commands, and leaves none behind."""

    out: Path
    started: list[DemoProcess] = field(default_factory=list)

    def daemon(self, config: Path, *options: str) -> DemoProcess:
        arguments = ["run", "--config", str(config), *options]
        return self._start("spotlightd", arguments, {}, "spotlightd")

    def agent(
        self, name: str, token: str, *options: str, niceness: int = AGENT_NICENESS
    ) -> DemoProcess:
        """Start `spotlight-agent join` as if on a VM of its own; the token goes by environment."""
        arguments = [
            "join",
            "--name",
            name,
            "--state-dir",
            str(self.out / "agents" / name),
            "--preempt-file",
            str(self.preempt_file(name)),
            "--chunk-bind",
            "127.0.0.1",
            *options,
        ]
        started = self._start("spotlight-agent", arguments, {"SPOTLIGHT_TOKEN": token}, name)
        os.setpriority(os.PRIO_PROCESS, started.process.pid, niceness)
        return started

    def preempt_file(self, name: str) -> Path:
        return self.out / "agents" / f"{name}.preempt"

    def _start(
        self, command: str, arguments: list[str], environ: Mapping[str, str], name: str
    ) -> DemoProcess:
        executable = Path(sys.executable).with_name(command)
        if not executable.exists():
            raise SpotlightError(f"{executable} is missing: install the project first (make setup)")
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(executable), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **QUIET, **environ},
                # Ctrl-C reaches the demo alone, which then stops everything in order.
                start_new_session=True,
            )
        started = DemoProcess(name, process, log)
        self.started.append(started)
        return started

    def stop_all(self) -> None:
        """End what still runs, agents first; kill what does not end."""
        for started in reversed(self.started):
            if started.running:
                started.process.send_signal(signal.SIGINT)
        for started in reversed(self.started):
            try:
                started.process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()


QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}
"""Two cores are shared by seven processes: one thread each; no model hub is asked."""
