"""Compiled by Inductor around the kernels, a block gives what it gives eagerly. CUDA only."""

import pytest
import torch

from triton_kernels import adaln
from triton_kernels.attention import attend
from triton_kernels.qk_norm_rope import Tokens, qk_norm_rope


@pytest.fixture(autouse=True)
def _compiled_kernels_only(device):
    if device.type != "cuda":
        pytest.skip("Inductor compiles no interpreted kernel")


def test_values_and_gradients_through_inductor(device):
    generator = torch.Generator().manual_seed(0)
    x, scale, shift, gate, rotation = (
        torch.randn(shape, generator=generator).to(device)
        for shape in [(2, 81, 256), (2, 256), (2, 256), (2, 256), (81, 32, 2)]
    )
    weight = torch.ones(64, device=device)

    def block(x):
        normed = adaln.modulate(x, scale, shift).unflatten(-1, (4, 64))
        query, key = qk_norm_rope(Tokens(normed, normed + 1, weight, weight, rotation))
        attended = attend(query, key, normed).flatten(2)
        return adaln.gate_modulate(x, attended, gate, scale, shift)[1]

    outcomes = []
    for run in (block, torch.compile(block, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        out = run(leaf)
        outcomes.append((out.detach(), *torch.autograd.grad(out.square().sum(), leaf)))
    for eager, compiled in zip(*outcomes, strict=True):
        scale_of = eager.abs().max().item()
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5 * scale_of)
