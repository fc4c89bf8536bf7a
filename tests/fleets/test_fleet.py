"""`spotlightctl fleet` with a real daemon and real agents; only SkyPilot is a fake."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from spotlightd.control.client import ControlClient
from spotlightd.errors import UnreachableError
from spotlightd.fleet.ledger import Account
from tests.fleets.test_render import AWS

BIN = Path(sys.executable).parent
pytestmark = [pytest.mark.slow, pytest.mark.fault]


def until(what, seconds=60.0):
    """Ask for the state of other processes until it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := what():
                return found
        except (UnreachableError, FileNotFoundError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain")


class World:
    """An operator's machine with a daemon, a home, and `sky` on its path."""

    def __init__(self, root: Path) -> None:
        self.root, self.sky = root, root / "sky"
        for folder in ("home/.sky/catalogs/v8/aws", "bin", "sky"):
            (root / folder).mkdir(parents=True)
        (root / "home/.sky/catalogs/v8/aws/vms.csv").write_text(AWS)
        fake = root / "bin/sky"
        fake.write_text(
            f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "fake_sky.py"} "$@"\n'
        )
        fake.chmod(0o755)
        self.environ = os.environ | {
            "HOME": str(root / "home"),
            "XDG_STATE_HOME": str(root / "home/state"),
            "FAKE_SKY": str(self.sky),
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        command = [str(BIN / "spotlightd"), "run", "--state-dir", str(root / "state")]
        command += ["--set", f'control.socket="{root / "c.sock"}"']
        with (root / "daemon.log").open("wb") as log:
            self.daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environ
            )
        self.client = ControlClient(root / "c.sock")

    def fleet(self, *arguments):
        command = [BIN / "spotlightctl", "fleet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=self.environ)
        return done.returncode, done.stdout, done.stderr

    def live(self):
        return {
            row.agent_id: row.name
            for row in self.client.agents()
            if row.role == "agent" and row.state == "live"
        }

    def job(self, name):
        return json.loads((self.sky / f"{name}.job").read_text())

    def close(self):
        for path in self.sky.glob("*.job"):
            for pid in (json.loads(path.read_text())["pid"],):
                if psutil.pid_exists(pid):
                    os.killpg(pid, signal.SIGKILL)
        self.daemon.kill()
        self.daemon.wait()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def test_a_fleet_from_one_command_and_a_killed_vm_comes_back_as_somebody_else(world):
    until(world.client.status)
    arguments = ("--gpu", "H100:1", "--count", "2", "--max-price", "2.5")
    socket = ("--socket", str(world.root / "c.sock"))
    code, out, err = world.fleet("up", *arguments, *socket)
    assert code == 0, err
    first = until(lambda: len(world.live()) == 2 and world.live())
    assert set(first.values()) == {"spot-0", "spot-1"}
    code, out, _ = world.fleet("status", *socket, "--json")
    rows = json.loads(out)
    assert code == 0 and {row["job"] for row in rows.values()} == {"RUNNING"}
    assert all(row["agents"][0].endswith(" live") for row in rows.values())

    killed = next(agent for agent, name in first.items() if name == "spot-1")
    before = world.job("spot-1")["vm"]
    os.kill(before, signal.SIGKILL)
    second = until(lambda: len(set(world.live()) - set(first)) == 1 and world.live())
    (newcomer,) = set(second) - set(first)
    assert second[newcomer] == "spot-1" and newcomer != killed

    until(lambda: len(accounts(world)) == 3)
    assert {account.price_per_hour for account in accounts(world).values()} == {2.10}

    code, _, err = world.fleet("up", *arguments, *socket)
    assert code == 64 and "there is a fleet 'spot'" in err
    controllers = [world.job(name)["pid"] for name in ("spot-0", "spot-1")]
    assert world.fleet("down")[0] == 0
    until(lambda: not any(alive(pid) for pid in controllers))
    code, _, err = world.fleet("status", *socket)
    assert code == 64 and "no fleet 'spot' was launched from here" in err
    calls = (world.sky / "calls.jsonl").read_text()
    assert "spl1." not in calls, "the token is in no command line"
    assert not any("spl1." in path.read_text() for path in world.sky.glob("*.task"))


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def accounts(world):
    """The agents' accounts as they are on disk."""
    with sqlite3.connect(f"file:{world.root / 'state/spotlight.db'}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT agent_id, body FROM account").fetchall()
    db.close()
    found = {agent_id: msgspec.json.decode(body, type=Account) for agent_id, body in rows}
    return {agent_id: account for agent_id, account in found.items() if account.role == "agent"}
