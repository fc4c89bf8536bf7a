"""Several scorer processes side by side, and what happens when one dies."""

import signal

import numpy as np
import pytest

from spotlightd.dit.png import encode_png
from spotlightd.errors import SpotlightError
from spotlightd.rewards.pool import Pool, split
from spotlightd.rewards.scorer import decode_frames, over_frames
from spotlightd.rewards.scoring import Outcome
from spotlightd.wire.messages import FrameSpec
from spotlightd.wire.rewards import RewardOptions
from spotlightd.wire.worker import Score, ScoreItem

SHADES = (0, 60, 120, 180, 240)


def batch(processes=2, rewards=("grain", "jpeg_size")):
    pngs = [encode_png(np.full((16, 16, 3), shade, np.uint8)) for shade in SHADES]
    items = tuple(ScoreItem(f"r{shade}", "") for shade in SHADES)
    specs = tuple(FrameSpec("image", len(png)) for png in pngs)
    return Score(items, rewards, specs, RewardOptions(processes=processes)), pngs


@pytest.fixture
def pool():
    pool = Pool()
    yield pool
    pool.close()


def test_a_batch_is_dealt_out_in_turn():
    message, pngs = batch()
    parts = split(message, pngs)
    assert [[i.request_id for i in part.message.items] for part in parts] == [
        ["r0", "r120", "r240"], ["r60", "r180"],
    ]  # fmt: skip
    assert [part.frames for part in parts] == [pngs[::2], pngs[1::2]]
    assert {part.message.options.processes for part in parts} == {1}
    assert len(split(*batch(processes=9))) == len(SHADES)


@pytest.mark.fault
def test_scores_come_back_in_order_and_survive_the_death_of_a_process(pool):
    message, pngs = batch()
    first, version = pool.score(message, pngs)
    assert [item.request_id for item in first] == [item.request_id for item in message.items]
    assert all(item.error == "" and set(item.scores) == {"grain", "jpeg_size"} for item in first)
    pool._leaves[0].process.send_signal(signal.SIGKILL)
    pool._leaves[0].process.wait(10)
    again, same_version = pool.score(message, pngs)
    assert again == first and version == same_version != ""


def test_a_reward_that_cannot_be_scored_ends_the_pool_with_a_reason(pool):
    with pytest.raises(SpotlightError, match=r"needs rewards.http_url"):
        pool.score(*batch(rewards=("http",)))


def test_a_videos_frames_all_count():
    video = np.stack([np.full((8, 8, 3), shade, np.uint8) for shade in (0, 90, 255)])
    frames = decode_frames(encode_png(video))
    assert [int(frame.mean()) for frame in frames] == [0, 90, 255]
    scored = [Outcome({"ocr": value}, text, "") for value, text in ((1.0, "A"), (0.0, ""))]
    assert over_frames(scored) == Outcome({"ocr": 0.5}, "A | ", "")
    failed = Outcome({}, "", "not read")
    assert over_frames([scored[0], failed]) is failed
