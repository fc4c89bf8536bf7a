"""The real commands on loopback, as a user types them."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from spotlightd.control.client import ControlClient
from spotlightd.errors import UnreachableError

BIN = Path(sys.executable).parent
SMALL = {
    "run.iterations": "2",
    "run.evaluate_prompts": "2",
    "run.evaluate_seeds": "1",
    "planner.prompts_per_iteration": "2",
    "planner.group_size": "4",
    "sampler.num_steps": "6",
    "sampler.sde_form": "flow_cps",
    "sampler.sde_window_size": "3",
    "fleet.heartbeat_s": "0.5",
    "fleet.suspect_s": "2",
    "fleet.lost_s": "5",
    "weights.chunk_bytes": "262144",
    "telemetry.trackers": "[]",
    "control.dashboard_port": "0",
}


@dataclass
class Host:
    """One folder's worth of processes."""

    root: Path
    state: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.root / "c.sock"

    @property
    def client(self) -> ControlClient:
        return ControlClient(self.socket)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def start(self, name: str, command: str, *arguments: str, **environ: str):
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environ},
            )
        self.started.append(process)
        return process

    def daemon(self, name: str = "daemon", **changes: str):
        flags = SMALL | {"control.socket": f'"{self.socket}"'}
        flags |= {key.replace("__", "."): value for key, value in changes.items()}
        sets = [part for key, value in flags.items() for part in ("--set", f"{key}={value}")]
        return self.start(name, "spotlightd", "run", "--state-dir", str(self.state), *sets)

    def agent(self, name: str, token: str, *more: str):
        arguments = ["join", "--name", name, "--state-dir", str(self.root / name)]
        arguments += ["--chunk-bind", "127.0.0.1", "--connect-timeout", "20", *more]
        return self.start(name, "spotlight-agent", *arguments, SPOTLIGHT_TOKEN=token)

    def wait_for(self, condition, seconds: float = 60.0):
        """Ask the control socket until `condition(status)` holds; return the status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                status = self.client.status()
                if condition(status):
                    return status
            except UnreachableError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"waited {seconds} s in vain; logs: {self.tails()}")

    def tails(self) -> dict[str, str]:
        return {path.name: path.read_text()[-1500:] for path in self.root.glob("*.log")}

    def families(self) -> list[psutil.Process]:
        """Every process that was started here, with its children."""
        found = []
        for process in self.started:
            if process.poll() is None:
                parent = psutil.Process(process.pid)
                found += [parent, *parent.children(recursive=True)]
        return found

    def close(self) -> None:
        for process in self.families():
            process.kill()
        for process in self.started:
            process.wait()


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path, tmp_path / "state")
    yield made
    made.close()


def interrupt(process: subprocess.Popen[bytes]) -> int:
    """Ctrl-C, and the exit code."""
    process.send_signal(signal.SIGINT)
    return process.wait(30)
