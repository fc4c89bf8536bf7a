"""Noise of a trajectory: the initial latent and each SDE step, keyed by the seed."""

import math
from enum import IntEnum

import torch

from triton_kernels import noise


class Stream(IntEnum):
    """What the noise is for; separate streams never share a number."""

    INITIAL = 0
    SDE = 1
    FORWARD = 2
    """What clean latents are noised with again to train on them."""


def standard_normal(
    seed: int,
    step_index: int,
    stream: Stream,
    shape: tuple[int, ...],
    start: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Return fp32 normals of `shape`: elements `start` .. of the full latent in row-major order.

    A rank of a sequence-parallel group passes its slice's `start` and gets exactly the numbers
    that the full latent has there (DESIGN: what always holds, line 1).
    """
    count = math.prod(shape)
    return noise.standard_normal(seed, step_index, stream, count, start, device).reshape(shape)
