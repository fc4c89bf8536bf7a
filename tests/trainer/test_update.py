"""The update on the embedded model: ratio check, gradients, spread."""

import pytest
import torch
from msgspec import structs

from spotlightd.dit.lora import adapter_parameters
from spotlightd.sections import TrainerSection
from spotlightd.trainer.batch import DamagedError, load_batch
from spotlightd.trainer.clip import describe_clip_range, resolve_clip_range
from spotlightd.trainer.micro_batches import deal
from spotlightd.trainer.objectives import PolicyGradient
from spotlightd.trainer.update import train_on
from tests.trainer.conftest import SHAPE

REWARDS = [[0.0, 1.0, 0.5, 0.2], [1.0, 0.0, 0.0, 0.0]]


def quiet(_: float) -> None:
    pass


def test_before_the_first_update_the_ratio_is_one_for_every_producer(rolled):
    """Rollouts ran in batches of three, the trainer's micro-batches are of other sizes."""
    report = train_on(rolled.policy, rolled.batch(REWARDS), seed=1, progress=quiet)
    assert [row.producer for row in report.differences] == ["agent-0", "agent-1"]
    for row in report.differences:
        assert row.mean_abs_difference < 1e-6
        assert row.mean_abs_difference < 0.01 * rolled.policy.clip_range
        assert row.worst_step in (0, 1, 2)


def test_other_weights_show_in_the_ratio_check(rolled):
    batch = rolled.batch(REWARDS)
    with torch.no_grad():
        for name, parameter in adapter_parameters(rolled.policy.model).items():
            if "lora_B" in name:
                parameter.add_(0.02)
    report = train_on(rolled.policy, batch, seed=1, progress=quiet)
    assert all(row.mean_abs_difference > 1e-4 for row in report.differences)


def test_an_update_moves_the_policy_towards_rewarded_trajectories(rolled):
    batch = rolled.batch(REWARDS)
    for _ in range(3):
        train_on(rolled.policy, batch, seed=1, progress=quiet)
    window = PolicyGradient(rolled.policy.sampler, rolled.policy.section, 1.0)
    with torch.no_grad():
        gains = [
            window.predict(batch, pairs).log_prob - batch.old_log_prob_NW[:, pairs.position]
            for pairs in deal(torch.arange(len(batch)), batch.window, len(batch), 0, 1)
        ]
    gain = torch.stack(gains).mean(0)
    assert gain[batch.advantages_N > 0].mean() > gain[batch.advantages_N < 0].mean()


def test_groups_without_spread_are_dropped_and_counted(rolled):
    batch = rolled.batch([[0.5] * 4, *REWARDS])
    assert len(batch) == 8
    report = train_on(rolled.policy, batch, seed=1, progress=quiet)
    assert report.metrics["zero_std_groups"] == 1.0


def test_advantages_are_over_the_group_or_over_its_control_seeds(rolled):
    message = rolled.message([[0.0, 1.0, 0.5, 0.25]])
    (group,) = message.groups
    samples = tuple(structs.replace(s, control=s.reward >= 0.5) for s in group.samples)
    message = structs.replace(message, groups=(structs.replace(group, samples=samples),))
    std = torch.tensor([0.0, 1.0, 0.5, 0.25]).std(unbiased=False) + 1e-4
    for over_control, mean in ((False, 0.4375), (True, 0.75)):
        batch = load_batch(message, rolled.blobs, SHAPE, 5.0, False, over_control)
        expected = (torch.tensor([0.0, 1.0, 0.5, 0.25]) - mean) / std
        torch.testing.assert_close(batch.advantages_N, expected)


def test_nothing_trains_where_no_group_has_spread(rolled):
    message = rolled.message([[1.0, 1.0, 1.0]])
    assert load_batch(message, rolled.blobs, SHAPE, 5.0, False) is None


def test_a_repeated_update_gives_the_same_weights(rolled):
    """DanceGRPO pull 101: reruns differed."""
    batch = rolled.batch(REWARDS)
    before = {k: v.detach().clone() for k, v in rolled.policy.parameters.items()}
    results = []
    for _ in range(2):
        with torch.no_grad():
            for name, parameter in rolled.policy.parameters.items():
                parameter.copy_(before[name])
        rolled.policy.optimizer.state.clear()
        train_on(rolled.policy, batch, seed=7, progress=quiet)
        results.append({k: v.detach().clone() for k, v in rolled.policy.parameters.items()})
    assert all(torch.equal(results[0][k], results[1][k]) for k in before)
    assert any(not torch.equal(results[0][k], before[k]) for k in before)


def test_a_gradient_that_is_not_finite_skips_the_step_and_counts_it(rolled):
    """DanceGRPO issue 55: one exploding gradient ruined the weights."""
    batch = rolled.batch(REWARDS)
    batch.advantages_N[:] = float("nan")
    before = {k: v.detach().clone() for k, v in rolled.policy.parameters.items()}
    report = train_on(rolled.policy, batch, seed=1, progress=quiet)
    assert report.metrics["skipped_steps"] == 2.0
    assert all(torch.equal(v, before[k]) for k, v in rolled.policy.parameters.items())


def test_progress_rises_to_one(rolled):
    seen: list[float] = []
    train_on(rolled.policy, rolled.batch(REWARDS), seed=1, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == pytest.approx(1.0)


def test_a_damaged_trajectory_is_named(rolled):
    message = rolled.message(REWARDS)
    path = rolled.blobs.path(message.groups[0].samples[0].trajectory)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    gone = message.groups[1].samples[1]
    rolled.blobs.discard(gone.trajectory)
    with pytest.raises(DamagedError, match=r"2 trajectories: blob .* is damaged") as raised:
        load_batch(message, rolled.blobs, SHAPE, 5.0, False)
    first = message.groups[0].samples[0]
    assert raised.value.request_ids == (first.request_id, gone.request_id)


def test_the_clip_range_is_stated_in_both_forms():
    assert resolve_clip_range(TrainerSection(clip_range=1e-4), 1024) == 1e-4
    assert resolve_clip_range(TrainerSection(clip_range_nats=6.5536), 65536) == pytest.approx(1e-4)
    assert "65536 elements = 6.55 nats" in describe_clip_range(1e-4, 65536, "flow_sde")
    assert "has no unit of nats" in describe_clip_range(1e-4, 65536, "flow_cps")
