"""The noise kernel: integers equal the reference's, normals to 1e-6."""

import numpy as np
import pytest
import torch

from tests.triton_kernels.noise_cases import CASES
from triton_kernels import noise
from triton_kernels.noise import reference
from triton_kernels.noise.kernel import launch_with_bits

pytestmark = pytest.mark.usefixtures("nan_memory")


@pytest.mark.parametrize("case", CASES)
def test_integers_equal_and_normals_agree(device, case):
    seed, step, stream, count, start = case
    normals, bits = launch_with_bits(*case, device)
    expected = reference.random_bits(seed, step, stream, start, count)
    np.testing.assert_array_equal(bits.cpu().numpy().view(np.uint32), expected)
    truth = reference.standard_normal(*case)
    np.testing.assert_allclose(normals.cpu().numpy(), truth, atol=1e-6, rtol=0)


def test_many_normals_agree_tails_included(device):
    count = 200_000
    ours = noise.standard_normal(5, 3, 1, count, 0, device).cpu().numpy()
    truth = reference.standard_normal(5, 3, 1, count)
    assert np.abs(ours - truth).max() < 1e-6
    assert np.abs(truth).max() > 4.2


@pytest.mark.parametrize("start", [0, 1, 250])
def test_the_public_function_runs_this_kernel(device, start):
    drawn = noise.standard_normal(9, 1, 1, 65, start, device)
    assert drawn.device.type == device.type
    normals, _ = launch_with_bits(9, 1, 1, 65, start, device)
    assert torch.equal(drawn, normals)
