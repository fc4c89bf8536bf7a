"""What the planner learns: fidelity, durations, spreads, harm."""

import math
import random

import pytest

from spotlightd.planner.allocation import PATIENCE, PromptProgress, Spreads, next_prompt
from spotlightd.planner.bandit import Arms, Offer, choose, tails_of
from spotlightd.planner.estimators import Line, Running
from spotlightd.planner.fidelity import PRIOR_RHO, Fidelity
from spotlightd.planner.outcomes import GroupOutcome, Realised
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Margin, Moment, Times, TrainingWindow


def pairs(rho, count, rng, keep=None):
    """(stale, fresh) of `count` seeds, or of the `keep` extremes by stale score."""
    rows = []
    for _ in range(count):
        x = rng.gauss(0, 1)
        rows.append((x, rho * x + math.sqrt(1 - rho**2) * rng.gauss(0, 1)))
    rows.sort()
    if keep:
        rows = rows[: keep // 2] + rows[-keep // 2 :]
    return [x for x, _ in rows], [y for _, y in rows]


@pytest.mark.parametrize("keep", [None, 16])
@pytest.mark.parametrize("rho", [0.4, 0.7, 0.95])
def test_fidelity_is_that_of_unselected_seeds_though_extremes_correlate_better(rho, keep):
    rng, belief = random.Random(2), Fidelity()
    for _ in range(60):
        belief.observe(*pairs(rho, 64, rng, keep))
    assert belief.rho() == pytest.approx(rho, abs=0.03)
    assert belief.error() < 0.03
    assert belief.rho(2.0) > belief.rho() > belief.rho(-2.0)


def test_an_arm_that_is_not_tried_returns_to_its_prior():
    rng, arms = random.Random(2), Arms()
    arms.belief(4, 1).observe(*pairs(0.1, 200, rng))
    low = arms.belief(4, 1).rho()
    for _ in range(40):
        arms.forget()
    assert low < 0.35 < arms.belief(4, 1).rho() < PRIOR_RHO + 0.05
    assert arms.belief(4, 1).error() > Fidelity().error() * 0.9


def test_the_arm_that_ranks_well_is_taken_unless_a_cheap_one_leaves_time_for_far_more():
    rng, arms = random.Random(3), Arms()
    for _ in range(20):
        arms.belief(1, 1).observe(*pairs(0.5, 64, rng))
        arms.belief(8, 1).observe(*pairs(0.95, 64, rng))
    few, many = Offer(1, 5, 40), Offer(1, 5, 4000)
    full = Offer(8, 12, 32)
    chosen = [choose([few, full], arms, 1, 16, 4, (1, i)).tail for i in range(50)]
    assert set(chosen) == {8}
    assert choose([many, Offer(8, 12, 17)], arms, 1, 16, 4, (1, 1)).tail == 1
    assert choose([Offer(1, 5, 12), Offer(8, 12, 9)], arms, 1, 16, 4, (1, 1)).tail == 1


def test_untried_arms_are_tried():
    rng, arms = random.Random(3), Arms()
    arms.belief(4, 1).observe(*pairs(0.75, 300, rng))
    offers = [Offer(tail, 6 + tail, 60) for tail in tails_of(4)]
    assert tails_of(4) == [1, 2, 4]
    assert {choose(offers, arms, 1, 16, 4, (1, i)).tail for i in range(100)} == {1, 2, 4}


def test_estimates_follow_what_drifts():
    running = Running()
    for value in [1.0] * 50 + [3.0] * 20:
        running.observe(value, 0.8)
    assert running.mean == pytest.approx(3.0, abs=0.05)
    line = Line()
    assert line.predict(5) is None
    for _ in range(20):
        line.observe(10, 2.0, 0.99)
    assert line.predict(5)[0] == pytest.approx(1.0, rel=0.01), "one abscissa: proportional"
    for _ in range(200):
        line.observe(10, 2.0, 0.99)
        line.observe(4, 1.4, 0.99)
    mean, error = line.predict(7)
    assert mean == pytest.approx(1.7, abs=0.03) and error < 0.1


def test_the_fleets_rate_counts_who_is_there_and_how_fast_each_is():
    times = Times()
    for _ in range(40):
        times.committed("slow", 10, 2.0)
        times.committed("fast", 10, 1.0)
    both = times.rate(Spots({"slow": Spot(1, 8), "fast": Spot(1, 8)}), 10)
    one = times.rate(Spots({"fast": Spot(1, 8)}), 10)
    assert both == pytest.approx(1.5, rel=0.1)
    assert one == pytest.approx(1.0, rel=0.1)
    assert times.rate(Spots(), 10) == 0


def test_a_newcomer_is_judged_by_its_heartbeats_until_it_commits():
    times = Times()
    times.heartbeat("a", 100, 10.0)
    times.heartbeat("new", 100, 20.0)
    assert times.speed("new") == pytest.approx(0.5)
    assert times.speed("unknown") == 1.0


def test_the_windows_end_comes_from_earlier_phases_then_from_the_trainers_pace():
    times = Times()
    first = TrainingWindow(0.0, 4)
    assert first.end(times, Moment(1.0)) is None
    for at in range(1, 10):
        first.observe(Moment(at, Spots(), at / 10))
    times.trained(first, 11.0)
    assert times.publish.mean == pytest.approx(1.0)
    window = TrainingWindow(100.0, 2)
    assert window.end(times, Moment(100.0))[0] == pytest.approx(105.5), "half as many groups"
    for at in range(2, 7):
        window.observe(Moment(100.0 + at, Spots(), at / 20))
    end, error = window.end(times, Moment(106.0))
    assert end == pytest.approx(121.0), "the trainer turns out slow"
    assert 0 < error < 3


def test_misses_settle_at_their_target_whatever_the_times_are():
    rng, margin = random.Random(5), Margin()
    missed = []
    for _ in range(4000):
        missed.append(rng.expovariate(1.0) > margin.deviations)
        margin.settle(missed[-1])
    assert 0.005 < sum(missed[500:]) / 3500 < 0.015
    assert margin.misses + margin.hits == 4000


def progress(name, variance, issued, scores=()):
    prompt = PromptProgress(name, 8, variance, PATIENCE * 16, issued)
    for score in scores:
        prompt.score(score)
    return prompt


def test_every_prompt_gets_its_group_before_any_gets_more():
    prompts = [progress("a", 1.0, 16), progress("b", 0.01, 15)]
    assert next_prompt(prompts, 16, 4, 0.9, 100)[0].prompt_id == "b"


def test_then_the_one_that_gains_most():
    prompts = [progress("a", 0.04, 16), progress("b", 0.02, 16)]
    order = []
    for _ in range(60):
        prompt, gain = next_prompt(prompts, 16, 4, 0.9, 100)
        assert gain > 0
        prompt.issued += 1
        order.append(prompt.prompt_id)
    assert order[0] == "a"
    assert order.count("a") > 1.5 * order.count("b") > 0


def test_scores_overrule_what_was_remembered():
    scores = [0.0, 1.0] * 8
    prompts = [progress("a", 0.05, 16, [0.4, 0.41] * 8), progress("b", 0.05, 16, scores)]
    assert next_prompt(prompts, 16, 4, 0.9, 100)[0].prompt_id == "b"


def test_a_prompt_of_equal_scores_gets_more_until_its_patience_ends():
    flat = progress("flat", 0.01, 16, [1.0] * 16)
    other = progress("other", 0.04, 32, [0.0, 0.4] * 16)
    assert next_prompt([flat, other], 16, 4, 0.9, 1000)[0] is flat
    while flat.count < PATIENCE * 16:
        flat.score(1.0)
    assert flat.uninformative
    assert next_prompt([flat, other], 16, 4, 0.9, 1000)[0] is other
    spreads = Spreads()
    spreads.explored(flat)
    assert spreads.start("flat", 8, 16).patience == 16, "not again at once"
    flat.score(0.5)
    spreads.explored(flat)
    assert spreads.start("flat", 8, 16).patience == PATIENCE * 16


def outcome(group, controls):
    fresh = (*controls, *group)
    flags = (True,) * len(controls) + (False,) * len(group)
    return GroupOutcome("p", 32, (None,) * len(fresh), fresh, flags, 1.0, 1.0)


def test_harm_is_what_controls_show_with_confidence():
    rng = random.Random(1)
    good, bad, same = Realised(), Realised(), Realised()
    for _ in range(40):
        controls = tuple(rng.gauss(0, 1) for _ in range(4))
        good.observe([outcome([-2.0, 2.0] * 6, controls)])
        bad.observe([outcome([rng.gauss(0, 0.1) for _ in range(12)], controls)])
        same.observe([outcome([rng.gauss(0, 1) for _ in range(12)], controls)])
    assert not good.harms() and good.gain() > 2
    assert bad.harms() and bad.gain() < 1
    assert not same.harms()
