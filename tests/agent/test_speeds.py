"""What an agent believes and learns of its degrees."""

import pytest

from agent.speeds import TRIAL_STEPS, Speeds
from spotlightd.dit.degrees import PUBLIC_CURVE, plan

SIZE = (32, 128)


@pytest.fixture
def speeds(tmp_path):
    made = Speeds(tmp_path / "speeds.json", "model")
    for _ in range(TRIAL_STEPS):
        made.observe(SIZE, 1, 1.0)
    return made


def test_what_was_never_tried_is_believed_and_one_trial_corrects_it(speeds):
    left = [100.0]
    believed = speeds.curve(SIZE, 2)
    assert believed.at(2) == PUBLIC_CURVE.at(2)
    assert plan(left, 2, believed).groups[0].degree == 2
    # Two workers that take longer than one: the first step is slower still.
    ended = [speeds.observe(SIZE, 2, step_s) for step_s in (9.0, 1.25, 1.3)]
    assert ended == [False, False, True]
    known = speeds.curve(SIZE, 2)
    assert known.at(2) == pytest.approx(0.8)
    assert plan(left, 2, known).groups[0].degree == 1


def test_after_its_trial_a_degree_has_a_moving_average(speeds):
    assert not speeds.observe(SIZE, 1, 2.0)
    assert speeds.step_s(SIZE) == pytest.approx(1.2)


def test_a_degree_that_the_file_knows_is_not_tried_again(speeds, tmp_path):
    for _ in range(TRIAL_STEPS):
        speeds.observe(SIZE, 2, 0.5)
    speeds.save()
    again = Speeds(tmp_path / "speeds.json", "model")
    assert again.curve(SIZE, 2).at(2) == 2.0
    assert not any(again.observe(SIZE, 2, 0.5) for _ in range(2 * TRIAL_STEPS))
    other = Speeds(tmp_path / "speeds.json", "another model")
    assert other.step_s(SIZE) is None
