"""A whole run of the iteration machine, with results made up by the test."""

import pytest

from spotlightd.config import load
from spotlightd.planner.cycle import Cycle
from spotlightd.planner.decisions import (
    AddRequests,
    PhaseBegins,
    Record,
    Reopen,
    StartTraining,
    StopRequests,
)
from spotlightd.planner.plan import CyclePlan, PromptSpec
from spotlightd.planner.training import CommittedResult
from spotlightd.wire.sampling import AVERAGES_FROM
from spotlightd.wire.training import Damaged, Trained

FLAGS = {
    "planner.mode": "fixed",
    "run.iterations": "3",
    "planner.prompts_per_iteration": "2",
    "planner.group_size": "4",
    "planner.candidates": "8",
    "run.evaluate_seeds": "1",
    "run.evaluate_prompts": "2",
}


def make_cycle(**flags: str) -> Cycle:
    flags = FLAGS | flags
    if flags["planner.mode"] not in ("fixed", "critical_path"):
        del flags["planner.candidates"]
    config, _ = load(None, flags, {})
    prompts = [PromptSpec(f"p{i}", f'sign "W{i}"', f"W{i}") for i in range(5)]
    held_out = [PromptSpec(f"h{i}", f'sign "H{i}"', f"H{i}") for i in range(3)]
    return Cycle(CyclePlan(config, (1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.0), prompts, held_out))


def score(request) -> dict[str, float]:
    value = (request.seed % 1000) / 1000
    return {"ocr": value, "ocr_ctc": value / 2, "grain": 3.0}


def commit(cycle: Cycle, request):
    trajectory = "ab" * 32 if request.kind == "rollout" else None
    return cycle.committed(
        CommittedResult(request.request_id, score(request), trajectory, "agent-1")
    )


def of(decisions, kind):
    return [d for d in decisions if isinstance(d, kind)]


def run_to_training(cycle: Cycle, decisions):
    """Commit everything that is asked for until training starts."""
    while not of(decisions, StartTraining):
        (add,) = of(decisions, AddRequests)
        for request in add.requests:
            decisions = commit(cycle, request)
    return decisions


def trained(iteration: int) -> Trained:
    return Trained(iteration, iteration + 1, {"loss": 0.1}, (), 1e-3, 2.0)


def test_a_run_evaluates_trains_and_evaluates(capsys):
    cycle = make_cycle()
    decisions = cycle.trainer_ready(0)
    phases = []
    for iteration in range(3):
        decisions = run_to_training(cycle, decisions)
        (start,) = of(decisions, StartTraining)
        assert start.message.policy_version == iteration
        assert [len(g.samples) for g in start.message.groups] == [4, 4]
        requests = [g.request for g in start.message.groups]
        assert {r.policy_version for r in requests} == {iteration}
        for add in of(decisions, AddRequests):
            assert {(r.kind, r.policy_version) for r in add.requests} == {("explore", iteration)}
            for request in add.requests:
                assert commit(cycle, request) == []
        decisions = cycle.trained(trained(iteration))
        phases += [d.phase for d in of(decisions, PhaseBegins)]
    (add,) = of(decisions, AddRequests)
    for request in add.requests:
        decisions = commit(cycle, request)
    assert phases == ["rollout", "rollout", "evaluate"]
    assert cycle.state.phase == "finished"
    (record,) = of(decisions, Record)
    assert record.metrics["held_out.ocr"] > 0


def test_every_group_trains_on_its_own_versions_seeds_chosen_by_the_last_version():
    cycle = make_cycle()
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    (explore,) = of(decisions, AddRequests)
    for request in explore.requests:
        commit(cycle, request)
    decisions = cycle.trained(trained(0))
    (rollouts,) = of(decisions, AddRequests)
    explored = {(r.prompt_id, r.seed): score(r)["ocr_ctc"] for r in explore.requests}
    assert all((r.prompt_id, r.seed) in explored for r in rollouts.requests)
    windows = {(r.prompt_id, r.sampler.sde_window) for r in rollouts.requests}
    assert len(windows) == 2, "a rollout group shares its window"
    roles = [m.role for g in cycle.state.groups for m in g.members]
    assert roles.count("control") == 2
    assert {"low", "high"} <= set(roles)


def test_exploration_that_did_not_finish_is_stopped_and_random_seeds_train():
    cycle = make_cycle()
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    (explore,) = of(decisions, AddRequests)
    commit(cycle, explore.requests[0])
    decisions = cycle.trained(trained(0))
    (stop,) = of(decisions, StopRequests)
    assert len(stop.request_ids) == len(explore.requests) - 1
    (rollouts,) = of(decisions, AddRequests)
    assert len(rollouts.requests) == 8
    assert len({r.seed for r in rollouts.requests}) == 8


