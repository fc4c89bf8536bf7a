"""The scorer as a process."""

import subprocess
import sys

import numpy as np
import pytest

from spotlightd.childproc import Channel, spawn
from spotlightd.dit.png import encode_png
from spotlightd.wire import pipe
from spotlightd.wire.messages import FrameSpec
from spotlightd.wire.worker import Exit, Fatal, Score, ScoreItem, Scores
from tests.rewards.test_rewards import picture


@pytest.fixture
def scorer():
    process, sock = spawn("spotlightd.rewards.scorer")
    channel = Channel(sock, receives=pipe.FROM_SCORER, sends=pipe.TO_SCORER)
    yield process, channel
    channel.close()
    process.wait(10)


def ask(channel, words, images, rewards=("ocr", "ocr_ctc")):
    items = tuple(ScoreItem(f"r{i}", word) for i, word in enumerate(words))
    channel.send(Score(items, rewards, tuple(FrameSpec("image", len(i)) for i in images)), images)
    message, _ = channel.receive(30)
    return message


def test_images_become_scores_and_a_bad_one_fails_alone(scorer):
    process, channel = scorer
    good = encode_png(picture("EXIT"))
    colour = encode_png(np.repeat(picture("TAXI"), 3, axis=2))
    answer = ask(channel, ["EXIT", "TAXI", "OPEN"], [good, colour, b"no image"])
    assert isinstance(answer, Scores)
    assert [item.scores.get("ocr") for item in answer.items] == [1.0, 1.0, None]
    assert "not a PNG image" in answer.items[2].error
    channel.send(Exit())
    assert process.wait(10) == 0


def test_an_unknown_reward_is_fatal_with_a_reason(scorer):
    process, channel = scorer
    answer = ask(channel, ["A"], [encode_png(picture("A"))], rewards=("orc",))
    assert isinstance(answer, Fatal) and "did you mean 'ocr'" in answer.reason
    assert process.wait(10) == 78


def test_it_ends_when_its_parent_hangs_up(scorer):
    process, channel = scorer
    channel.close()
    assert process.wait(10) == 0


def test_it_loads_no_torch():
    code = "import sys, spotlightd.rewards.scorer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
