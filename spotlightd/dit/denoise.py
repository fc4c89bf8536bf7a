"""One denoising step in its four forms, for rollout and training alike (NUMERICS: denoising step).

Legend: B batch, L tokens, D channels; s sigma now, s' sigma of the next step, dt = s' - s < 0;
v velocity (noise minus data); eta noise level; z standard normal noise. Everything is fp32.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, assert_never

import torch
from torch import Tensor

from spotlightd.wire.sampling import SdeForm
from triton_kernels import denoise
from triton_kernels.denoise import NoiseKey

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


class Coefficients(NamedTuple):
    """A step of one sample: mean = a x + b v, and scale times the noise is added to it."""

    a: float
    b: float
    scale: float


def denoise_step(
    form: Form,
    latents_BLD: Tensor,
    velocity_BLD: Tensor,
    sigma_B: Tensor,
    sigma_next_B: Tensor,
    noise_level: float,
    second_sigma: float,
    *,
    noise: NoiseKey | None = None,
    noise_BLD: Tensor | None = None,
    next_latents_BLD: Tensor | None = None,
) -> DenoiseOutput:
    """Take one step, or judge one that was taken.

    Where no element keeps noise (sigma_next 0, or eta 0) every form is an ODE step, without a
    log-prob: a density of no width has none (NUMERICS).

    Args:
        form: `ode`, or an SDE form.
        latents_BLD, velocity_BLD: state and model output; any dtype, computed in fp32.
        sigma_B, sigma_next_B: noise levels of each element now and after the step. On the CPU:
            their values are needed there, and fetching them would stop the device's queue.
        noise_level: eta.
        second_sigma: the schedule's second sigma; replaces sigma in flow_sde's denominator
            where sigma is 1.
        noise: key of z, to sample a stochastic step in one pass.
        noise_BLD: z itself, in its place.
        next_latents_BLD: latents that a rollout reached, to get their log-prob under this
            velocity instead of sampling. Differentiable in the velocity.

    Raises:
        ValueError: a stochastic step was given none or several of the last three, or only some
            of its elements have noise.
    """
    sigmas, after = sigma_B.tolist(), sigma_next_B.tolist()
    x = latents_BLD.float()
    if form == "ode" or noise_level == 0 or not any(s_next > 0 for s_next in after):
        table = _table([ode(*pair) for pair in zip(sigmas, after, strict=True)], x.device)
        mean = denoise.follow(x, velocity_BLD, table)
        return DenoiseOutput(mean, mean, table[:, 2, None, None], None)
    given = [value for value in (noise, noise_BLD, next_latents_BLD) if value is not None]
    if len(given) != 1:
        raise ValueError(
            "a stochastic step takes either noise or next latents: one of `noise`, `noise_BLD` "
            "and `next_latents_BLD`"
        )
    steps = [
        coefficients(form, *pair, noise_level, second_sigma)
        for pair in zip(sigmas, after, strict=True)
    ]
    if any(step.scale <= 0 for step in steps):
        raise ValueError(
            f"{form} has no noise for all of sigma {sigmas} -> {after}: step those elements "
            f"apart, as ODE"
        )
    table = _table(steps, x.device)
    scale = table[:, 2, None, None]
    if noise is not None:
        step = denoise.sample(x, velocity_BLD, table, noise)
    else:
        if noise_BLD is not None:
            mean = denoise.follow(x, velocity_BLD, table)
            next_latents_BLD = mean + scale * noise_BLD
        assert next_latents_BLD is not None
        step = denoise.judge(x, velocity_BLD, table, next_latents_BLD.float().detach())
    log_prob = log_prob_of(form, step.squares, scale, x.shape[2])
    return DenoiseOutput(step.next_latents, step.mean, scale, log_prob)


def log_prob_of(form: SdeForm, squares_BL: Tensor, scale_B11: Tensor, channels: int) -> Tensor:
    """Return log-probs [B] from each token's sum of (x' - mean)^2.

    Mean over elements, not a sum: clip ranges are stated for the mean (NUMERICS: loss). Ranks that
    hold parts of the tokens gather `squares_BL` first: a sum of partial sums would depend on how
    many they are.
    """
    squared = squares_BL.sum(dim=1) / (squares_BL.shape[1] * channels)
    if form == "flow_cps":
        return -squared
    scale = scale_B11.flatten()
    return -squared / (2 * scale**2) - torch.log(scale) - 0.5 * math.log(2 * math.pi)


def ode(s: float, s_next: float) -> Coefficients:
    return Coefficients(1.0, s_next - s, 0.0)


def coefficients(
    form: SdeForm, s: float, s_next: float, eta: float, second_sigma: float
) -> Coefficients:
    """Return the numbers of a stochastic step; scale is 0 where it has no noise."""
    match form:
        case "flow_sde":
            return _flow_sde(s, s_next, eta, second_sigma)
        case "flow_cps":
            return _flow_cps(s, s_next, eta)
        case "dance_sde":
            return _dance_sde(s, s_next, eta)
    assert_never(form)


def _flow_sde(s: float, s_next: float, eta: float, second_sigma: float) -> Coefficients:
    """Flow-GRPO (arXiv 2505.05470)."""
    dt = s_next - s
    variance = eta**2 * s / (1 - (second_sigma if s >= 1 else s))
    a = 1 + variance * dt / (2 * s)
    b = (1 + variance * (1 - s) / (2 * s)) * dt
    return Coefficients(a, b, math.sqrt(variance * -dt) if s_next > 0 else 0.0)


def _flow_cps(s: float, s_next: float, eta: float) -> Coefficients:
    """Coefficients-preserving sampling: after the step the noise variance is exactly s'^2.

    With data x - s v and noise x + (1 - s) v: mean = (1 - s') data + s' cos(eta pi / 2) noise.
    """
    kept = s_next * abs(math.cos(eta * math.pi / 2))
    a = (1 - s_next) + kept
    b = kept * (1 - s) - (1 - s_next) * s
    return Coefficients(a, b, s_next * math.sin(eta * math.pi / 2))


def _dance_sde(s: float, s_next: float, eta: float) -> Coefficients:
    """DanceGRPO: constant noise level, drift corrected by the score.

    The score -(x - (1 - s) data) / s^2 with data x - s v is -(x + (1 - s) v) / s.
    """
    dt = s_next - s
    drift = eta**2 * dt / (2 * s)
    a, b = 1 + drift, dt + drift * (1 - s)
    return Coefficients(a, b, eta * math.sqrt(-dt) if s_next > 0 else 0.0)


def _table(steps: Sequence[Coefficients], device: torch.device) -> Tensor:
    """Return fp32 [B, 3]; computed in float64 and rounded once."""
    return torch.tensor(steps, dtype=torch.float32).to(device, non_blocking=True)
