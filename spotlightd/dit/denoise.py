"""One denoising step in its four forms, for rollout and training alike (NUMERICS: denoising step).

Legend: B batch, L tokens, D channels; s sigma now, s' sigma of the next step, dt = s' - s < 0;
v velocity (noise minus data); eta noise level; z standard normal noise. Everything is fp32.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spotlightd.wire.sampling import SdeForm

Form = SdeForm | Literal["ode"]


class DenoiseOutput(NamedTuple):
    next_latents: Tensor
    """[B, L, D]."""
    mean: Tensor
    """[B, L, D]: where the step would go without noise."""
    scale: Tensor
    """[B, 1, 1]: standard deviation of the step's noise; 0 for an ODE step."""
    log_prob: Tensor | None
    """[B], mean over latent elements; None for an ODE step, which has no density."""


class _Step(NamedTuple):
    mean: Tensor
    scale: Tensor


def denoise_step(
    form: Form,
    latents_BLD: Tensor,
    velocity_BLD: Tensor,
    sigma_B: Tensor,
    sigma_next_B: Tensor,
    noise_level: float,
    second_sigma: float,
    *,
    noise_BLD: Tensor | None = None,
    next_latents_BLD: Tensor | None = None,
) -> DenoiseOutput:
    """Take one step, or judge one that was taken.

    Where no element keeps noise (sigma_next 0, or eta 0) every form is an ODE step, without a
    log-prob: a density of no width has none (NUMERICS).

    Args:
        form: `ode`, or an SDE form.
        latents_BLD, velocity_BLD: state and model output; any dtype, computed in fp32.
        sigma_B, sigma_next_B: noise levels of each element now and after the step.
        noise_level: eta.
        second_sigma: the schedule's second sigma; replaces sigma in flow_sde's denominator
            where sigma is 1.
        noise_BLD: z, to sample a stochastic step.
        next_latents_BLD: latents that a rollout reached, to get their log-prob under this
            velocity instead of sampling.

    Raises:
        ValueError: a stochastic step was given neither or both of noise and next latents, or
            only some of its elements have noise.
    """
    x, v = latents_BLD.float(), velocity_BLD.float()
    s, s_next = (sigma.float().view(-1, 1, 1) for sigma in (sigma_B, sigma_next_B))
    dt = s_next - s
    if form == "ode" or noise_level == 0 or not bool((s_next > 0).any()):
        mean = x + v * dt
        return DenoiseOutput(mean, mean, torch.zeros_like(s), None)
    if (noise_BLD is None) == (next_latents_BLD is None):
        raise ValueError("a stochastic step takes either noise or next latents")
    step = _FORMS[form](x, v, s, s_next, dt, noise_level, second_sigma)
    if bool(((step.scale <= 0) | (s_next <= 0)).any()):
        raise ValueError(
            f"{form} has no noise for all of sigma {s.flatten().tolist()} -> "
            f"{s_next.flatten().tolist()}: step those elements apart, as ODE"
        )
    if noise_BLD is not None:
        next_latents = step.mean + step.scale * noise_BLD
    else:
        assert next_latents_BLD is not None
        next_latents = next_latents_BLD.float()
    log_prob = _log_prob(form, next_latents.detach(), step)
    return DenoiseOutput(next_latents, step.mean, step.scale, log_prob)


def _flow_sde(
    x: Tensor, v: Tensor, s: Tensor, s_next: Tensor, dt: Tensor, eta: float, second_sigma: float
) -> _Step:
    """Flow-GRPO (arXiv 2505.05470)."""
    denominator = 1 - torch.where(s >= 1, torch.full_like(s, second_sigma), s)
    std = torch.sqrt(s / denominator) * eta
    mean = x * (1 + std**2 / (2 * s) * dt) + v * (1 + std**2 * (1 - s) / (2 * s)) * dt
    return _Step(mean, std * torch.sqrt(-dt))


def _flow_cps(
    x: Tensor, v: Tensor, s: Tensor, s_next: Tensor, dt: Tensor, eta: float, second_sigma: float
) -> _Step:
    """Coefficients-preserving sampling: after the step the noise variance is exactly s'^2."""
    std = s_next * math.sin(eta * math.pi / 2)
    data = x - s * v
    noise = x + (1 - s) * v
    mean = (1 - s_next) * data + torch.sqrt(s_next**2 - std**2) * noise
    return _Step(mean, std)


def _dance_sde(
    x: Tensor, v: Tensor, s: Tensor, s_next: Tensor, dt: Tensor, eta: float, second_sigma: float
) -> _Step:
    """DanceGRPO: constant noise level, drift corrected by the score."""
    data = x - s * v
    score = -(x - (1 - s) * data) / s**2
    mean = x + v * dt - 0.5 * eta**2 * score * dt
    return _Step(mean, eta * torch.sqrt(-dt))


_FORMS = {"flow_sde": _flow_sde, "flow_cps": _flow_cps, "dance_sde": _dance_sde}


def _log_prob(form: Form, next_latents: Tensor, step: _Step) -> Tensor:
    """Mean over elements, not a sum: clip ranges are stated for the mean (NUMERICS: loss)."""
    squared = (next_latents - step.mean) ** 2
    if form == "flow_cps":
        return -squared.mean(dim=(1, 2))
    density = -squared / (2 * step.scale**2) - torch.log(step.scale) - 0.5 * math.log(2 * math.pi)
    return density.mean(dim=(1, 2))
