"""adaLN in plain torch: what it computes, and what it refuses."""

import pytest
import torch

from triton_kernels import adaln

GENERATOR = torch.Generator().manual_seed(0)
X, BRANCH = (torch.randn(2, 5, 16, generator=GENERATOR) for _ in range(2))
GATE, SCALE, SHIFT = (torch.randn(2, 16, generator=GENERATOR) for _ in range(3))


def test_layer_norm_takes_the_mean_off_and_rms_norm_does_not():
    zero = torch.zeros(2, 16)
    layer = adaln.modulate(X + 3, zero, zero)
    torch.testing.assert_close(layer.mean(-1), torch.zeros(2, 5), atol=1e-6, rtol=0)
    torch.testing.assert_close(layer.square().mean(-1), torch.ones(2, 5), atol=1e-5, rtol=0)
    rms = adaln.modulate(X + 3, zero, zero, norm="rms")
    torch.testing.assert_close(rms.square().mean(-1), torch.ones(2, 5), atol=1e-5, rtol=0)
    assert (rms.mean(-1) > 0.5).all()


def test_the_fused_form_is_one_after_the_other():
    hidden, modulated = adaln.gate_modulate(X, BRANCH, GATE, SCALE, SHIFT)
    assert torch.equal(hidden, adaln.gate_residual(X, BRANCH, GATE))
    assert torch.equal(modulated, adaln.modulate(hidden, SCALE, SHIFT))
    expected = torch.nn.functional.layer_norm(hidden, (16,), eps=1e-6)
    expected = expected * (1 + SCALE[:, None]) + SHIFT[:, None]
    torch.testing.assert_close(modulated, expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"residual": X[0]}, r"expected \[B, L, C\]"),
        ({"branch": BRANCH[:, :4]}, "differ"),
        ({"gate": GATE[:, :8]}, r"gate must be \(2, 16\)"),
        ({"scale": SCALE[:1]}, r"scale must be \(2, 16\)"),
        ({"norm": "batch"}, "expected 'layer' or 'rms'"),
    ],
)
def test_what_does_not_fit_is_named(change, reason):
    given = {"residual": X, "branch": BRANCH, "gate": GATE, "scale": SCALE, "shift": SHIFT}
    with pytest.raises(ValueError, match=reason):
        adaln.gate_modulate(**{**given, **change})


def test_what_the_kernel_cannot_take_has_a_reason():
    assert adaln._obstacle(X, SCALE) is None
    assert "float64" in adaln._obstacle(X.double(), SCALE.double())
    assert "bfloat16, torch.float32" in adaln._obstacle(X, SCALE.bfloat16())
    assert "5000 channels" in adaln._obstacle(torch.zeros(1, 1, 5000))
