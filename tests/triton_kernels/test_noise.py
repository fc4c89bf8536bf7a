"""Noise in numpy (the truth) and torch: integers equal, normals to 1e-6; and is it normal?"""

import numpy as np
import pytest
import scipy.special
import torch

from tests.triton_kernels.noise_cases import CASES
from triton_kernels import noise
from triton_kernels.noise import portable, reference

CPU = torch.device("cpu")

KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
"""Published Philox4x32-10 vectors: counter, key, output."""


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_the_reference_meets_the_published_vectors(counter, key, output):
    out = reference.philox4x32(np.array([counter], dtype=np.uint32), key)
    assert " ".join(f"{word:08x}" for word in out[0]) == output


def test_each_half_of_the_seed_and_each_counter_word_is_where_the_contract_says():
    seed, element, step, stream = 0x299F31D0_A4093822, 4 * 0x0000_0012_243F6A88, 7, 1
    bits = reference.random_bits(seed, step, stream, element, 4)
    counter = np.array([[0x243F6A88, 7, 1, 0x12]], dtype=np.uint32)
    assert bits.tolist() == reference.philox4x32(counter, (0xA4093822, 0x299F31D0))[0].tolist()


@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_references_integers(case):
    seed, step, stream, count, start = case
    bits = portable.random_bits(seed, step, stream, start, count, CPU)
    assert bits.tolist() == reference.random_bits(seed, step, stream, start, count).tolist()


@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_references_normals(case):
    ours = portable.standard_normal(*case, CPU)
    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.numpy(), reference.standard_normal(*case), atol=1e-6, rtol=0)


@pytest.mark.parametrize("word", [0, 2**9 - 1, 2**31, 2**32 - 1])
def test_the_extreme_integers_give_finite_normals_in_every_version(monkeypatch, word):
    def words(seed, step, stream, start, count, device=None):
        bits = np.full(count, word, dtype=np.uint32)
        return bits if device is None else torch.from_numpy(bits.astype(np.int64))

    monkeypatch.setattr(reference, "random_bits", words)
    monkeypatch.setattr(portable, "random_bits", words)
    expected = reference.standard_normal(0, 0, 0, 2)
    assert np.isfinite(expected).all()
    ours = portable.standard_normal(0, 0, 0, 2, 0, CPU).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-6, rtol=0)


def test_uniforms_near_one_keep_their_small_radius():
    """A uniform that float32 rounds to 1 would give radius 0 where the truth is 3e-4."""
    ours = portable.standard_normal(5, 3, 1, 1_000_000, 0, CPU).numpy()
    expected = reference.standard_normal(5, 3, 1, 1_000_000)
    assert np.abs(ours - expected).max() < 1e-6


def test_cpu_tensors_come_from_the_reference():
    drawn = noise.standard_normal(3, 1, 1, 100, 7)
    np.testing.assert_array_equal(drawn.numpy(), reference.standard_normal(3, 1, 1, 100, 7))


def collisions(triples, count=8):
    """Return how many of the 32-bit words drawn for (seed, step, stream) came up before.

    Eight blocks of four words each: 128-bit values, where not one repetition is to be expected.
    """
    blocks = np.concatenate(
        [reference.random_bits(*triple, 0, 4 * count).reshape(count, 4) for triple in triples]
    )
    return len(blocks) - len(np.unique(blocks, axis=0))


SEEDS = [0, 1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
TRIPLES = [(seed, step, stream) for seed in SEEDS for step in range(50) for stream in range(3)]


def test_no_two_seeds_steps_or_streams_share_a_number():
    assert collisions(TRIPLES) == 0


@pytest.mark.parametrize(
    "forget",
    [
        lambda seed, step, stream: (seed & 0xFFFFFFFF, step, stream),
        lambda seed, step, stream: (seed, step, 0),
        lambda seed, step, stream: (seed, step % 49, stream),
    ],
    ids=["high half of the seed", "stream", "one step"],
)
def test_the_collision_test_sees_a_key_that_is_not_used_whole(forget):
    assert collisions([forget(*triple) for triple in TRIPLES]) > 0


@pytest.mark.slow
def test_ten_million_draws_are_standard_normal():
    """Kolmogorov-Smirnov and the first four moments, each within 4 standard errors or p > 1e-4.

    The seed is fixed, so the outcome is too: this is a test of the generator and not of luck.
    """
    count, chunk = 10_000_000, 1_000_000
    draws = np.concatenate(
        [reference.standard_normal(17, 2, 1, chunk, start) for start in range(0, count, chunk)]
    )
    moments = [float(np.mean(draws**power, dtype=np.float64)) for power in (1, 2, 3, 4)]
    # Variances of x, x^2, x^3, x^4: 1, 2, 15, 96.
    for moment, expected, variance in zip(moments, (0, 1, 0, 3), (1, 2, 15, 96), strict=True):
        assert abs(moment - expected) < 4 * np.sqrt(variance / count)
    neighbours = float(np.mean(draws[1:] * draws[:-1], dtype=np.float64))
    assert abs(neighbours) < 4 / np.sqrt(count)
    draws.sort()
    cdf = scipy.special.ndtr(draws.astype(np.float64))
    ranks = np.arange(count + 1) / count
    distance = max(np.max(ranks[1:] - cdf), np.max(cdf - ranks[:-1]))
    assert scipy.special.kolmogorov(np.sqrt(count) * distance) > 1e-4


def test_neighbouring_keys_are_uncorrelated():
    count = 1_000_000
    first = reference.standard_normal(17, 2, 1, count)
    for key in [(18, 2, 1), (17, 3, 1), (17, 2, 0), (17 + 2**32, 2, 1)]:
        other = reference.standard_normal(*key, count)
        product = float(np.mean(first * other, dtype=np.float64))
        assert abs(product) < 4 / np.sqrt(count), key
