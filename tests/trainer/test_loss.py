"""Advantages and losses against golden values of two public implementations."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spotlightd.dit.denoise import denoise_step
from spotlightd.trainer.advantage import group_advantages, has_spread
from spotlightd.trainer.loss import flow_dppo_loss, flow_grpo_loss, gaussian_kl, grpo_guard_loss

GOLDEN = Path(__file__).parents[1] / "golden"
NUMBERS = json.loads((GOLDEN / "flow_grpo_numerics.json").read_text())


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "flow_grpo_numerics.safetensors")


@pytest.mark.parametrize("case", NUMBERS["advantages"], ids=str)
def test_advantages_meet_the_golden_values(case):
    rewards = torch.tensor(case["rewards"]).view(case["groups"], case["group_size"])
    found = group_advantages(list(rewards), clip=100.0, global_std=case["global_std"])
    torch.testing.assert_close(
        torch.cat(found), torch.tensor(case["advantages"]), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("case", NUMBERS["losses"], ids=lambda c: c["case"])
def test_losses_meet_the_golden_values(case, tensors):
    given = {
        name: tensors[f"{case['case']}.{name}"]
        for name in ("log_prob", "old_log_prob", "advantages", "mean", "old_mean")
    }
    clip = case["adv_clip_max"]
    advantages = given["advantages"].clamp(-clip, clip)
    pair = given["log_prob"], given["old_log_prob"]
    means = given["mean"], given["old_mean"]
    std, sqrt_dt = torch.tensor([case["std_dev"]]), torch.tensor([case["sqrt_dt"]])
    grpo = flow_grpo_loss(*pair, advantages, case["clip_range"])
    guard = grpo_guard_loss(*pair, *means, std, sqrt_dt, advantages, case["clip_range"])
    dppo = flow_dppo_loss(
        *pair, *means, std * sqrt_dt, given["advantages"], case["kl_mask_threshold"]
    )
    assert grpo.mean().item() == pytest.approx(case["flow_grpo"], rel=1e-5, abs=1e-6)
    assert guard.mean().item() == pytest.approx(case["grpo_guard"], rel=1e-4, abs=1e-5)
    assert dppo.mean().item() == pytest.approx(case["flow_dppo"], rel=1e-5, abs=1e-6)


def test_a_group_without_spread_has_no_advantage():
    equal = torch.full((4,), 0.25)
    assert not has_spread(equal)
    (found,) = group_advantages([equal], clip=5.0)
    assert torch.equal(found, torch.zeros(4))


def test_advantages_are_clipped():
    (found,) = group_advantages([torch.tensor([0.0] * 63 + [1.0])], clip=5.0)
    assert found.max().item() == 5.0


def test_the_gradient_stops_outside_the_clip_range():
    log_prob = torch.tensor([0.0, 0.1, -0.1], requires_grad=True)
    flow_grpo_loss(log_prob, torch.zeros(3), torch.tensor([1.0, 1.0, -1.0]), 0.01).sum().backward()
    assert log_prob.grad is not None
    assert log_prob.grad[0] != 0
    assert log_prob.grad[1] == 0 and log_prob.grad[2] == 0


def test_the_kl_is_of_the_step_and_so_contains_dt():
    """flow_grpo issue 78: the KL was divided by the noise strength without its sqrt(-dt)."""
    x, v, w = torch.ones(1, 2, 3), torch.zeros(1, 2, 3), torch.full((1, 2, 3), 0.5)
    sigma, after = torch.tensor([0.8]), torch.tensor([0.6])
    steps = [
        denoise_step("dance_sde", x, u, sigma, after, 0.3, 0.9, noise_BLD=torch.zeros(1, 2, 3))
        for u in (v, w)
    ]
    shift = 0.5 * (-0.2 + 0.3**2 * -0.2 / (2 * 0.8) * (1 - 0.8))
    found = gaussian_kl(steps[0].mean, steps[1].mean, steps[0].scale)
    assert found.item() == pytest.approx(shift**2 / (2 * 0.3**2 * 0.2), rel=1e-5)


def test_the_kl_term_has_a_gradient():
    """Flow-Factory issue 122: a KL inside no_grad had no effect."""
    mean = torch.ones(2, 3, 4, requires_grad=True)
    gaussian_kl(mean, torch.zeros(2, 3, 4), torch.full((2, 1, 1), 0.5)).mean().backward()
    assert mean.grad is not None and bool((mean.grad != 0).all())
