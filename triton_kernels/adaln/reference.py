"""Adaptive layer norm in plain torch: slow, obvious, and the truth for the kernel.

Arguments as in `triton_kernels.adaln`; differentiable throughout. Computed in fp32 and rounded
once, except that the hidden state is rounded to its dtype before it is normalised, as it is stored.
"""

import torch
from torch import Tensor

from triton_kernels.precision import widen


def modulate(x: Tensor, scale: Tensor, shift: Tensor, norm: str, eps: float) -> Tensor:
    normed = _normalise(widen(x), norm, eps)
    return (normed * (1 + widen(scale)[:, None]) + widen(shift)[:, None]).to(x.dtype)


def gate_residual(residual: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    return (widen(residual) + widen(gate)[:, None] * widen(branch)).to(residual.dtype)


def gate_modulate(
    residual: Tensor,
    branch: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    norm: str,
    eps: float,
) -> tuple[Tensor, Tensor]:
    hidden = gate_residual(residual, branch, gate)
    return hidden, modulate(hidden, scale, shift, norm, eps)


def _normalise(x: Tensor, norm: str, eps: float) -> Tensor:
    if norm == "rms":
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
