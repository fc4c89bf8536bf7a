"""adaLN: values and gradients equal the reference's, in three forms of the op and both norms."""

import pytest
import torch

from triton_kernels import adaln
from triton_kernels.adaln import kernel, reference

CLOSE = dict(rtol=2e-6, atol=2e-6)
SHAPES = [(3, 1, 96), (3, 63, 128), (2, 81, 100)]

pytestmark = pytest.mark.usefixtures("nan_memory")


def inputs(shape, device):
    """Return residual, branch, gate, scale, shift; the last three are chunks of one projection."""
    batch, tokens, channels = shape
    generator = torch.Generator().manual_seed(tokens)
    x, branch = (torch.randn(shape, generator=generator) for _ in range(2))
    chunks = torch.randn(batch, 3 * channels, generator=generator).to(device).chunk(3, dim=-1)
    return (x + 0.5).to(device), branch.to(device), *chunks


def evaluate(module, op, given, norm):
    """Return outputs as a tuple, from the public module or from the reference."""
    x, branch, gate, scale, shift = given
    more = {"norm": norm, "eps": 1e-6}
    match op:
        case "modulate":
            out = module.modulate(x, scale, shift, **more)
        case "gate_residual":
            out = module.gate_residual(x, branch, gate)
        case "gate_modulate":
            out = module.gate_modulate(x, branch, gate, scale, shift, **more)
    return out if isinstance(out, tuple) else (out,)


CASES = [("modulate", "layer"), ("modulate", "rms"), ("gate_residual", "layer"),
         ("gate_modulate", "layer"), ("gate_modulate", "rms")]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("op", "norm"), CASES)
def test_values_are_the_references(device, op, norm, shape):
    given = inputs(shape, device)
    truth = evaluate(reference, op, [tensor.double() for tensor in given], norm)
    for ours, expected in zip(evaluate(adaln, op, given, norm), truth, strict=True):
        torch.testing.assert_close(ours, expected.float(), **CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("op", "norm"), CASES)
def test_gradients_are_the_references(device, op, norm, shape):
    def gradients(module, dtype):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs(shape, device)]
        outputs = evaluate(module, op, leaves, norm)
        weight = torch.linspace(0.3, 1, shape[1], device=device, dtype=dtype)[:, None]
        loss = sum((out * weight * (1 + number)).sum() for number, out in enumerate(outputs))
        return torch.autograd.grad(loss, leaves, allow_unused=True)

    truth = gradients(reference, torch.float64)
    for ours, expected in zip(gradients(adaln, torch.float32), truth, strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None:
            scale = expected.abs().max().item()
            torch.testing.assert_close(ours, expected.float(), rtol=2e-6, atol=2e-6 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32_and_rounded_once(device, dtype):
    """Written into fp32: the interpreter rounds to bf16 by cutting off, which GPUs do not."""
    given = [tensor.to(dtype) for tensor in inputs((2, 81, 100), device)]
    x, branch, gate, scale, shift = given
    out, hidden = (torch.empty(x.shape, device=device) for _ in range(2))
    kernel.launch_forward(out, hidden, x, branch, gate, scale, shift, True, 1e-6)
    truth = reference.gate_modulate(*(tensor.double() for tensor in given), "layer", 1e-6)
    torch.testing.assert_close(hidden, truth[0].float(), **CLOSE)
    torch.testing.assert_close(out, truth[1].float(), **CLOSE)

    grad_x, grad_branch = (torch.empty(x.shape, device=device) for _ in range(2))
    kernel.launch_backward(
        grad_x, grad_branch, branch, x, hidden.to(dtype), gate, scale, True, 1e-6
    )
    leaf = hidden.to(dtype).double().requires_grad_()
    modulated = reference.modulate(leaf, scale.double(), shift.double(), "layer", 1e-6)
    (expected,) = torch.autograd.grad((modulated * branch.double()).sum(), leaf)
    expected = expected + x.double()
    torch.testing.assert_close(grad_x, expected.float(), rtol=2e-6, atol=5e-6)
    expected = gate.double()[:, None] * expected
    torch.testing.assert_close(grad_branch, expected.float(), rtol=2e-6, atol=5e-6)


def test_fp16_comes_back_as_fp16(device):
    given = [tensor.half() for tensor in inputs((2, 81, 100), device)]
    hidden, out = adaln.gate_modulate(*given)
    truth = reference.gate_modulate(*given, "layer", 1e-6)
    assert hidden.dtype == out.dtype == torch.float16
    torch.testing.assert_close(hidden, truth[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(out, truth[1], rtol=2e-3, atol=2e-3)


def test_rows_may_be_views_of_something_larger(device):
    x, branch, gate, scale, shift = inputs((3, 63, 128), device)
    wide = torch.stack([x, branch], dim=-1)
    hidden, out = adaln.gate_modulate(wide[..., 0], wide[..., 1], gate, scale, shift)
    expected = adaln.gate_modulate(x, branch, gate, scale, shift)
    assert torch.equal(hidden, expected[0]) and torch.equal(out, expected[1])
