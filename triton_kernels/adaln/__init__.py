"""Adaptive layer norm (DiT, arXiv 2212.09748): norm, scale and shift, gate and residual.

    modulate        norm(x) (1 + scale) + shift
    gate_residual   residual + gate branch
    gate_modulate   both, one after the other, with the residual written once and read never

Legend: B samples, L tokens, C channels. Norms have no weights of their own, as in adaLN-Zero.
"""

from typing import Literal

from torch import Tensor

from triton_kernels import dispatch
from triton_kernels.adaln import reference
from triton_kernels.precision import FLOATS

Norm = Literal["layer", "rms"]
MAX_CHANNELS = 4096


def modulate(
    x: Tensor, scale: Tensor, shift: Tensor, *, norm: Norm = "layer", eps: float = 1e-6
) -> Tensor:
    """Return norm(x) (1 + scale) + shift, [B, L, C] in x's dtype.

    Args:
        x: [B, L, C].
        scale, shift: [B, C].
        norm: LayerNorm, or RMSNorm (no mean is taken off).

    Raises:
        ValueError: shapes do not fit, or the norm is unknown.
    """
    _check(x, norm, scale=scale, shift=shift)
    if dispatch.use_kernel("adaln", x.device, _obstacle, x, scale, shift):
        from triton_kernels.adaln import ops

        return ops.modulate(x, scale, shift, norm == "layer", eps)
    return reference.modulate(x, scale, shift, norm, eps)


def gate_residual(residual: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """Return residual + gate branch, [B, L, C] in the residual's dtype.

    Args:
        residual, branch: [B, L, C].
        gate: [B, C].
    """
    _check(residual, "layer", gate=gate, branch=branch)
    if dispatch.use_kernel("adaln", residual.device, _obstacle, residual, branch, gate):
        from triton_kernels.adaln import ops

        return ops.gate_residual(residual, branch, gate)
    return reference.gate_residual(residual, branch, gate)


def gate_modulate(
    residual: Tensor,
    branch: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    norm: Norm = "layer",
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return (hidden, modulated): `gate_residual`, then `modulate` of what it gave."""
    _check(residual, norm, gate=gate, branch=branch, scale=scale, shift=shift)
    given = (residual, branch, gate, scale, shift)
    if dispatch.use_kernel("adaln", residual.device, _obstacle, *given):
        from triton_kernels.adaln import ops

        return ops.gate_modulate(residual, branch, gate, scale, shift, norm == "layer", eps)
    return reference.gate_modulate(residual, branch, gate, scale, shift, norm, eps)


def _check(x: Tensor, norm: str, branch: Tensor | None = None, **modulations: Tensor) -> None:
    if x.dim() != 3:
        raise ValueError(f"expected [B, L, C], not {tuple(x.shape)}")
    if norm not in ("layer", "rms"):
        raise ValueError(f"norm is '{norm}', expected 'layer' or 'rms'")
    if branch is not None and branch.shape != x.shape:
        raise ValueError(f"branch {tuple(branch.shape)} and residual {tuple(x.shape)} differ")
    wanted = (x.shape[0], x.shape[2])
    for name, tensor in modulations.items():
        if tensor.shape != wanted:
            raise ValueError(f"{name} must be {wanted}, not {tuple(tensor.shape)}")


def _obstacle(x: Tensor, *others: Tensor) -> str | None:
    if x.dtype not in FLOATS or any(other.dtype != x.dtype for other in others):
        names = ", ".join(sorted({str(tensor.dtype) for tensor in (x, *others)}))
        return f"inputs are {names}, the kernel takes one of {', '.join(map(str, FLOATS))}"
    if x.shape[2] > MAX_CHANNELS:
        return f"{x.shape[2]} channels, at most {MAX_CHANNELS} fit a row"
    return None
