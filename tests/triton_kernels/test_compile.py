"""torch.compile goes through the ops without a break, and sees the kernels inside them."""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from triton_kernels import adaln, attention, denoise, dispatch, ulysses
from triton_kernels.qk_norm_rope import Tokens, qk_norm_rope

GENERATOR = torch.Generator().manual_seed(0)
X, Y = (torch.randn(2, 9, 64, generator=GENERATOR) for _ in range(2))
A, B, C = (torch.randn(2, 64, generator=GENERATOR) for _ in range(3))
HEADS = torch.randn(2, 9, 2, 64, generator=GENERATOR)
ROTATION = torch.rand(9, 32, 2, generator=GENERATOR)
COEFFICIENTS = torch.rand(2, 3, generator=GENERATOR)


def joint(x):
    tokens = Tokens(x, 2 * x, A[0], B[0], ROTATION)
    query, key = qk_norm_rope(tokens, tokens)
    return query + key


OPS = {
    "adaln": (lambda x: adaln.gate_modulate(x, Y, A, B, C)[1], X),
    "qk_norm_rope": (joint, HEADS),
    "denoise": (lambda x: denoise.judge(X, x, COEFFICIENTS, Y).squares, X),
    "ulysses": (lambda x: ulysses.pack_heads([x, x], 2), HEADS),
    "attention": (lambda x: attention.attend_chunk(x, HEADS, HEADS).out, HEADS),
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", OPS)
def test_a_compiled_function_is_one_graph_with_the_same_values_and_gradients(name):
    function, given = OPS[name]
    outcomes = []
    for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaf = given.clone().requires_grad_()
        out = run(leaf)
        outcomes.append((out.detach(), *torch.autograd.grad(out.square().sum(), leaf)))
    for eager, compiled in zip(*outcomes, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)


class Captured(Exception):
    """Ends a compilation once its graph is known: without a GPU nothing could run it."""


@pytest.mark.parametrize("name", ["adaln", "qk_norm_rope", "denoise", "ulysses"])
def test_the_graph_holds_the_kernel_itself_and_no_opaque_call(monkeypatch, name):
    function, given = OPS[name]
    targets = []

    def capture(graph, example_inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        raise Captured

    monkeypatch.setattr(dispatch, "use_kernel", lambda *args: True)
    run = torch.compile(function, backend=aot_autograd(fw_compiler=capture), fullgraph=True)
    with torch.no_grad(), pytest.raises(Exception, match="Captured"):
        run(given)
    assert "triton_kernel_wrapper_functional" in targets
    assert not any("spotlight" in target for target in targets)
