"""The denoising step: one pass equals the reference's several, whole and in shards."""

import pytest
import torch

from triton_kernels import denoise
from triton_kernels.denoise import NoiseKey, reference

COEFFICIENTS = torch.tensor([[0.93, -0.11, 0.21], [1.0, -0.07, 0.05], [0.5, 0.4, 0.9]])
SEEDS, STEPS = [5, 2**63 + 1, 2**64 - 1], [0, 3, 9]
CLOSE = dict(rtol=2e-6, atol=2e-6)

pytestmark = pytest.mark.usefixtures("nan_memory")


def inputs(tokens, channels, device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(tokens * 1000 + channels)
    x, v = (torch.randn(3, tokens, channels, generator=generator) for _ in range(2))
    return x.to(device), v.to(device, dtype), COEFFICIENTS.to(device)


def key(start=0):
    return NoiseKey(SEEDS, STEPS, 1, start)


@pytest.mark.parametrize("channels", [4, 36, 64])
@pytest.mark.parametrize("tokens", [1, 63, 81])
def test_a_sampled_step_is_the_references(device, tokens, channels):
    given = inputs(tokens, channels, device)
    ours = denoise.sample(*given, key())
    noise = denoise.draw(key(), given[0].cpu())
    truth = reference.step(*(tensor.cpu() for tensor in given), noise)
    assert torch.equal(ours.mean.cpu(), truth.mean)
    torch.testing.assert_close(ours.next_latents.cpu(), truth.next_latents, **CLOSE)
    torch.testing.assert_close(ours.squares.cpu(), truth.squares, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_velocities_are_read_exactly(device, dtype):
    x, v, coefficients = inputs(63, 64, device, dtype)
    narrow = denoise.sample(x, v, coefficients, key())
    wide = denoise.sample(x, v.float(), coefficients, key())
    for a, b in zip(narrow, wide, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shards", [2, 3, 4, 8])
def test_any_split_into_shards_gives_the_same_bits(device, shards):
    tokens, channels = 81, 64
    x, v, coefficients = inputs(tokens, channels, device)
    whole = denoise.sample(x, v, coefficients, key())
    parts, begin = [], 0
    for part in x.tensor_split(shards, dim=1):
        end = begin + part.shape[1]
        shard_key = key(begin * channels)
        parts.append(denoise.sample(part, v[:, begin:end], coefficients, shard_key))
        begin = end
    for name in ("next_latents", "mean", "squares"):
        joined = torch.cat([getattr(part, name) for part in parts], dim=1)
        assert torch.equal(joined, getattr(whole, name)), name


def test_an_ode_step_is_the_mean(device):
    x, v, coefficients = inputs(81, 64, device)
    expected = reference.mean(x.cpu(), v.cpu(), COEFFICIENTS)
    assert torch.equal(denoise.follow(x, v, coefficients).cpu(), expected)


def test_judging_a_sampled_step_repeats_its_bits(device):
    given = inputs(81, 64, device)
    sampled = denoise.sample(*given, key())
    judged = denoise.judge(*given, sampled.next_latents)
    assert torch.equal(judged.mean, sampled.mean)
    assert torch.equal(judged.squares, sampled.squares)


def test_gradients_of_a_judged_step_are_the_references(device):
    x, v, coefficients = inputs(63, 64, device)
    reached = x + 0.1
    weights = torch.randn(3, 63, generator=torch.Generator().manual_seed(1)).to(device)

    def gradients(judge):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, v, reached)]
        step = judge(leaves[0], leaves[1], coefficients, leaves[2])
        loss = (step.squares * weights).sum() + (step.mean * x).sum()
        return torch.autograd.grad(loss, leaves)

    for ours, truth in zip(gradients(denoise.judge), gradients(reference.judge), strict=True):
        torch.testing.assert_close(ours, truth, **CLOSE)


def test_sampling_is_refused_a_gradient(device):
    x, v, coefficients = inputs(1, 64, device)
    sampled = denoise.sample(x, v.requires_grad_(), coefficients, key())
    with pytest.raises(RuntimeError, match="no autograd formula"):
        sampled.next_latents.sum().backward()


def test_more_channels_than_fit_are_refused_where_kernels_are_forced(device):
    with pytest.raises(ValueError, match="65 latent channels, at most 64"):
        denoise.follow(*inputs(1, 65, device))
