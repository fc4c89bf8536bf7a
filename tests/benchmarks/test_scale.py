"""The scale benchmarks with small fleets: what they hold the daemon to, without their timings."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def day(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("day")
    sys.modules.pop("day")


def test_hours_of_a_fleet_that_comes_and_goes(day, tmp_path):
    rows = [f"0,add,n{i}" for i in range(6)]
    rows += [f"{600_000 + 20_000 * i},remove,n{i}" for i in range(4)]
    rows += [f"{1_500_000 + 60_000 * i},add,m{i}" for i in range(4)]
    path = tmp_path / "burst.csv"
    path.write_text("\n".join([*rows, "4000000,remove,m0"]))
    found = day.play(60, 6.0, day.load_trace(path))
    assert found["iterations"] > 3 and found["explored"] > 60, found
    assert found["preemptions"] > 30 and found["rollouts_resumed"] > 0
    assert found["hours_played"] == pytest.approx(6.0, abs=0.1)


@pytest.mark.slow
@pytest.mark.fault
def test_nothing_is_lost_when_half_of_a_fleet_vanishes(tmp_path):
    words = ["--agents=50", "--trajectory-s=3", "--steady-s=5", f"--keep={tmp_path}/k"]
    script = [sys.executable, str(BENCHMARKS / "fleet_scale.py")]
    json_file = tmp_path / "figures.json"
    done = subprocess.run([*script, *words, f"--json={json_file}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(json_file.read_text())
    assert found["vanished"] == 24 and found["vanished_held"] > 0
    assert found["results"] == 11 * 12 - 1 + 1, "all rollouts but the one kept, and an evaluation"
    for name in (
        "acknowledged_but_missing",
        "trajectories_missing",
        "committed_twice",
        "done_without_result",
        "of_vanished_not_done",
    ):
        assert found[name] == 0, name
