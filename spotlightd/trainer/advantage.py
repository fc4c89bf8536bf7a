"""Rewards of rollout groups to advantages (NUMERICS: advantage)."""

from collections.abc import Sequence

import torch
from torch import Tensor

STD_FLOOR = 1e-4
ZERO_SPREAD = 1e-8


def group_advantages(
    rewards: Sequence[Tensor],
    clip: float,
    global_std: bool = False,
    centres: Sequence[float] | None = None,
) -> list[Tensor]:
    """Return each group's advantages: reward minus group mean, over std + 1e-4, clipped.

    Args:
        rewards: one tensor [group size] per group.
        clip: largest magnitude.
        global_std: divide by the population standard deviation of the whole batch instead of
            the group's.
        centres: what to subtract instead of each group's mean.
    """
    together = torch.cat(list(rewards)).float()
    batch_std = together.std(unbiased=False)
    advantages = []
    for number, group in enumerate(rewards):
        group = group.float()
        std = batch_std if global_std else group.std(unbiased=False)
        centre = group.mean() if centres is None else centres[number]
        advantages.append(((group - centre) / (std + STD_FLOOR)).clamp(-clip, clip))
    return advantages


def has_spread(rewards: Tensor) -> bool:
    """Whether a group's rewards differ: a group without spread teaches nothing."""
    return bool(rewards.max() - rewards.min() > ZERO_SPREAD)
