"""The denoising step's arithmetic in plain torch, and what it refuses."""

import pytest
import torch

from triton_kernels import denoise
from triton_kernels.denoise import NoiseKey

X = torch.randn(3, 81, 64, generator=torch.Generator().manual_seed(0))
V = torch.randn(3, 81, 64, generator=torch.Generator().manual_seed(1))
COEFFICIENTS = torch.tensor([[0.93, -0.11, 0.21], [1.0, -0.07, 0.05], [0.5, 0.4, 0.9]])
KEY = NoiseKey([1, 2, 2**64 - 1], [0, 5, 5], 1)


def test_a_step_is_linear_in_latents_velocity_and_noise():
    step = denoise.sample(X, V, COEFFICIENTS, KEY)
    a, b, scale = COEFFICIENTS[:, :, None, None].double().unbind(1)
    mean = a * X.double() + b * V.double()
    reached = mean + scale * denoise.draw(KEY, X).double()
    torch.testing.assert_close(step.mean.double(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(step.next_latents.double(), reached, rtol=1e-6, atol=1e-6)
    squares = ((reached - mean) ** 2).sum(2)
    torch.testing.assert_close(step.squares.double(), squares, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shards", [2, 3, 4, 8])
def test_any_split_into_shards_gives_the_same_bits(shards):
    whole = denoise.sample(X, V, COEFFICIENTS, KEY)
    begin, parts = 0, []
    for x, v in zip(X.tensor_split(shards, 1), V.tensor_split(shards, 1), strict=True):
        parts.append(denoise.sample(x, v, COEFFICIENTS, KEY._replace(start=begin * 64)))
        begin += x.shape[1]
    for name in ("next_latents", "mean", "squares"):
        joined = torch.cat([getattr(part, name) for part in parts], dim=1)
        assert torch.equal(joined, getattr(whole, name)), name


def test_each_sample_has_its_own_seed_and_step():
    latents, key = torch.zeros(4, 5, 8), NoiseKey([7, 8, 7, 7], [1, 1, 2, 1], 1)
    drawn = denoise.draw(key, latents)
    assert torch.equal(drawn[0], drawn[3])
    for row in (1, 2):
        assert not torch.isclose(drawn[0], drawn[row]).any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"latents": X.double()}, "latents must be float32"),
        ({"latents": X[0]}, "latents must be float32"),
        ({"velocity": V[:, :80]}, "velocity must be a float tensor"),
        ({"velocity": V.long()}, "velocity must be a float tensor"),
        ({"coefficients": COEFFICIENTS[:2]}, r"coefficients must be float32 \[3, 3\]"),
        ({"key": NoiseKey([1], [1], 1)}, "3 samples, but 1 seeds"),
    ],
)
def test_what_does_not_fit_is_named(change, reason):
    given = {"latents": X, "velocity": V, "coefficients": COEFFICIENTS, "key": KEY} | change
    with pytest.raises(ValueError, match=reason):
        denoise.sample(**given)


def test_next_latents_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="next latents"):
        denoise.judge(X, V, COEFFICIENTS, X[:, :80])
