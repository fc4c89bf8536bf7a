"""Every kernel against its reference, in Triton's interpreter or compiled on a CUDA device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = sorted(HERE.glob("check_*.py"))


def run_checks(mode):
    """Run the checks in a process that knows from its start how kernels are run."""
    environ = {**os.environ, "KERNELS_UNDER_TEST": mode, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=8", *CHECKS]
    done = subprocess.run(
        command, env=environ, cwd=HERE.parents[1], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kernels_in_the_interpreter_equal_their_references():
    run_checks("interpret")


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_compiled_kernels_equal_their_references():
    run_checks("triton")
