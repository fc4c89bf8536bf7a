"""Which of a group's rollouts train, where not all of them do."""

import itertools
import statistics

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from spotlightd.planner.cycle import Cycle, CycleState
from spotlightd.planner.decisions import AddRequests, Record, Reopen, StartTraining
from spotlightd.planner.selection import most_contrasting
from spotlightd.wire.training import Damaged
from tests.planner.test_cycle import commit, make_cycle, of, run_to_training, score

REWARDS = st.lists(
    st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1, allow_nan=False), min_size=2, max_size=10
)


@given(rewards=REWARDS, size=st.integers(2, 10))
@settings(deadline=None)
def test_what_trains_spreads_as_much_as_any_subset_of_its_size(rewards, size):
    seeds = [7919 * (i + 1) for i in range(len(rewards))]
    places = most_contrasting(rewards, seeds, size, tie_key=5)
    size = min(size, len(rewards))
    assert places == sorted(set(places))
    assert len(places) == size
    best = max(statistics.pvariance(c) for c in itertools.combinations(rewards, size))
    assert statistics.pvariance([rewards[i] for i in places]) == pytest.approx(best, abs=1e-9)


@given(order=st.permutations(range(8)))
@settings(deadline=None)
def test_the_order_in_which_rollouts_came_changes_nothing(order):
    rewards = [1.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.5, 0.0]
    plain = {i for i in most_contrasting(rewards, range(8), 4, tie_key=3)}
    places = most_contrasting([rewards[i] for i in order], order, 4, tie_key=3)
    assert {order[i] for i in places} == plain


def of_three(**flags: str) -> Cycle:
    return make_cycle(**({"planner.train_size": "3"} | flags))


def the_train(decisions):
    (start,) = of(decisions, StartTraining)
    return start.message


def test_the_trainer_gets_the_most_contrasting_rollouts_of_each_group():
    cycle = of_three()
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    message = the_train(decisions)
    rolled = [r for r in cycle.requests.values() if r.kind == "rollout"]
    for group in message.groups:
        rewards = [score(r)["ocr"] for r in rolled if r.prompt_id == group.prompt_id]
        assert len(rewards) == 4
        best = max(statistics.pvariance(c) for c in itertools.combinations(rewards, 3))
        trains = [sample.reward for sample in group.samples]
        assert statistics.pvariance(trains) == pytest.approx(best)
    (record,) = of(decisions, Record)
    assert record.metrics["planner.trained"] == 6
    assert record.metrics["planner.variance_trained"] > record.metrics["planner.variance"]
    means = statistics.fmean(score(r)["ocr"] for r in rolled)
    assert record.metrics["rollout.ocr"] == pytest.approx(means), "all are measured"


def test_a_restarted_daemon_trains_on_the_same_ones():
    cycle = of_three()
    message = the_train(run_to_training(cycle, cycle.trainer_ready(0)))
    state = msgspec.json.decode(msgspec.json.encode(cycle.state), type=CycleState)
    again = Cycle(cycle.plan, state)
    again.restore(reversed(cycle.requests.values()), reversed(cycle.results.values()))
    repeated = the_train(again.trainer_ready(0))
    chosen = [{s.request_id for s in group.samples} for group in message.groups]
    assert [{s.request_id for s in group.samples} for group in repeated.groups] == chosen


def test_damage_among_those_that_train_is_mended_and_the_same_ones_train():
    cycle = of_three()
    message = the_train(run_to_training(cycle, cycle.trainer_ready(0)))
    lost = message.groups[1].samples[1].request_id
    decisions = cycle.damaged(Damaged(0, (lost,), "a blob is damaged"))
    assert of(decisions, Reopen)[0].request_ids == [lost]
    (add,) = of(decisions, AddRequests)
    assert the_train(commit(cycle, add.requests[0])) == message


def test_a_group_that_lost_rollouts_for_good_trains_on_what_there_is():
    cycle = of_three(**{"planner.mode": "off", "planner.train_size": "4"})
    decisions = cycle.trainer_ready(0)
    for request in of(decisions, AddRequests)[0].requests:
        decisions = commit(cycle, request)
    requests = of(decisions, AddRequests)[0].requests
    for request in requests[1:]:
        decisions = commit(cycle, request)
    (replacement,) = cycle.given_up(requests[0].request_id)
    message = the_train(commit(cycle, replacement.requests[0]))
    assert [len(group.samples) for group in message.groups] == [4, 4]
    assert requests[0].request_id not in {s.request_id for g in message.groups for s in g.samples}
