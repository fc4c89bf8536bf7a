"""Finish before the deadline or commit at once: decisions, played out in virtual time."""

import hypothesis.strategies as st
from hypothesis import given, settings

from agent.notice_race import CAUTION, FINISH_S, RESERVE_S, race
from spotlightd.dit.degrees import PUBLIC_CURVE, Curve, Group

ALONE = (Group(1, (0,)), Group(1, (1,)))


def decide(left, now=ALONE, workers=8, curve=PUBLIC_CURVE, step_s=1.0, deadline_s=119.0):
    return race(left, now, workers, curve, step_s, 0.1, deadline_s)


def ends_at(groups, left, curve, step_s, slower):
    """Denoise step by step, members of a group in turn; return when the last image is done."""
    latest = 0.0
    for group in groups:
        rest, at = {i: left[i] for i in group.images}, 0.0
        while rest:
            at += len(rest) * slower * step_s / curve.at(group.degree)
            rest = {i: steps - 1 for i, steps in rest.items() if steps > 1}
        latest = max(latest, at)
    return latest


def test_what_ends_in_time_stays_as_it_is():
    decided = decide([40.0, 60.0])
    assert decided.finish and decided.groups == ()
    assert decided.reserve_s == RESERVE_S + 2.0


def test_wider_groups_finish_what_degree_1_would_not():
    decided = decide([100.0, 100.0])
    assert decided.finish and [group.degree for group in decided.groups] == [4, 4]
    assert "groups of 4+4" in decided.reason and "125 s" in decided.reason


def test_what_no_degree_finishes_is_committed_at_once():
    decided = decide([300.0, 300.0])
    assert not decided.finish
    assert "375 s" in decided.reason


def test_too_few_seconds_are_never_gambled_with():
    assert not decide([1.0, 1.0], step_s=0.01, deadline_s=RESERVE_S).finish
    assert not decide([1.0, 1.0], step_s=0.01, deadline_s=1.0).finish


def test_a_degree_that_was_not_measured_is_not_counted_on():
    assert not decide([100.0, 100.0], curve=Curve.of({1: 1.0})).finish


@settings(max_examples=150, deadline=None)
@given(
    left=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    workers=st.sampled_from((1, 2, 4, 8)),
    step_s=st.floats(0.05, 3.0),
    deadline_s=st.floats(0.0, 130.0),
    slower=st.floats(0.5, CAUTION),
)
def test_in_virtual_time_what_it_promises_is_finished_before_the_reserve(
    left, workers, step_s, deadline_s, slower
):
    steps = [float(n) for n in left]
    images = [tuple(range(n, len(left), workers)) for n in range(min(workers, len(left)))]
    now = tuple(Group(1, group) for group in images)
    decided = race(steps, now, workers, PUBLIC_CURVE, step_s, 0.1, deadline_s)
    if decided.finish:
        groups = decided.groups or now
        assert decided.reserve_s >= RESERVE_S
        assert sorted(i for group in groups for i in group.images) == list(range(len(left)))
        assert sum(group.degree for group in groups) <= workers
        # Moved once, slowed down as far as it is cautious of, and scored.
        took_s = 0.1 + ends_at(groups, steps, PUBLIC_CURVE, step_s, slower) + FINISH_S
        assert took_s <= deadline_s - decided.reserve_s + 0.1 + 1e-6
