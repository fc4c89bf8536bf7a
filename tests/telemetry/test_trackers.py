"""Trackers are fed from the store, each figure once, by a process of its own."""

import json
import logging
import os
import signal
import subprocess
import sys
import types

import pytest

from spotlightd.errors import InputError
from spotlightd.telemetry.feed import Feed
from spotlightd.telemetry.trackers import open_tracker
from tests.control.runs import WORDS, write_run


class Seen:
    def __init__(self):
        self.scalars_seen, self.images = {}, []

    def scalars(self, iteration, values):
        for name, value in values.items():
            assert (iteration, name) not in self.scalars_seen
            self.scalars_seen[iteration, name] = value

    def image(self, iteration, name, png):
        assert png.startswith(b"\x89PNG")
        self.images.append((iteration, name))

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "state", iterations=20)


def telemetry(folder):
    command = [sys.executable, "-m", "spotlightd.telemetry", str(folder)]
    return [*command, "--tracker", "tensorboard"]


def test_everything_is_shown_once_also_by_a_second_process(folder, tmp_path):
    first, second = Seen(), Seen()
    feed = Feed(folder, tmp_path / "cursor.json", "ocr")
    shown = feed.feed([first])
    assert shown == len(first.scalars_seen) == 20 * 13 + 6
    assert first.scalars_seen[19, "planner.rho"] == pytest.approx(0.895)
    assert len(first.images) == 16 and first.images[0] == (0, f"held_out/0 {WORDS[0]}")
    feed.close()
    again = Feed(folder, tmp_path / "cursor.json", "ocr")
    assert again.feed([second]) == 0 and (second.scalars_seen, second.images) == ({}, [])
    again.close()


def test_tensorboard_reads_what_the_command_wrote(folder, tmp_path):
    subprocess.run([*telemetry(folder), "--out", str(tmp_path)], check=True, timeout=60)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "words"))
    events.Reload()
    points = events.Scalars("control/ocr")
    assert [p.step for p in points] == list(range(20)) and points[0].value == pytest.approx(0.4)
    assert len(events.Tags()["images"]) == 8


def test_it_follows_until_it_is_told_to_end(folder, tmp_path):
    process = subprocess.Popen(
        [*telemetry(folder), "--out", str(tmp_path), "--follow"], stderr=subprocess.DEVNULL
    )
    cursor = tmp_path / "tensorboard.cursor.json"
    try:
        while not cursor.exists():
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert json.loads(cursor.read_text())["metric"] > 0


def test_a_tracker_that_is_not_installed_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="pip install wandb"):
        open_tracker("wandb", tmp_path, "run", {})


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_both_others_get_the_calls_that_they_know(name, folder, tmp_path, monkeypatch):
    calls = []
    module = types.ModuleType(name)
    module.init = lambda **settings: calls.append(("init", settings["name"], settings["config"]))
    module.log = lambda values, step: calls.append(("log", step, values))
    module.Image = lambda picture: ("image", picture.size)
    module.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, name, module)
    tracker = open_tracker(name, tmp_path, "words", {"seed": 1})
    feed = Feed(folder, tmp_path / "cursor.json", "ocr")
    feed.feed([tracker])
    feed.close()
    tracker.close()
    assert calls[0] == ("init", "words", {"seed": 1}) and calls[-1] == ("finish",)
    assert ("log", 0, {"held_out/0 LIGHT": ("image", (128, 32))}) in calls


def test_the_daemon_imports_no_tracker():
    script = (
        "import sys, spotlightd.main\n"
        "print(*sorted({'tensorboard', 'wandb', 'trackio', 'PIL', 'grpc'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr
