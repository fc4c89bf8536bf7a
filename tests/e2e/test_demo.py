"""The demo, shortened: the whole loop with a notice, a fresh VM and a kill."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(300)]

DOCS = Path(__file__).parents[2] / "docs/demo.md"


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the demo; whatever still runs when the test ends is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(out: Path, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "spotlightd.demo", "--out", str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.communicate()


def documented_keys() -> set[str]:
    """First names of the keys in docs/demo.md."""
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    return {re.match(r"\| `(\w+)", row).group(1) for row in rows}


def test_nothing_is_lost_though_one_vm_is_drained_and_one_killed(start, tmp_path):
    process = start(tmp_path / "out", "--iterations", "8", "--json")
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    summary = json.loads(stdout)
    assert summary == json.loads((tmp_path / "out/summary.json").read_text())
    assert set(summary) == documented_keys()
    trajectories = summary["trajectories"]
    assert trajectories["lost"] == 0
    assert trajectories["resumed"] > 0
    assert trajectories["rollout"] == 8 * 64
    assert trajectories["evaluate"] == 2 * 36 * 4
    assert trajectories["explore"] > 0
    ended = {row["name"]: row["ended"] for row in summary["agents"]}
    assert ended["vm-b"] == "drained by its notice"
    assert ended["vm-a"] == "killed"
    assert ended["vm-c"] == "left with the run"
    log_prob = summary["log_prob"]
    assert len(log_prob["by_producer"]) >= 3
    for difference in log_prob["by_producer"].values():
        assert difference < 1e-5
        assert difference < 0.01 * log_prob["clip_range"]
    assert summary["staleness"]["spearman"] > 0.6
    assert summary["staleness"]["pairs"] > 50
    for row in summary["agents"]:
        assert all(seconds >= 0 for seconds in row["gpu_seconds"].values())
    assert (tmp_path / "out/report.html").read_text().startswith("<!doctype html>")


def test_ctrl_c_stops_everything(start, tmp_path):
    process = start(tmp_path / "out")
    family = psutil.Process(process.pid)
    children: set[psutil.Process] = set()
    deadline = time.monotonic() + 150
    while len(children) < 8 and time.monotonic() < deadline:
        children |= set(family.children(recursive=True))
        time.sleep(0.1)
    assert len(children) >= 8  # daemon, trainer, scorer; two agents with worker and scorer
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    assert not (tmp_path / "out/control.sock").exists()


def test_a_folder_that_holds_something_else_is_not_emptied(start, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    process = start(tmp_path)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 78
    assert "holds something else than a demo" in stderr
    assert (tmp_path / "thesis.txt").exists()
