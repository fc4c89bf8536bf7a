"""The Triton version of reference.py: a row of channels stays in registers from load to store."""

import triton
import triton.language as tl
from torch import Tensor

from triton_kernels.dispatch import interpreting, wrap_triton
from triton_kernels.precision import FLOATS
from triton_kernels.variants import Variant

CHANNEL_BLOCKS = (2048, 4096)
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}
MODES = {"modulate": (False, True), "gate_residual": (True, False), "gate_modulate": (True, True)}
"""What each op does to a row: (gates, normalises)."""

_VARYING = ["rows", "tokens", "channels", "eps", "centred"]


@triton.jit
def _normalise(x, inside, channels, eps, centred):
    """Return (normed row, 1 / its standard deviation); `centred` is 1 for LayerNorm, 0 for RMS."""
    mean = centred * tl.sum(x, axis=1) / channels
    x = tl.where(inside, x - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / channels + eps)
    return x * inverse[:, None], inverse


@triton.jit(do_not_specialize=_VARYING)
def forward_kernel(
    out_ptr,
    hidden_ptr,
    x_ptr,
    branch_ptr,
    gate_ptr,
    scale_ptr,
    shift_ptr,
    gate_stride,
    scale_stride,
    shift_stride,
    rows: tl.int32,
    tokens: tl.int32,
    channels: tl.int32,
    eps: tl.float32,
    centred: tl.float32,
    GATES: tl.constexpr,
    NORMALISES: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
):
    """Rows are contiguous [B * tokens, channels]; modulations [B, channels], rows apart by stride.

    GATES writes `hidden`; NORMALISES writes `out`.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, C)[None, :]
    inside = (row < rows)[:, None] & (column < channels)
    sample = (row // tokens).to(tl.int64)[:, None]
    at = row.to(tl.int64)[:, None] * channels + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if GATES:
        branch = tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + sample * gate_stride + column, mask=inside, other=0.0)
        # Normalised as stored, so that a backward pass that reads it again sees the same row.
        stored = (x + gate.to(tl.float32) * branch).to(hidden_ptr.dtype.element_ty)
        tl.store(hidden_ptr + at, stored, mask=inside)
        x = stored.to(tl.float32)
    if NORMALISES:
        normed, _ = _normalise(x, inside, channels, eps, centred)
        scale = tl.load(scale_ptr + sample * scale_stride + column, mask=inside, other=0.0)
        shift = tl.load(shift_ptr + sample * shift_stride + column, mask=inside, other=0.0)
        out = normed * (1.0 + scale.to(tl.float32)) + shift.to(tl.float32)
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_VARYING)
def backward_kernel(
    grad_x_ptr,
    grad_branch_ptr,
    grad_out_ptr,
    grad_hidden_ptr,
    hidden_ptr,
    gate_ptr,
    scale_ptr,
    gate_stride,
    scale_stride,
    rows: tl.int32,
    tokens: tl.int32,
    channels: tl.int32,
    eps: tl.float32,
    centred: tl.float32,
    GATES: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
):
    """Gradients of the row that was normalised, and through the gate of the branch.

    With n the normed row, s the inverse deviation and g the gradient times (1 + scale):
    s (g - mean(g) - n mean(g n)), without mean(g) for RMSNorm.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, C)[None, :]
    inside = (row < rows)[:, None] & (column < channels)
    sample = (row // tokens).to(tl.int64)[:, None]
    at = row.to(tl.int64)[:, None] * channels + column
    hidden = tl.load(hidden_ptr + at, mask=inside, other=0.0).to(tl.float32)
    normed, inverse = _normalise(hidden, inside, channels, eps, centred)
    scale = tl.load(scale_ptr + sample * scale_stride + column, mask=inside, other=0.0)
    grad = tl.load(grad_out_ptr + at, mask=inside, other=0.0).to(tl.float32)
    grad = grad * (1.0 + scale.to(tl.float32))
    mean = centred * tl.sum(grad, axis=1) / channels
    along = tl.sum(grad * normed, axis=1) / channels
    grad = inverse[:, None] * (grad - mean[:, None] - normed * along[:, None])
    if GATES:
        grad += tl.load(grad_hidden_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + sample * gate_stride + column, mask=inside, other=0.0)
        grad_branch = gate.to(tl.float32) * grad
        tl.store(
            grad_branch_ptr + at, grad_branch.to(grad_branch_ptr.dtype.element_ty), mask=inside
        )
    tl.store(grad_x_ptr + at, grad.to(grad_x_ptr.dtype.element_ty), mask=inside)


def configuration(channels: int) -> dict[str, int]:
    """Return the block of a row, and rows per program."""
    if interpreting():  # It pays by the program, whatever its width.
        return {"C": triton.next_power_of_2(channels), "R": 128}
    return {"C": next(size for size in CHANNEL_BLOCKS if channels <= size), "R": 1}


def launch_forward(
    out: Tensor | None,
    hidden: Tensor | None,
    x: Tensor,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    layer: bool = True,
    eps: float = 0.0,
) -> None:
    """Fill `out` (if it normalises) and `hidden` (if it gates), in their own dtypes."""
    x = x.contiguous()
    branch = None if branch is None else branch.contiguous()
    gate, scale, shift = (_rows_contiguous(tensor) for tensor in (gate, scale, shift))
    batch, tokens, channels = x.shape
    given = configuration(channels)
    wrap_triton(forward_kernel)[(triton.cdiv(batch * tokens, given["R"]),)](
        out, hidden, x, branch, gate, scale, shift, _stride(gate), _stride(scale), _stride(shift),
        batch * tokens, tokens, channels, eps, float(layer),
        GATES=gate is not None, NORMALISES=scale is not None, **given, **OPTIONS,
    )  # fmt: skip


def launch_backward(
    grad_x: Tensor,
    grad_branch: Tensor | None,
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    hidden: Tensor,
    gate: Tensor | None,
    scale: Tensor,
    layer: bool,
    eps: float,
) -> None:
    """Fill `grad_x` (and `grad_branch`, if it gates) in their own dtypes."""
    grad_hidden = None if grad_hidden is None else grad_hidden.contiguous()
    batch, tokens, channels = hidden.shape
    given = configuration(channels)
    gate, scale = _rows_contiguous(gate), scale.contiguous()
    wrap_triton(backward_kernel)[(triton.cdiv(batch * tokens, given["R"]),)](
        grad_x, grad_branch, grad_out.contiguous(), grad_hidden, hidden.contiguous(), gate, scale,
        _stride(gate), _stride(scale), batch * tokens, tokens, channels, eps, float(layer),
        GATES=gate is not None, **given, **OPTIONS,
    )  # fmt: skip


def _rows_contiguous(tensor: Tensor | None) -> Tensor | None:
    """Modulations are mostly chunks of one projection: rows apart, channels adjacent."""
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


def _stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


def _variants() -> list[Variant]:
    found = []
    for dtype in FLOATS.values():
        for block in CHANNEL_BLOCKS:
            for name, (gates, normalises) in MODES.items():
                found.append(_forward_variant(name, dtype, block, gates, normalises))
            found.append(_backward_variant("modulate", dtype, block, gates=False))
            found.append(_backward_variant("gate_modulate", dtype, block, gates=True))
    return found


def _forward_variant(name: str, dtype: str, block: int, gates: bool, normalises: bool) -> Variant:
    absent = ([] if gates else ["hidden_ptr", "branch_ptr", "gate_ptr"]) + (
        [] if normalises else ["out_ptr", "scale_ptr", "shift_ptr"]
    )
    return Variant(
        name=f"adaln {name} {block} channels {dtype}",
        kernel=forward_kernel,
        types={
            **{f"{part}_ptr": f"*{dtype}" for part in
               ("out", "hidden", "x", "branch", "gate", "scale", "shift")},
            **{f"{part}_stride": "i32" for part in ("gate", "scale", "shift")}, **_SIZES,
        },
        constants={"GATES": gates, "NORMALISES": normalises, **configuration(block),
                   **dict.fromkeys(absent)},
        options=OPTIONS,
    )  # fmt: skip


def _backward_variant(name: str, dtype: str, block: int, gates: bool) -> Variant:
    absent = [] if gates else ["grad_branch_ptr", "grad_hidden_ptr", "gate_ptr"]
    return Variant(
        name=f"adaln {name} backward {block} channels {dtype}",
        kernel=backward_kernel,
        types={
            **{f"{part}_ptr": f"*{dtype}" for part in
               ("grad_x", "grad_branch", "grad_out", "grad_hidden", "hidden", "gate", "scale")},
            "gate_stride": "i32", "scale_stride": "i32", **_SIZES,
        },
        constants={"GATES": gates, **configuration(block), **dict.fromkeys(absent)},
        options=OPTIONS,
    )  # fmt: skip


_SIZES = {"rows": "i32", "tokens": "i32", "channels": "i32", "eps": "fp32", "centred": "fp32"}
VARIANTS = _variants()
