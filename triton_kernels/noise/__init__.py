"""Standard normal noise that depends on (seed, denoise step, stream, element) and nothing else."""

import torch

from triton_kernels import dispatch
from triton_kernels.noise import portable, reference


def standard_normal(
    seed: int,
    step_index: int,
    stream: int,
    count: int,
    start: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Return float32 [count] normals of elements `start` .. of the full latent.

    CPU tensors come from the numpy reference (0.1 ms for 1,024 elements), CUDA tensors from the
    Triton kernel (see `triton_kernels.dispatch`), those of other devices from the portable torch
    version, which also stands in on CUDA.

    Raises:
        ValueError: seed, step, stream or range out of bounds.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed {seed} is not a 64-bit unsigned integer")
    if not 0 <= step_index < 2**32 or not 0 <= stream < 2**32:
        raise ValueError(f"step {step_index} and stream {stream} must be 32-bit unsigned integers")
    if start < 0 or count < 0:
        raise ValueError(f"range {start}..{start + count} is not a range of latent elements")
    where = torch.device(device)
    if dispatch.use_kernel("noise", where):
        from triton_kernels.noise.kernel import launch

        return launch(seed, step_index, stream, count, start, where)
    if where.type == "cpu":
        return torch.from_numpy(reference.standard_normal(seed, step_index, stream, count, start))
    return portable.standard_normal(seed, step_index, stream, count, start, where)
