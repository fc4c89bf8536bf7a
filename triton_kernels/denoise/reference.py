"""One denoising step in plain torch: slow, obvious, and the truth for the kernel.

Arguments as in `triton_kernels.denoise`; differentiable throughout.
"""

from typing import NamedTuple

from torch import Tensor


class Stepped(NamedTuple):
    next_latents: Tensor
    """fp32 [B, L, D]."""
    mean: Tensor
    """fp32 [B, L, D]."""
    squares: Tensor
    """fp32 [B, L]: sum over channels of (next - mean)^2."""


def mean(latents: Tensor, velocity: Tensor, coefficients: Tensor) -> Tensor:
    """a x + b v, each product rounded before the sum."""
    a, b, _ = coefficients[:, :, None, None].unbind(1)
    return a * latents + b * velocity.float()


def step(latents: Tensor, velocity: Tensor, coefficients: Tensor, noise: Tensor) -> Stepped:
    """Take a step with given noise, fp32 [B, L, D]."""
    centre = mean(latents, velocity, coefficients)
    next_latents = centre + coefficients[:, 2, None, None] * noise
    return Stepped(next_latents, centre, squares(next_latents, centre))


def judge(latents: Tensor, velocity: Tensor, coefficients: Tensor, next_latents: Tensor) -> Stepped:
    centre = mean(latents, velocity, coefficients)
    return Stepped(next_latents, centre, squares(next_latents, centre))


def squares(next_latents: Tensor, centre: Tensor) -> Tensor:
    """Sum over each token's channels of (next - mean)^2: fp32 [B, L]."""
    return ((next_latents - centre) ** 2).sum(dim=2)
