"""The arithmetic of one denoising step: next latents and squared deviations in one pass.

Every form of the step is linear in latents x, velocity v and noise z:

    mean = a x + b v        next = mean + scale z

so one kernel serves all; a form is three numbers a sample (`spotlightd/dit/denoise.py` has them).
What a log-prob needs is the sum of (next - mean)^2. It is returned per token, and a rank that holds
some of the tokens has exactly the sums that the whole latent has there.

Legend: B samples, L tokens of this shard, D latent channels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels import dispatch, noise
from triton_kernels.denoise import reference
from triton_kernels.denoise.reference import Stepped
from triton_kernels.precision import FLOATS

MAX_CHANNELS = 64
"""A packed token of 16 latent channels and 2 x 2 patches."""


class NoiseKey(NamedTuple):
    """What noise a step draws; see `triton_kernels.noise` for the numbers it stands for."""

    seeds: Sequence[int]
    """Of each sample, below 2**64."""
    step_indices: Sequence[int]
    """Denoise step that each sample is at."""
    stream: int
    start: int = 0
    """Element of the full latent, in row-major order, that this shard begins with."""


def sample(latents: Tensor, velocity: Tensor, coefficients: Tensor, key: NoiseKey) -> Stepped:
    """Take a stochastic step with the noise of `key`. Not differentiable: rollouts only.

    Args:
        latents: fp32 [B, L, D].
        velocity: [B, L, D]; read in its own dtype, computed in fp32.
        coefficients: fp32 [B, 3]: a, b and scale of each sample.

    Raises:
        ValueError: shapes, dtypes or the key do not fit.
    """
    _check(latents, velocity, coefficients)
    batch = latents.shape[0]
    if len(key.seeds) != batch or len(key.step_indices) != batch:
        raise ValueError(
            f"{batch} samples, but {len(key.seeds)} seeds and {len(key.step_indices)} step indices"
        )
    if dispatch.use_kernel("denoise", latents.device, _obstacle, latents, key.start):
        from triton_kernels.denoise import kernel

        words = [
            [seed - 2**64 if seed >= 2**63 else seed, step]
            for seed, step in zip(key.seeds, key.step_indices, strict=True)
        ]
        keys = torch.tensor(words, dtype=torch.int64).to(latents.device, non_blocking=True)
        return Stepped(
            *kernel.sample(
                latents, velocity, coefficients, keys, stream=key.stream, start=key.start
            )
        )
    return reference.step(latents, velocity, coefficients, draw(key, latents))


def follow(latents: Tensor, velocity: Tensor, coefficients: Tensor) -> Tensor:
    """Take an ODE step: return the mean, fp32 [B, L, D]. Arguments as in `sample`."""
    _check(latents, velocity, coefficients)
    if dispatch.use_kernel("denoise", latents.device, _obstacle, latents):
        from triton_kernels.denoise import kernel

        return kernel.follow(latents, velocity, coefficients)
    return reference.mean(latents, velocity, coefficients)


def judge(latents: Tensor, velocity: Tensor, coefficients: Tensor, next_latents: Tensor) -> Stepped:
    """Measure a step that was taken. Differentiable in latents, velocity and next latents.

    Args:
        next_latents: fp32 [B, L, D], where the step led; the others as in `sample`.
    """
    _check(latents, velocity, coefficients)
    if next_latents.shape != latents.shape:
        raise ValueError(
            f"next latents {tuple(next_latents.shape)} and latents {tuple(latents.shape)} differ"
        )
    if dispatch.use_kernel("denoise", latents.device, _obstacle, latents):
        from triton_kernels.denoise import kernel

        mean, squares = kernel.judge(latents, velocity, coefficients, next_latents)
        return Stepped(next_latents, mean, squares)
    return reference.judge(latents, velocity, coefficients, next_latents)


def draw(key: NoiseKey, like: Tensor) -> Tensor:
    """Return the key's noise for latents `like`: fp32 [B, L, D] on their device."""
    _, tokens, channels = like.shape
    drawn = [
        noise.standard_normal(seed, step, key.stream, tokens * channels, key.start, like.device)
        for seed, step in zip(key.seeds, key.step_indices, strict=True)
    ]
    return torch.stack(drawn).view(like.shape)


def _check(latents: Tensor, velocity: Tensor, coefficients: Tensor) -> None:
    if latents.dim() != 3 or latents.dtype != torch.float32:
        raise ValueError(
            f"latents must be float32 [B, L, D], not {latents.dtype} {tuple(latents.shape)}"
        )
    if velocity.shape != latents.shape or velocity.dtype not in FLOATS:
        raise ValueError(
            f"velocity must be a float tensor of {tuple(latents.shape)} like the latents, not "
            f"{velocity.dtype} {tuple(velocity.shape)}"
        )
    if coefficients.shape != (latents.shape[0], 3) or coefficients.dtype != torch.float32:
        raise ValueError(
            f"coefficients must be float32 [{latents.shape[0]}, 3], not {coefficients.dtype} "
            f"{tuple(coefficients.shape)}"
        )


def _obstacle(latents: Tensor, start: int | None = None) -> str | None:
    """`start`: element that noise is drawn from; None where none is drawn."""
    channels = latents.shape[2]
    if channels > MAX_CHANNELS:
        return f"{channels} latent channels, at most {MAX_CHANNELS} fit a row"
    if start is not None and (start % 4 or channels % 4):
        return f"shards of {channels} channels from {start} split blocks of four normals"
    return None
