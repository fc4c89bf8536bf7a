"""Losses of the objectives as pure functions, one value per sample (NUMERICS: loss).

Legend: B samples of one trained denoising step each; means, velocities and latents [B, ...] in
latent shape; scale is the step's noise standard deviation. The caller takes the mean over samples,
so that it may give a sample no weight.
"""

import torch
from torch import Tensor

NFT_FLOOR = 1e-5
"""Least mean distance to the data that an NFT loss is divided by."""


def flow_grpo_loss(
    log_prob_B: Tensor, old_log_prob_B: Tensor, advantages_B: Tensor, clip_range: float
) -> Tensor:
    """Clipped policy gradient (Flow-GRPO, arXiv 2505.05470)."""
    return _clipped(torch.exp(log_prob_B - old_log_prob_B), advantages_B, clip_range)


def grpo_guard_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    mean: Tensor,
    old_mean: Tensor,
    std_dev: Tensor,
    sqrt_dt: Tensor,
    advantages_B: Tensor,
    clip_range: float,
) -> Tensor:
    """GRPO-Guard: the ratio freed of the mean shift's bias, and the loss divided by -dt.

    Args:
        std_dev, sqrt_dt: noise strength and sqrt(-dt) of all samples that share an optimizer step
            and a window position, [any]. Their means make the scale, so micro-batches do not
            change the loss.
    """
    step_scale = std_dev.mean() * sqrt_dt.mean()
    shift = _mean_over_latent((mean - old_mean) ** 2) / (2 * step_scale**2)
    ratio = torch.exp((log_prob_B - old_log_prob_B + shift) * step_scale)
    return _clipped(ratio, advantages_B, clip_range) / sqrt_dt.mean() ** 2


def flow_dppo_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    mean: Tensor,
    old_mean: Tensor,
    scale: Tensor,
    advantages_B: Tensor,
    kl_threshold: float,
) -> Tensor:
    """Flow-DPPO: a sample drops out once its KL is spent and its ratio moved as A pushes it."""
    ratio = torch.exp(log_prob_B - old_log_prob_B)
    with torch.no_grad():
        kl = gaussian_kl(mean, old_mean, scale)
        moved = torch.where(advantages_B > 0, ratio > 1, ratio < 1)
        kept = ~((kl >= kl_threshold) & moved)
    return -advantages_B * ratio * kept


def nft_loss(
    velocity: Tensor,
    old_velocity: Tensor,
    noisy: Tensor,
    clean: Tensor,
    sigma_B: Tensor,
    advantages_B: Tensor,
    advantage_clip: float,
    beta: float,
) -> Tensor:
    """DiffusionNFT (arXiv 2509.16117): no log-prob, but two regressions onto the rollout itself.

    The positive velocity mixes the policy's and the old policy's, the negative one is its mirror
    image about the old. How good a rollout was, w = 1/2 + A / (2 clip) in [0, 1], weighs the
    positive against the negative. Distances are taken in data space, each divided by its own
    mean, which has no gradient.

    Args:
        noisy: (1 - sigma) clean + sigma noise, at which both velocities were taken.
        clean: the rollout's final latents.
        beta: share of the policy in the positive velocity, > 0.
    """
    weight = 0.5 + (advantages_B / advantage_clip).clamp(-1, 1) / 2
    positive = beta * velocity + (1 - beta) * old_velocity
    negative = (1 + beta) * old_velocity - beta * velocity
    sigma = sigma_B.view(-1, *(1,) * (noisy.ndim - 1))
    towards = _relative_distance(noisy - sigma * positive, clean)
    away = _relative_distance(noisy - sigma * negative, clean)
    return (weight * towards + (1 - weight) * away) * (advantage_clip / beta)


def gaussian_kl(mean: Tensor, reference_mean: Tensor, scale: Tensor) -> Tensor:
    """Return KL of two Gaussians of equal `scale`, averaged over latent elements: [B]."""
    return _mean_over_latent((mean - reference_mean) ** 2 / (2 * scale**2))


def velocity_distance(velocity: Tensor, reference_velocity: Tensor) -> Tensor:
    """Return the mean squared difference per sample, NFT's stand-in for a KL: [B]."""
    return _mean_over_latent((velocity - reference_velocity) ** 2)


def _relative_distance(predicted: Tensor, clean: Tensor) -> Tensor:
    with torch.no_grad():
        size = _mean_over_latent((predicted - clean).abs()).clamp(min=NFT_FLOOR)
    return _mean_over_latent((predicted - clean) ** 2) / size


def _clipped(ratio_B: Tensor, advantages_B: Tensor, clip_range: float) -> Tensor:
    clipped = ratio_B.clamp(1 - clip_range, 1 + clip_range)
    return torch.maximum(-advantages_B * ratio_B, -advantages_B * clipped)


def _mean_over_latent(values: Tensor) -> Tensor:
    return values.mean(dim=tuple(range(1, values.ndim)))
