"""Tests of kernels (`check_*.py`) run in a process of their own; `test_kernels.py` starts it.

KERNELS_UNDER_TEST is `interpret` there (Triton's interpreter, on the CPU) or `triton` (compiled, on
a CUDA device). It must be known before triton is imported.
"""

import os
from collections.abc import Iterator

import pytest

MODE = os.environ.get("KERNELS_UNDER_TEST")
if MODE is not None:
    os.environ["SPOTLIGHT_KERNELS"] = MODE


@pytest.fixture
def device() -> "torch.device":  # noqa: F821
    """Where the kernels under test run."""
    import torch

    return torch.device("cuda" if MODE == "triton" else "cpu")


@pytest.fixture
def nan_memory() -> Iterator[None]:
    """Fill fresh memory with NaN (integers: the largest), so that what is not written shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
