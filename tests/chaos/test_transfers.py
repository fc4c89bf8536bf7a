"""A short scene of `tests.chaos.transfers`: receivers and the source are killed in mid-transfer."""

import pytest

from tests.chaos.transfers import LIARS, play


@pytest.mark.fault
def test_transfers_survive_kills_and_name_liars(tmp_path):
    scene = play(tmp_path, kills=10, seed=3, limit_s=100.0)
    assert scene.problems == []
    assert scene.kills.total() >= 10 and scene.rounds >= 1
    assert set(scene.named) == set(LIARS)
