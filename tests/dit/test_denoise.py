"""The four forms of a denoising step against golden values of two public implementations."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spotlightd.dit.denoise import denoise_step
from spotlightd.dit.noise import Stream, standard_normal
from triton_kernels.denoise import NoiseKey

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "flow_grpo_numerics.json").read_text())["sde_steps"]


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "flow_grpo_numerics.safetensors")


def arguments(case, tensors):
    batch = tensors[f"{case['case']}.sample"].shape[0]
    flat = {
        name: tensors[f"{case['case']}.{name}"].reshape(batch, 4, -1)
        for name in ("sample", "velocity", "noise", "next_sample", "mean")
    }
    return flat, dict(
        form=case["form"],
        latents_BLD=flat["sample"],
        velocity_BLD=flat["velocity"],
        sigma_B=torch.full((batch,), case["sigma"]),
        sigma_next_B=torch.full((batch,), case["sigma_next"]),
        noise_level=case["noise_level"],
        second_sigma=case["sigma_max_substitute"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["case"])
def test_sampling_meets_the_golden_values(case, tensors):
    flat, given = arguments(case, tensors)
    out = denoise_step(**given, noise_BLD=flat["noise"])
    torch.testing.assert_close(out.next_latents, flat["next_sample"], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.mean, flat["mean"], atol=1e-5, rtol=0)
    golden = tensors[f"{case['case']}.log_prob"]
    torch.testing.assert_close(out.log_prob, golden, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES[::7], ids=lambda c: c["case"])
def test_judging_a_taken_step_gives_the_same_log_prob(case, tensors):
    flat, given = arguments(case, tensors)
    sampled = denoise_step(**given, noise_BLD=flat["noise"])
    judged = denoise_step(**given, next_latents_BLD=sampled.next_latents)
    assert torch.equal(judged.log_prob, sampled.log_prob)
    assert torch.equal(judged.mean, sampled.mean)


@pytest.mark.parametrize("form", ["flow_sde", "flow_cps", "dance_sde"])
def test_a_step_by_key_draws_the_keys_noise_and_is_judged_alike(form):
    generator = torch.Generator().manual_seed(0)
    x, v = (torch.randn(3, 9, 64, generator=generator) for _ in range(2))
    sigmas = torch.tensor([0.9, 0.7, 1.0]), torch.tensor([0.7, 0.4, 0.9])
    key = NoiseKey([1, 2, 1], [0, 4, 4], Stream.SDE)
    sampled = denoise_step(form, x, v, *sigmas, 0.7, 0.9, noise=key)
    noise = [standard_normal(s, i, Stream.SDE, (9, 64)) for s, i in ((1, 0), (2, 4), (1, 4))]
    given = denoise_step(form, x, v, *sigmas, 0.7, 0.9, noise_BLD=torch.stack(noise))
    judged = denoise_step(form, x, v, *sigmas, 0.7, 0.9, next_latents_BLD=sampled.next_latents)
    for other in (given, judged):
        for a, b in zip(sampled, other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("form", ["flow_sde", "flow_cps", "dance_sde"])
def test_the_gradient_of_a_log_prob_is_the_finite_difference(form):
    generator = torch.Generator().manual_seed(0)
    x, v, reached, direction = (torch.randn(1, 4, 64, generator=generator) for _ in range(4))
    sigmas = torch.tensor([0.8]), torch.tensor([0.6])

    def log_prob(velocity):
        out = denoise_step(form, x, velocity, *sigmas, 0.7, 0.9, next_latents_BLD=reached)
        return out.log_prob.sum()

    leaf = v.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(log_prob(leaf), leaf)
    difference = (log_prob(v + 0.05 * direction) - log_prob(v - 0.05 * direction)) / 0.1
    assert (gradient * direction).sum().item() == pytest.approx(difference.item(), rel=1e-3)


def step(form, sigma, sigma_next, **extra):
    x = torch.ones(2, 3, 4)
    sigmas = torch.full((2,), sigma), torch.full((2,), sigma_next)
    return denoise_step(form, x, 0.5 * x, *sigmas, 0.7, 0.9, **extra)


def test_an_ode_step_has_no_log_prob_and_goes_along_the_velocity():
    out = step("ode", 0.25, 0.0)
    assert out.log_prob is None
    torch.testing.assert_close(out.next_latents, torch.full((2, 3, 4), 1 - 0.5 * 0.25))


@pytest.mark.parametrize("form", ["flow_sde", "flow_cps", "dance_sde"])
def test_the_last_step_is_an_ode_step_without_log_prob_in_every_form(form):
    out = step(form, 0.25, 0.0, noise_BLD=torch.full((2, 3, 4), torch.nan))
    assert out.log_prob is None
    torch.testing.assert_close(out.next_latents, torch.full((2, 3, 4), 1 - 0.5 * 0.25))


@pytest.mark.parametrize("form", ["flow_sde", "flow_cps", "dance_sde"])
def test_without_noise_level_every_form_is_an_ode_step(form):
    x, sigma = torch.ones(2, 3, 4), torch.full((2,), 0.5)
    out = denoise_step(form, x, 0.5 * x, sigma, sigma - 0.1, 0.0, 0.9, noise_BLD=x)
    assert out.log_prob is None
    torch.testing.assert_close(out.next_latents, torch.full((2, 3, 4), 1 - 0.5 * 0.1))


@pytest.mark.parametrize("form", ["flow_sde", "flow_cps", "dance_sde"])
def test_a_batch_of_steps_with_and_without_noise_is_refused_not_nan(form):
    x = torch.ones(2, 3, 4)
    sigmas = torch.tensor([0.25, 0.5]), torch.tensor([0.0, 0.4])
    with pytest.raises(ValueError, match="step those elements apart"):
        denoise_step(form, x, x, *sigmas, 0.7, 0.9, noise_BLD=x)


@pytest.mark.parametrize("extra", [{}, {"noise_BLD": 0, "next_latents_BLD": 0}])
def test_noise_or_next_latents_is_asked_for(extra):
    with pytest.raises(ValueError, match="either noise or next latents"):
        step("flow_sde", 0.5, 0.4, **{k: torch.zeros(2, 3, 4) for k in extra})


def test_cps_leaves_exactly_the_noise_of_the_next_sigma():
    generator = torch.Generator().manual_seed(0)
    data, noise, z = (torch.randn(1, 400, 400, generator=generator) for _ in range(3))
    s, s_next = 0.6, 0.4
    x = (1 - s) * data + s * noise
    sigmas = torch.tensor([s]), torch.tensor([s_next])
    out = denoise_step("flow_cps", x, noise - data, *sigmas, 0.7, 0.9, noise_BLD=z)
    left = out.next_latents - (1 - s_next) * data
    assert left.std().item() == pytest.approx(s_next, rel=0.01)
    assert math.isfinite(out.log_prob.item())
