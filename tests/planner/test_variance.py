"""The known part of the planner, against Monte Carlo."""

import itertools
import random
import statistics

import pytest

from spotlightd.planner.selection import max_variance_split
from spotlightd.planner.variance import contrast, group_gain


def simulated(candidates, kept, rounds=1000):
    """w(n, k) with the daemon's own selection."""
    rng = random.Random(1)
    selected = unselected = 0.0
    for _ in range(rounds):
        scores = sorted(rng.gauss(0, 1) for _ in range(candidates))
        selected += max_variance_split(scores, kept)[1]
        unselected += statistics.pvariance(rng.sample(scores, kept))
    return selected / unselected


@pytest.mark.parametrize(
    ("candidates", "kept"), [(32, 16), (64, 16), (48, 24), (96, 24), (36, 12), (180, 12)]
)
def test_contrast_agrees_with_monte_carlo(candidates, kept):
    assert contrast(candidates, kept) == pytest.approx(simulated(candidates, kept), rel=0.08)


def test_contrast_is_one_where_nothing_is_left_to_select_and_grows_ever_more_slowly():
    assert contrast(16, 16) == contrast(3, 16) == 1
    gains = [contrast(n + 1, 16) - contrast(n, 16) for n in range(16, 400)]
    assert all(later < earlier for earlier, later in itertools.pairwise(gains))
    assert gains[-1] > 0


def test_control_seeds_and_bad_ranking_cost_variance():
    best = group_gain(64, 16, 0, 1.0)
    assert best == contrast(64, 16)
    assert 1 < group_gain(64, 16, 4, 1.0) < best
    assert group_gain(64, 16, 4, 0.5) - 1 == pytest.approx((group_gain(64, 16, 4, 1.0) - 1) / 4)
    assert group_gain(64, 16, 4, 0.0) == 1