def test_off_explores_nothing():
    cycle = make_cycle(**{"planner.mode": "off"})
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    assert of(decisions, AddRequests) == []
    assert len(of(cycle.trained(trained(0)), AddRequests)) == 1


def test_staleness_is_perfect_where_scores_repeat_and_measured_on_controls():
    cycle = make_cycle(**{"planner.control_fraction": "0.5"})
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    (explore,) = of(decisions, AddRequests)
    for request in explore.requests:
        commit(cycle, request)
    decisions = run_to_training(cycle, cycle.trained(trained(0)))
    (record,) = of(decisions, Record)
    assert record.metrics["staleness.pairs"] == 4
    assert record.metrics["staleness.spearman.ocr"] == pytest.approx(1.0)


def test_a_rollout_that_fails_for_good_is_replaced_by_a_fresh_seed():
    cycle = make_cycle()
    decisions = cycle.trainer_ready(0)
    for request in of(decisions, AddRequests)[0].requests:
        decisions = commit(cycle, request)
    requests = of(decisions, AddRequests)[0].requests
    (replacement,) = cycle.given_up(requests[0].request_id)
    (fresh,) = replacement.requests
    assert fresh.prompt_id == requests[0].prompt_id
    assert fresh.seed not in {r.seed for r in requests}
    for request in [*requests[1:], fresh]:
        decisions = commit(cycle, request)
    (start,) = of(decisions, StartTraining)
    assert [len(g.samples) for g in start.message.groups] == [4, 4]


def test_a_stale_trained_message_changes_nothing():
    cycle = make_cycle()
    run_to_training(cycle, cycle.trainer_ready(0))
    assert cycle.trained(trained(4)) == []
    assert cycle.state.iteration == 0


def test_damaged_trajectories_are_rolled_out_again_and_then_train():
    cycle = make_cycle()
    decisions = run_to_training(cycle, cycle.trainer_ready(0))
    (start,) = of(decisions, StartTraining)
    lost = [start.message.groups[0].samples[0].request_id, start.message.groups[1].samples[2]]
    names = (lost[0], lost[1].request_id)
    decisions = cycle.damaged(Damaged(0, names, "a blob is damaged"))
    assert of(decisions, Reopen)[0].request_ids == list(names)
    assert cycle.state.phase == "rollout"
    (add,) = of(decisions, AddRequests)
    assert [r.request_id for r in add.requests] == list(names)
    assert commit(cycle, add.requests[0]) == []
    (again,) = of(commit(cycle, add.requests[1]), StartTraining)
    assert again.message == start.message


def test_damage_that_nobody_can_place_changes_nothing():
    cycle = make_cycle()
    run_to_training(cycle, cycle.trainer_ready(0))
    results = dict(cycle.results)
    assert cycle.damaged(Damaged(0, ("unknown",), "?")) == []
    assert cycle.damaged(Damaged(7, tuple(results)[:1], "?")) == []
    assert (cycle.results, cycle.state.phase) == (results, "train")


def test_a_mix_trains_on_rewards_normalised_within_the_group():
    flags = {"rewards.train": "mix", "rewards.weights": "{ocr = 1.0, ocr_ctc = 1.0, grain = 5.0}"}
    cycle = make_cycle(**flags)
    assert cycle.plan.config.rewards.names == ("mix", "ocr_ctc", "grain", "ocr")
    rows = [{"ocr": v, "ocr_ctc": v / 100, "grain": 3.0, "mix": 9.0} for v in (0.0, 0.5, 1.0)]
    rewards = cycle.plan.train_rewards(rows)
    # The two that differ count alike, though one is a hundred times smaller; the third not at all.
    assert rewards == pytest.approx([-2.42, 0.0, 2.42], abs=0.01)
    assert make_cycle().plan.train_rewards(rows) == [0.0, 0.5, 1.0]


def test_where_the_weights_are_averaged_the_average_is_evaluated_and_nothing_else():
    for decay, number in (("0.0", 0), ("0.9", AVERAGES_FROM)):
        cycle = make_cycle(**{"trainer.ema_decay": decay})
        (evaluate,) = of(cycle.trainer_ready(0), AddRequests)
        assert {r.policy_version for r in evaluate.requests} == {number}
        for request in evaluate.requests:
            decisions = commit(cycle, request)
        (rollouts,) = of(decisions, AddRequests)
        assert {(r.kind, r.policy_version) for r in rollouts.requests} == {("rollout", 0)}
