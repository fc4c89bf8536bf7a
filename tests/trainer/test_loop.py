"""The trainer's loop on a scripted link: updates that are asked for twice, and wrong ones."""

from collections import deque
from pathlib import Path

import pytest
import zmq

from spotlightd.config import load
from spotlightd.errors import SpotlightError
from spotlightd.models import EMBEDDED_DIR
from spotlightd.trainer.actions import Actions
from spotlightd.trainer.crew import Crew
from spotlightd.trainer.loop import TrainerLoop
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.wire import messages as m
from spotlightd.wire import training


class ScriptedLink:
    """Hands out messages one at a time; SIGTERM after the last."""

    def __init__(self, messages):
        self._context = zmq.Context()
        self.socket, self._far = (self._context.socket(zmq.PAIR) for _ in range(2))
        self._far.bind("inproc://link")
        self.socket.connect("inproc://link")
        # Something to read is always there, so that no poll waits.
        self._far.send(b"")
        self.messages = deque([*messages, m.Stop()])
        self.sent = []
        self._turn = False

    def receive(self):
        self._turn = not self._turn
        return (self.messages.popleft(), []) if self._turn and self.messages else None

    def send(self, message, frames=()):
        self.sent.append(message)

    def all(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]

    def close(self):
        self.socket.close()
        self._far.close()
        self._context.term()


@pytest.fixture
def run(rolled, tmp_path: Path):
    """Run a loop that holds version 0 through messages; return the link."""
    links = []

    def play(*messages):
        flags = {"store.state_dir": f'"{tmp_path}"', "run.trainer_rolls_out": "false"}
        config, _ = load(None, flags, {})
        settings = TrainerSettings(config, str(tmp_path), str(EMBEDDED_DIR), "", "", "", -1)
        link = ScriptedLink(messages)
        links.append(link)
        TrainerLoop(settings, Crew(Actions(settings, rolled.policy)), link, 0).run()
        return link

    yield play
    for link in links:
        link.close()


def test_an_update_that_is_asked_for_twice_is_done_once_and_told_twice(run, rolled, tmp_path):
    train = rolled.message([[0.1, 0.9, 0.4], [0.2, 0.7, 0.3]])
    link = run(train, train)
    first, second = link.all(training.Trained)
    assert first == second and first.policy_version == 1
    folders = {path.name for path in (tmp_path / "weights").iterdir()}
    assert folders == {"1"}


def test_a_trainer_that_the_daemon_has_left_behind_starts_again(run, rolled):
    train = training.Train(3, 3, rolled.message([[0.1, 0.9]]).groups)
    with pytest.raises(SpotlightError, match="asked to train version 3, holding 0"):
        run(train)
