"""Selection of seeds: against brute force, and what must not change it."""

import itertools
import statistics

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spotlightd.planner.selection import (
    Candidate,
    _contenders,
    _scatter,
    max_variance_split,
    select_seeds,
)

SCORES = st.lists(
    st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1, allow_nan=False),
    min_size=2,
    max_size=12,
)


@given(scores=SCORES, data=st.data())
@settings(deadline=None)
def test_split_equals_brute_force(scores, data):
    size = data.draw(st.integers(1, len(scores)))
    low, variance = max_variance_split(sorted(scores), size)
    best = max(statistics.pvariance(c) for c in itertools.combinations(scores, size))
    assert variance == pytest.approx(best, abs=1e-9)
    kept = sorted(scores)[:low] + sorted(scores)[len(scores) - (size - low) :]
    assert statistics.pvariance(kept) == pytest.approx(best, abs=1e-9)


@given(
    scores=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=30, max_size=80),
    key=st.integers(0, 2**64 - 1),
)
@settings(deadline=None)
def test_many_candidates_are_thinned_to_what_sorting_all_of_them_gives(scores, key):
    scored = [(score, 7919 * i) for i, score in enumerate(scores)]
    everything = sorted((score, _scatter(seed, key), seed) for score, seed in scored)
    assert _contenders(scored, 8, key) == everything[:8] + everything[-8:]


def choose(scores, size=4, controls=1):
    candidates = [Candidate(seed, score) for seed, score in enumerate(scores)]
    return select_seeds(candidates, range(1000, 1100), size, controls, tie_key=7)


@given(order=st.permutations(range(1, 12)), offset=st.floats(-1e6, 1e6))
@settings(deadline=None)
def test_order_and_offset_change_nothing(order, offset):
    scores = [0.1 * (seed % 5) for seed in range(12)]
    plain, _ = choose(scores)
    candidates = [Candidate(0, offset)]
    candidates += [Candidate(seed, scores[seed] + offset) for seed in order]
    moved, _ = select_seeds(candidates, (), 4, 1, tie_key=7)
    if abs(offset) < 1e3:  # beyond, float dust may reorder the ties themselves
        assert {s.seed for s in moved} == {s.seed for s in plain}


def test_extremes_are_chosen_and_controls_kept():
    chosen, informative = choose([0.5, 0.5, 0.0, 0.6, 1.0, 0.9, 0.1])
    assert informative
    assert (chosen[0].seed, chosen[0].role) == (0, "control")
    assert {s.seed for s in chosen[1:]} <= {2, 6, 4, 5}


def test_equal_scores_are_uninformative_and_not_the_lowest_seeds():
    chosen, informative = choose([1.0] * 40, size=8)
    assert not informative
    assert {s.role for s in chosen[1:]} == {"random"}
    assert {s.seed for s in chosen[1:]} != set(range(1, 8))


def test_failed_and_nan_scores_are_dropped_and_fresh_seeds_fill_up():
    chosen, informative = choose([0.2, None, float("nan"), 0.4, None])
    assert not informative
    assert [s.seed for s in chosen] == [0, 3, 1000, 1001]
    assert [s.stale_score for s in chosen] == [0.2, 0.4, None, None]
