"""The planner's decisions during one training phase."""

import random

import msgspec
import pytest

from spotlightd.planner.exploration import Planner, PlannerState
from spotlightd.planner.outcomes import GroupOutcome
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Moment

STEPS = {f"p{i}": {1: 7, 2: 8, 4: 10} for i in range(4)}
FLEET = Spots({"a": Spot(1, 8), "b": Spot(1, 8)})


def make_planner(state=None):
    return Planner(16, 4, 4, 200, seed=1, state=state)


def play(planner, iteration, began=0.0, train_s=20.0, fleet=FLEET, spread=0.2, cost_s=0.2):
    """A training phase in steps of 0.1 s; each agent scores one candidate per `cost_s`."""
    rng = random.Random(iteration)
    exploration = planner.begin(iteration, STEPS, 4, Moment(began, fleet))
    queues = {name: [] for name in fleet}
    busy = dict.fromkeys(fleet, 0.0)
    for tick in range(int(train_s / 0.1)):
        now = began + tick * 0.1
        for name, queue in queues.items():
            if queue and now >= busy[name]:
                request = queue.pop(0)
                planner.scored(exploration, request, rng.gauss(0, spread), name, cost_s, now)
                busy[name] = now + cost_s
        for prompt in planner.next(exploration, Moment(now, fleet, tick * 0.1 / train_s)):
            request = f"{iteration}-{prompt}-{exploration.prompts[prompt].issued}"
            exploration.added(request, prompt, now)
            name = min(queues, key=lambda n: len(queues[n]))
            busy[name] = max(busy[name], now + cost_s) if not queues[name] else busy[name]
            queues[name].append(request)
        exploration.ranking.validate()
        planner.state.times.validate(fleet)
    missed = planner.trained(exploration, Moment(began + train_s, fleet))
    return exploration, missed


def test_the_first_phase_is_measured_and_the_next_ones_are_kept():
    planner = make_planner()
    first, _ = play(planner, 0)
    assert first.plan.candidates is None and "not known yet" in first.plan.reason
    for iteration in range(1, 6):
        exploration, missed = play(planner, iteration, began=100.0 * iteration)
        assert not missed
        scored = sum(p.count for p in exploration.prompts.values())
        assert 0.6 * 200 <= scored <= 200, "two agents, 20 s, 0.2 s each"
        if iteration > 1:  # before, the cost of other step counts is extrapolated from one
            assert exploration.plan.candidates == pytest.approx(scored / 4, rel=0.35)
    assert planner.state.margin.hits == 5


def test_agents_that_leave_change_the_plan_at_once():
    planner = make_planner()
    for iteration in range(3):
        play(planner, iteration, began=100.0 * iteration)
    exploration = planner.begin(3, STEPS, 4, Moment(300.0, FLEET))
    planned = exploration.plan.candidates
    planner.next(exploration, Moment(301.0, Spots({"a": Spot(1, 8)})))
    assert exploration.plan.candidates < 0.7 * planned
    assert ": 1 GPU scores " in exploration.plan.reason
    assert planner.next(exploration, Moment(302.0)) == []
    assert "no spot GPU" in exploration.plan.reason


def test_no_more_is_asked_for_than_the_fleet_holds():
    planner = make_planner()
    exploration = planner.begin(0, STEPS, 4, Moment(0.0, FLEET))
    chosen = planner.next(exploration, Moment(0.0, FLEET))
    assert len(chosen) == 16
    assert {chosen.count(p) for p in STEPS} == {4}
    for number, prompt in enumerate(chosen):
        exploration.added(str(number), prompt, 0.0)
    assert planner.next(exploration, Moment(0.0, FLEET)) == []
    planner.scored(exploration, "3", None, "a", 0.0, 1.0)
    assert len(planner.next(exploration, Moment(1.0, FLEET))) == 1, "a failed one is replaced"


def test_stops_early_where_nothing_is_to_be_gained():
    planner = make_planner()
    play(planner, 0)
    exploration, _ = play(planner, 1, began=100.0, train_s=60.0, spread=0.0)
    # All equal: patience lasts for what the first phase, which had spread, left of it.
    assert all(p.uninformative for p in exploration.prompts.values())
    assert sum(p.count for p in exploration.prompts.values()) < 4 * 70


def outcomes(fidelity, seed=0):
    rng, found = random.Random(seed), []
    for prompt in STEPS:
        stale = [rng.gauss(0, 1) for _ in range(16)]
        fresh = [fidelity * x + (1 - fidelity**2) ** 0.5 * rng.gauss(0, 1) for x in stale]
        flags = tuple(i < 4 for i in range(16))
        found.append(GroupOutcome(prompt, 64, tuple(stale), tuple(fresh), flags, 1.0, 1.0))
    return found


def test_where_scores_predict_nothing_it_explores_less_and_says_so():
    planner = make_planner()
    for iteration in range(12):
        play(planner, iteration, began=100.0 * iteration)
        for tail in planner.tails:
            planner.learn(outcomes(0.05, iteration), tail)
    exploration, _ = play(planner, 12, began=2000.0)
    assert "fidelity below 0.3" in exploration.plan.reason
    assert {p.issued for p in exploration.prompts.values()} == {16}
    for iteration in range(12):
        for tail in planner.tails:
            planner.learn(outcomes(0.9, iteration), tail)
    assert planner.begin(13, STEPS, 4, Moment(3000.0, FLEET)).plan.most == 200, "and recovers"


def test_figures_of_an_iteration():
    planner = make_planner()
    figures = planner.learn(outcomes(0.9), 4)
    assert 0.7 < figures["planner.rho"] < 1
    assert figures["planner.zero_spread_share"] == 0
    assert figures["planner.variance"] > 0 and figures["planner.variance_predicted"] > 0
    assert "planner.mean_shift" in figures and "planner.gain" in figures
    assert "planner.rho" not in planner.learn(outcomes(0.9), None)


def test_what_was_learned_survives_being_stored():
    planner = make_planner()
    for iteration in range(4):
        play(planner, iteration, began=100.0 * iteration)
        planner.learn(outcomes(0.6, iteration), 4)
    stored = msgspec.json.decode(msgspec.json.encode(planner.state), type=PlannerState)
    again = make_planner(stored)
    moment = Moment(900.0, FLEET)
    assert again.begin(9, STEPS, 4, moment).plan == planner.begin(9, STEPS, 4, moment).plan
