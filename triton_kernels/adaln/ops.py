"""The kernels as torch operators, with their gradients.

Gradients of latents and branches come from a kernel. Those of gate, scale and shift are sums over
tokens, in plain torch, and only taken where they are wanted: a LoRA trains none of them.
"""

from typing import Any

import torch
from torch import Tensor

from triton_kernels.adaln.kernel import launch_backward, launch_forward


@torch.library.triton_op("spotlight::adaln_modulate", mutates_args={})
def modulate(x: Tensor, scale: Tensor, shift: Tensor, layer: bool, eps: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch_forward(out, None, x, scale=scale, shift=shift, layer=layer, eps=eps)
    return out


@torch.library.triton_op("spotlight::adaln_gate_residual", mutates_args={})
def gate_residual(residual: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    hidden = torch.empty_like(residual, memory_format=torch.contiguous_format)
    launch_forward(None, hidden, residual, branch, gate)
    return hidden


@torch.library.triton_op("spotlight::adaln_gate_modulate", mutates_args={})
def gate_modulate(
    residual: Tensor,
    branch: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    layer: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    hidden = torch.empty_like(residual, memory_format=torch.contiguous_format)
    out = torch.empty_like(hidden)
    launch_forward(out, hidden, residual, branch, gate, scale, shift, layer, eps)
    return hidden, out


@torch.library.triton_op("spotlight::adaln_backward", mutates_args={})
def _grad_modulate(
    grad_out: Tensor, hidden: Tensor, scale: Tensor, layer: bool, eps: float
) -> Tensor:
    grad_x = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    launch_backward(grad_x, None, grad_out, None, hidden, None, scale, layer, eps)
    return grad_x


@torch.library.triton_op("spotlight::adaln_gate_backward", mutates_args={})
def _grad_gate_modulate(
    grad_out: Tensor,
    grad_hidden: Tensor,
    hidden: Tensor,
    gate: Tensor,
    scale: Tensor,
    layer: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    grad_x = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    grad_branch = torch.empty_like(grad_x)
    launch_backward(grad_x, grad_branch, grad_out, grad_hidden, hidden, gate, scale, layer, eps)
    return grad_x, grad_branch


def _over_tokens(wanted: bool, product: Tensor, dtype: torch.dtype) -> Tensor | None:
    return product.sum(dim=1).to(dtype) if wanted else None


def _grad_scale(wanted: bool, grad_out: Tensor, hidden: Tensor, ctx: Any) -> Tensor | None:
    if not wanted:
        return None
    zero = torch.zeros_like(hidden[:, 0])
    normed = modulate(hidden, zero, zero, ctx.layer, ctx.eps).float()
    return _over_tokens(True, grad_out.float() * normed, hidden.dtype)


def _save_modulate(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, scale, _, ctx.layer, ctx.eps = inputs
    ctx.save_for_backward(x, scale)


def _backward_modulate(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    x, scale = ctx.saved_tensors
    _, scales, shifts, *_ = ctx.needs_input_grad
    return (
        _grad_modulate(grad_out, x, scale, ctx.layer, ctx.eps),
        _grad_scale(scales, grad_out, x, ctx),
        _over_tokens(shifts, grad_out.float(), x.dtype),
        None,
        None,
    )


def _save_gate_residual(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, branch, gate = inputs
    ctx.save_for_backward(branch, gate)


def _backward_gate_residual(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    branch, gate = ctx.saved_tensors
    gates = ctx.needs_input_grad[2]
    return (
        grad,
        gate[:, None] * grad,
        _over_tokens(gates, grad.float() * branch.float(), gate.dtype),
    )


def _save_gate_modulate(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, branch, gate, scale, _, ctx.layer, ctx.eps = inputs
    ctx.save_for_backward(branch, gate, scale, output[0])


def _backward_gate_modulate(ctx: Any, grad_hidden: Tensor, grad_out: Tensor) -> tuple[Any, ...]:
    branch, gate, scale, hidden = ctx.saved_tensors
    grad_x, grad_branch = _grad_gate_modulate(
        grad_out, grad_hidden, hidden, gate, scale, ctx.layer, ctx.eps
    )
    _, _, gates, scales, shifts, *_ = ctx.needs_input_grad
    return (
        grad_x,
        grad_branch,
        _over_tokens(gates, grad_x.float() * branch.float(), gate.dtype),
        _grad_scale(scales, grad_out, hidden, ctx),
        _over_tokens(shifts, grad_out.float(), hidden.dtype),
        None,
        None,
    )


for _name, _backward, _save in (
    ("modulate", _backward_modulate, _save_modulate),
    ("gate_residual", _backward_gate_residual, _save_gate_residual),
    ("gate_modulate", _backward_gate_modulate, _save_gate_modulate),
):
    torch.library.register_autograd(f"spotlight::adaln_{_name}", _backward, setup_context=_save)
