"""The embedded model, sampled and trained through the kernels, is what plain torch makes of it."""

import pytest
import torch

from spotlightd.dit.denoise import denoise_step
from spotlightd.dit.lora import adapter_parameters, attach_lora
from spotlightd.dit.models import load_model
from spotlightd.dit.sampler import Sampler
from spotlightd.models import EMBEDDED_DIR
from spotlightd.wire.sampling import Request, SamplerSettings
from triton_kernels import dispatch

PROMPT = 'A shop sign that reads "OPEN".'


@pytest.fixture(scope="module")
def model():
    device = "cuda" if dispatch.MODE == "triton" else "cpu"
    model = load_model(EMBEDDED_DIR, device=device)
    attach_lora(model, 4, 8.0)
    return model


@pytest.fixture(autouse=True)
def _heads_of_32_fall_back_on_a_gpu(monkeypatch):
    if dispatch.MODE == "triton":
        monkeypatch.setattr(dispatch, "MODE", "auto")


def sampled(model, form):
    settings = SamplerSettings(model.sigmas(2), form, 0.7, (0,), 1.0, 32, 128)
    requests = [
        Request(f"r{seed}", "rollout", 0, "p", PROMPT, "OPEN", seed, 0, settings)
        for seed in (3, 2**64 - 1)
    ]
    sampler = Sampler(model)
    running = [sampler.start(request) for request in requests]
    while not running[0].done:
        sampler.advance(running)
    return running


@pytest.mark.parametrize("form", ["flow_sde", "flow_cps", "dance_sde"])
def test_trajectories_and_log_probs(model, monkeypatch, form):
    kernels = sampled(model, form)
    monkeypatch.setattr(dispatch, "MODE", "reference")
    for ours, expected in zip(kernels, sampled(model, form), strict=True):
        torch.testing.assert_close(ours.latents_LD, expected.latents_LD, rtol=1e-4, atol=1e-4)
        assert ours.window_log_probs == pytest.approx(expected.window_log_probs, abs=1e-6)


def test_the_gradient_of_a_log_prob(model, monkeypatch):
    trajectory = sampled(model, "flow_cps")[0]
    settings = trajectory.request.sampler

    def gradients():
        sigma, after = (torch.tensor([settings.sigmas[i]]) for i in (0, 1))
        x = trajectory.window_latents[0][None]
        prompts = Sampler(model).prompt_embeds([PROMPT])
        velocity = model.velocity(x, sigma.to(model.device), prompts, settings)
        out = denoise_step(
            "flow_cps", x, velocity, sigma, after, 0.7, settings.sigmas[1],
            next_latents_BLD=trajectory.window_next_latents[0][None],
        )  # fmt: skip
        assert out.log_prob.item() == pytest.approx(trajectory.window_log_probs[0], abs=1e-6)
        # The last block's text leads nowhere: its adapters have no gradient.
        parameters = list(adapter_parameters(model).values())
        return torch.autograd.grad(1e3 * out.log_prob.sum(), parameters, materialize_grads=True)

    ours = gradients()
    assert sum(bool(gradient.any()) for gradient in ours) > 40
    monkeypatch.setattr(dispatch, "MODE", "reference")
    for a, b in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * b.abs().max().item())
