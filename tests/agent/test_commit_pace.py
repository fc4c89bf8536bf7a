"""How often state is committed, by what that costs."""

import pytest

from agent.commit_pace import LEAST_COMMITS, MAX_EVERY, CommitPace


def after(share: float, commits: int = 50) -> CommitPace:
    pace = CommitPace(None)
    for _ in range(commits):
        pace.observe(share * 0.3, 0.3)
    return pace


@pytest.mark.parametrize(
    ("share", "every"), [(0.0, 1), (0.009, 1), (0.015, 2), (0.042, 5), (3.0, MAX_EVERY)]
)
def test_a_commit_costs_at_most_a_hundredth_of_the_steps_between(share, every):
    pace = after(share)
    assert pace.every == every
    assert pace.cost_share == pytest.approx(share)


def test_every_step_is_committed_until_the_cost_is_known():
    assert after(0.5, LEAST_COMMITS - 1).every == 1


def test_one_slow_disk_write_changes_little():
    pace = after(0.005)
    pace.observe(0.03, 0.3)
    assert pace.every <= 3
    for _ in range(30):
        pace.observe(0.005 * 0.3, 0.3)
    assert pace.every == 1


@pytest.mark.parametrize("fixed", [0, 1, 7])
def test_a_configured_interval_stands(fixed):
    pace = CommitPace(fixed)
    for _ in range(20):
        pace.observe(1.0, 0.1)
    assert pace.every == fixed
