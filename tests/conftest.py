"""What every test may rely on: few threads, no network hub, GPU tests skipped with a reason."""

import os

# Before any library starts its thread pool or looks for a model hub.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
# A developer's own settings must not decide a test.
for _name in [name for name in os.environ if name.startswith("SPOTLIGHT_")]:
    del os.environ[_name]

import sys  # noqa: E402

import pytest  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no CUDA device (torch is asked only if need be)."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(
            reason="no CUDA device; run with `make test-gpu` where there is one"
        )
        for item in marked:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Keep torch to one thread, in tests that use it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
