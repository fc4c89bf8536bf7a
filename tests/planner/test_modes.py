"""The iteration machine in each of the planner's modes, with a clock and a fleet made up here."""

import msgspec
import pytest

from spotlightd.planner.cycle import Cycle, CycleState
from spotlightd.planner.decisions import (
    AddRequests,
    PhaseBegins,
    Planned,
    Record,
    StartTraining,
    StopRequests,
)
from spotlightd.planner.plan import CyclePlan
from spotlightd.planner.seeds import shorten_tail
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Moment
from spotlightd.planner.training import CommittedResult
from tests.planner.test_cycle import make_cycle, of, run_to_training, score, trained

BANDIT = {"planner.mode": "bandit", "planner.max_candidates": "32"}
FLEET = Spots({"vm-a": Spot(1, 4), "vm-b": Spot(1, 4)})


def make(**flags):
    cycle = make_cycle(**flags)
    cycle.moment = Moment(0.0, FLEET)
    return cycle


def commit(cycle, request, gpu_s=0.1):
    trajectory = "ab" * 32 if request.kind == "rollout" else None
    return cycle.committed(
        CommittedResult(request.request_id, score(request), trajectory, "vm-a", gpu_s)
    )


def explore(cycle, decisions, seconds, began, train_s=None):
    """Score one candidate each 0.1 s for so long; return those scored and unfinished."""
    (add,) = of(decisions, AddRequests)
    queue, done = list(add.requests), []
    for tick in range(int(seconds / 0.1)):
        cycle.moment = Moment(began + tick * 0.1, FLEET, tick * 0.1 / (train_s or seconds))
        if queue:
            done.append(queue.pop(0))
            decisions = commit(cycle, done[-1])
        else:
            decisions = cycle.tick()
        for add in of(decisions, AddRequests):
            queue += add.requests
    cycle.moment = Moment(began + seconds, FLEET)
    return done, queue


def test_the_bandit_adds_candidates_while_training_lasts_and_trains_on_them():
    cycle = make(**BANDIT)
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    (planned,) = of(decisions, Planned)
    assert planned.iteration == 1 and "not known yet" in planned.reason
    done, left = explore(cycle, decisions, 3.0, began=0.0)
    assert 20 <= len(done) <= 31
    assert {(r.kind, r.policy_version, r.iteration) for r in done} == {("explore", 0, 1)}
    decisions = cycle.trained(trained(0))
    stopped = [i for d in of(decisions, StopRequests) for i in d.request_ids]
    assert sorted(stopped) == sorted(r.request_id for r in left)
    (record,) = of(decisions, Record)
    assert record.metrics["planner.overran"] == bool(left)
    explored = {(r.prompt_id, r.seed) for r in done}
    (rollouts,) = of(decisions, AddRequests)
    chosen = sum((r.prompt_id, r.seed) in explored for r in rollouts.requests)
    assert chosen == len(rollouts.requests) == 8


def test_the_second_window_is_kept():
    cycle = make(**BANDIT)
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    explore(cycle, decisions, 4.0, began=0.0)
    decisions = run_to_training(cycle, cycle.trained(trained(0)))
    (record,) = of(decisions, Record)
    assert 0 < record.metrics["planner.rho"] <= 1
    assert record.metrics["planner.variance"] > 0
    assert "seeds for each of 2 prompts" in of(decisions, Planned)[0].reason
    began = cycle.moment.now
    done, left = explore(cycle, decisions, 4.0, began)
    assert left == [] and len(done) >= 10
    (record, *_) = of(cycle.trained(trained(1)), Record)
    assert record.metrics["planner.overran"] == 0
    assert record.metrics["planner.candidates"] >= 4


def test_without_a_spot_gpu_the_bandit_trains_random_seeds():
    cycle = make(**BANDIT)
    cycle.moment = Moment(0.0)
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    assert of(decisions, AddRequests) == []
    assert "no spot GPU" in of(decisions, Planned)[0].reason
    (rollouts,) = of(cycle.trained(trained(0)), AddRequests)
    assert len({r.seed for r in rollouts.requests}) == 8
    assert cycle.state.explored_tail is None


