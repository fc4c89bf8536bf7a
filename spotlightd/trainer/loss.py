"""Policy losses as pure functions of log-probs and means (NUMERICS: loss).

Legend: B samples of one trained denoising step each; means [B, ...] in latent shape; scale is the
step's noise standard deviation.
"""

import torch
from torch import Tensor


def flow_grpo_loss(
    log_prob_B: Tensor, old_log_prob_B: Tensor, advantages_B: Tensor, clip_range: float
) -> Tensor:
    """Clipped policy gradient (Flow-GRPO, arXiv 2505.05470); the mean over samples."""
    return _clipped(torch.exp(log_prob_B - old_log_prob_B), advantages_B, clip_range).mean()


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
        std_dev, sqrt_dt: per-sample step noise and sqrt(-dt); their batch means make the scale.
    """
    step_scale = std_dev.mean() * sqrt_dt.mean()
    shift = _mean_over_latent((mean - old_mean) ** 2) / (2 * step_scale**2)
    ratio = torch.exp((log_prob_B - old_log_prob_B + shift) * step_scale)
    return _clipped(ratio, advantages_B, clip_range).mean() / sqrt_dt.mean() ** 2


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
    return (-advantages_B * ratio * kept).mean()


def gaussian_kl(mean: Tensor, reference_mean: Tensor, scale: Tensor) -> Tensor:
    """Return KL of two Gaussians of equal `scale`, averaged over latent elements: [B]."""
    return _mean_over_latent((mean - reference_mean) ** 2 / (2 * scale**2))


def _clipped(ratio_B: Tensor, advantages_B: Tensor, clip_range: float) -> Tensor:
    clipped = ratio_B.clamp(1 - clip_range, 1 + clip_range)
    return torch.maximum(-advantages_B * ratio_B, -advantages_B * clipped)


def _mean_over_latent(values: Tensor) -> Tensor:
    return values.mean(dim=tuple(range(1, values.ndim)))
