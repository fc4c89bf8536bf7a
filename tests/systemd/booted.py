"""What an operator does, on a system that has booted: install, join, submit, stop, kill, uninstall.

It runs as root inside that system, uses the commands alone, and writes what it found as JSON. The
commands of docs/operations.md's install section are here in the same order and words.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BIN = "/opt/spotlight/bin"
CONFIG = Path("/etc/spotlight/spotlightd.toml")
STATE = Path("/var/lib/spotlight/runs/words")
RUN = """
[run]
name = "words"
iterations = 500
evaluate_prompts = 1
evaluate_seeds = 1
trainer_rolls_out = false
[planner]
prompts_per_iteration = 2
group_size = 4
[sampler]
num_steps = 6
sde_window_size = 3
[weights]
chunk_bytes = 262144
"""


def sh(command: str) -> str:
    """Run a command line as an operator types it; its output, or an error with all it said."""
    environ = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=170, env=environ
    )
    print(f"$ {command}\n{done.stdout}{done.stderr}[{done.returncode}]", flush=True)
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def until(what: str, condition, seconds: float = 150.0) -> Any:  # type: ignore[no-untyped-def]
    """Ask until the answer is true; the state of another process can only be asked for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except RuntimeError:
            pass
        time.sleep(0.3)
    raise RuntimeError(f"waited {seconds:.0f} s in vain until {what}")


def status() -> dict[str, Any]:
    return json.loads(sh("spotlightctl status --json"))


def prop(unit: str, name: str) -> str:
    return sh(f"systemctl show --property={name} --value {unit}").strip()


def unit_state() -> dict[str, str]:
    return {
        name: prop("spotlightd", name)
        for name in ("ActiveState", "SubState", "NRestarts", "WatchdogUSec")
    }


def committed() -> int:
    return sum(states.get("done", 0) for states in status()["requests"].values())


def hear_of_empty_groups() -> None:
    """With version 1 of control groups nobody tells a container that a service's last process is
    gone, and systemd waits until its patience is over: keep it short there.
    """
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        folder = Path("/run/systemd/system/spotlightd.service.d")
        folder.mkdir(parents=True)
        (folder / "patience.conf").write_text("[Service]\nTimeoutStopSec=15\n")


def walk(report: dict[str, Any]) -> None:
    hear_of_empty_groups()
    sh("spotlightd install")
    assert "iterations" in CONFIG.read_text(), "the template explains itself"
    sh(f"spotlightd config check --config {CONFIG}")
    began = time.monotonic()
    sh("systemctl start spotlightd")
    report["start_s"] = time.monotonic() - began
    report["waits"] = status()["run_state"], prop("spotlightd", "StatusText")
    Path("/root/words.toml").write_text(RUN)
    sh("spotlightctl runs submit /root/words.toml")
    until("the run goes on", lambda: status()["run_state"] == "running")
    report["runs"] = status()["run"], prop("spotlightd", "StatusText")
    report["secret_key_refused"] = subprocess.run(
        ["setpriv", "--reuid=spotlight", "--regid=spotlight", "--clear-groups",
         "cat", "/etc/spotlight/server.key"], capture_output=True,
    ).returncode  # fmt: skip

    sh("spotlightctl token create --ttl 15m --uses 1 > /root/token")
    sh("spotlight-agent join --token-file /root/token --install --threads 1")
    report["agent_active"] = prop("spotlight-agent", "ActiveState")
    until("the agent has committed something", committed)

    # The token is used up. A stop is a notice: what was being worked on is handed back.
    began = time.monotonic()
    sh("systemctl stop spotlight-agent")
    report["stop_s"] = time.monotonic() - began
    report["stop_code"] = int(prop("spotlight-agent", "ExecMainStatus"))
    report["stop_result"] = prop("spotlight-agent", "Result")
    report["lost_after_stop"] = status()["lost"]
    report["agents_after_stop"] = status()["agents"]
    report["agent_log"] = sh("journalctl --unit spotlight-agent --no-pager --output=cat")

    sh("systemctl start spotlight-agent")
    report["agents_after_start"] = status()["agents"]

    before = status()
    pid = int(prop("spotlightd", "MainPID"))
    began = time.monotonic()
    os.kill(pid, 9)
    until("the daemon is back", lambda: status()["epoch"] == before["epoch"] + 1)
    report["back_s"] = time.monotonic() - began
    report["lost_after_kill"] = status()["lost"]
    report["restarts"] = int(prop("spotlightd", "NRestarts"))
    until("the agent is back, untouched", lambda: status()["agents"].get("live") == 1)
    done = committed()
    until("work goes on", lambda: committed() > done)
    report["agent_restarts"] = int(prop("spotlight-agent", "NRestarts"))

    # The run ends and the daemon stays: the next run finds it, and the agent, where they are.
    sh("spotlightctl runs stop")
    until("the daemon waits", lambda: status()["run_state"] == "waiting")
    report["between"] = unit_state()
    sh("spotlightctl runs submit /root/words.toml --set run.name=words-2")
    until("the agent joins the next run", lambda: status()["agents"].get("live") == 1)
    report["second_run"] = status()["run"], unit_state()
    report["log_secrets"] = secrets_in(sh("journalctl --no-pager --output=cat"))

    sh("spotlight-agent install --uninstall")
    sh("spotlightd install --uninstall")
    report["units_left"] = [str(path) for path in Path("/etc/systemd/system").rglob("spotlight*")]
    report["active_left"] = sh("systemctl list-units --plain --no-legend 'spotlight*'").split("\n")
    report["data_left"] = sorted(str(path) for path in Path("/etc/spotlight").iterdir())
    report["state_left"] = (STATE / "spotlight.db").exists()


def secrets_in(text: str) -> list[str]:
    """Return which secrets of this system a text holds."""
    held = json.loads(Path("/etc/spotlight/server.key").read_text())
    agent = json.loads(Path("/var/lib/spotlight-agent/agent.json").read_text())
    token = Path("/root/token").read_text().strip()
    words = {"server key": held["secret"], "agent key": agent["private_key"], "token": token}
    words["token's secret"] = re.split(r"\.", token)[-1]
    return [name for name, word in words.items() if word in text]


def main() -> None:
    out = Path(sys.argv[1])
    report: dict[str, Any] = {"error": ""}
    try:
        subprocess.run(["ldconfig"], check=True)
        walk(report)
    except BaseException as error:
        report["error"] = repr(error)
        for unit in ("spotlightd", "spotlight-agent"):
            command = ["journalctl", "--unit", unit, "--no-pager", "--lines=60", "--output=cat"]
            report[f"{unit} log"] = subprocess.run(command, capture_output=True, text=True).stdout
    out.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