def test_a_restarted_daemon_goes_on_with_what_was_learned_and_explored():
    cycle = make(**BANDIT)
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    explore(cycle, decisions, 10.0, began=0.0)
    decisions = run_to_training(cycle, cycle.trained(trained(0)))
    done, left = explore(cycle, decisions, 1.0, cycle.moment.now, train_s=10.0)
    stored = msgspec.json.decode(msgspec.json.encode(cycle.state), type=CycleState)
    again = Cycle(cycle.plan, stored)
    again.restore(cycle.requests.values(), cycle.results.values())
    again.moment = Moment(9000.0, FLEET)
    assert of(again.trainer_ready(1), StartTraining)
    ours = again.explorer.exploration
    assert ours is not None and ours.plan.tail == stored.tail
    assert sum(p.count for p in ours.prompts.values()) == len(done)
    assert set(ours.in_flight) == {r.request_id for r in left}
    assert again.state.planner == cycle.state.planner
    decisions = commit(again, left[0])
    assert all(r.request_id not in cycle.requests for d in decisions for r in d.requests)


def test_the_critical_path_explores_with_the_weights_that_train():
    cycle = make(**{"planner.mode": "critical_path", "planner.control_fraction": "0.5"})
    decisions = cycle.trainer_ready(0)
    for request in of(decisions, AddRequests)[0].requests:
        decisions = commit(cycle, request)
    assert [d.phase for d in of(decisions, PhaseBegins)] == ["explore"]
    (add,) = of(decisions, AddRequests)
    assert {(r.policy_version, r.iteration) for r in add.requests} == {(0, 0)}
    assert len(add.requests) == 16
    for request in add.requests:
        decisions = commit(cycle, request)
    assert [d.phase for d in of(decisions, PhaseBegins)] == ["rollout"]
    roles = [m.role for g in cycle.state.groups for m in g.members]
    assert {"low", "high"} <= set(roles)
    decisions = run_to_training(cycle, decisions)
    assert of(decisions, AddRequests) == [], "nothing is explored while training lasts"
    (record,) = of(decisions, Record)
    assert record.metrics["staleness.spearman.ocr"] == pytest.approx(1.0)


def test_the_critical_path_is_never_stuck_without_agents():
    cycle = make(**{"planner.mode": "critical_path"})
    decisions = cycle.trainer_ready(0)
    for request in of(decisions, AddRequests)[0].requests:
        decisions = commit(cycle, request)
    commit(cycle, of(decisions, AddRequests)[0].requests[0])
    cycle.moment = Moment(1.0)
    decisions = cycle.tick()
    assert len(of(decisions, StopRequests)[0].request_ids) == 15
    assert [d.phase for d in of(decisions, PhaseBegins)] == ["rollout"]
    assert len(of(decisions, AddRequests)[0].requests) == 8


def test_a_shortened_tail_keeps_the_window_and_the_end():
    sigmas = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.0)
    for tail in (1, 2, 3, 5):
        shortened = shorten_tail(sigmas, (1, 2), tail)
        assert shortened[:4] == sigmas[:4]
        assert len(shortened) == 4 + tail and shortened[-1] == 0.0
        assert list(shortened) == sorted(set(shortened), reverse=True)
    assert shorten_tail(sigmas, (1, 2), 9) == sigmas


def test_explored_requests_carry_the_shortened_schedule():
    cycle = make(**{"planner.mode": "fixed", "planner.tail_steps": "1"})
    plan: CyclePlan = cycle.plan
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    (add,) = of(decisions, AddRequests)
    for request in add.requests:
        end = request.sampler.sde_window[-1] + 1
        assert request.sampler.sigmas[:end] == plan.evaluation(0)[0].sampler.sigmas[:end]
        assert request.sampler.num_steps <= end + 1
