"""Noise of a trajectory: a function of (seed, step, stream, element) and nothing else."""

import time

import pytest
import torch

from spotlightd.dit.noise import Stream, standard_normal

SHAPE = (16, 64)


def test_a_slice_is_what_the_full_latent_has_there():
    full = standard_normal(7, 3, Stream.SDE, SHAPE).flatten()
    for start, count in ((0, 1), (1, 2), (3, 7), (511, 513), (1023, 1)):
        part = standard_normal(7, 3, Stream.SDE, (count,), start)
        assert torch.equal(part, full[start : start + count])


def test_a_larger_latent_begins_with_the_smaller_ones_numbers():
    small = standard_normal(7, 0, Stream.INITIAL, (10,))
    assert torch.equal(standard_normal(7, 0, Stream.INITIAL, (1001,))[:10], small)


@pytest.mark.parametrize(
    "other",
    [(8, 3, Stream.SDE), (7 + 2**32, 3, Stream.SDE), (7, 4, Stream.SDE), (7, 3, Stream.INITIAL)],
)
def test_another_seed_step_or_stream_is_independent(other):
    first = standard_normal(7, 3, Stream.SDE, (4096,))
    second = standard_normal(*other, (4096,))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 0.06


def test_the_numbers_are_standard_normal():
    z = standard_normal(123, 0, Stream.INITIAL, (200_000,)).double()
    assert abs(z.mean().item()) < 0.01
    assert z.std().item() == pytest.approx(1, abs=0.01)
    assert (z**4).mean().item() == pytest.approx(3, abs=0.1)
    assert (z > 1.6448536).double().mean().item() == pytest.approx(0.05, abs=0.003)


def test_no_two_elements_of_a_step_share_a_number():
    z = standard_normal(5, 1, Stream.SDE, SHAPE)
    assert z.flatten().unique().numel() == z.numel()


def test_a_latent_of_1024_elements_costs_well_under_a_millisecond():
    standard_normal(0, 0, Stream.INITIAL, SHAPE)
    costs = []
    for seed in range(50):
        began = time.perf_counter()
        standard_normal(seed, 0, Stream.INITIAL, SHAPE)
        costs.append(time.perf_counter() - began)
    assert min(costs) < 1e-3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((-1, 0, 0, (4,)), "seed -1"),
        ((2**64, 0, 0, (4,)), "seed"),
        ((0, -1, 0, (4,)), "step -1"),
        ((0, 0, 2**32, (4,)), "stream 4294967296"),
        ((0, 0, 0, (4,), -4), r"range -4\.\.0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        standard_normal(*arguments)
