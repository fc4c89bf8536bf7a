"""Kernel or reference: by device, by force, and with a reason in the log."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from triton_kernels import dispatch

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(dispatch, "_reported", set())
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)


def say(obstacle):
    return obstacle


def fail_if_asked():
    raise AssertionError("no kernel is in question: nothing should look for an obstacle")


def in_mode(monkeypatch, mode):
    monkeypatch.setattr(dispatch, "MODE", mode)


@pytest.mark.parametrize(
    ("mode", "device", "kernel"),
    [
        ("auto", CPU, False),
        ("auto", CUDA, True),
        ("reference", CPU, False),
        ("reference", CUDA, False),
        ("triton", CUDA, True),
        ("interpret", CPU, True),
    ],
)
def test_the_device_chooses_unless_something_is_forced(monkeypatch, mode, device, kernel):
    in_mode(monkeypatch, mode)
    assert dispatch.use_kernel("op", device) is kernel


@pytest.mark.parametrize(("mode", "device"), [("triton", CPU), ("interpret", CUDA)])
def test_a_force_that_the_device_cannot_follow_is_an_error(monkeypatch, mode, device):
    in_mode(monkeypatch, mode)
    with pytest.raises(ValueError, match=f"SPOTLIGHT_KERNELS={mode}, but op was given tensors on"):
        dispatch.use_kernel("op", device)


def test_a_fallback_is_logged_once_for_each_op_and_reason(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not dispatch.use_kernel("adaln", CUDA, say, "8192 channels")
        assert not dispatch.use_kernel("adaln", CUDA, say, "mixed dtypes")
        assert not dispatch.use_kernel("noise", CPU, fail_if_asked)
    assert caplog.messages == [
        "adaln runs as plain torch: 8192 channels",
        "adaln runs as plain torch: mixed dtypes",
    ]


def test_without_triton_the_reference_stands_in_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "HAS_TRITON", False)
    assert not dispatch.use_kernel("noise", CUDA)
    assert caplog.messages == ["noise runs as plain torch: triton is not installed"]


def test_a_forced_kernel_that_cannot_run_is_an_error_with_the_reason(monkeypatch):
    in_mode(monkeypatch, "triton")
    with pytest.raises(ValueError, match="the kernel of adaln cannot run: 8192 channels"):
        dispatch.use_kernel("adaln", CUDA, say, "8192 channels")


def imported(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_unknown_choice_is_refused_with_those_known():
    done = imported("import triton_kernels.dispatch", SPOTLIGHT_KERNELS="fast")
    assert "'fast', expected one of: auto, reference, triton, interpret" in done.stderr


def test_asking_for_the_interpreter_after_triton_is_refused():
    done = imported("import triton, triton_kernels.dispatch", SPOTLIGHT_KERNELS="interpret")
    assert "triton was imported before it" in done.stderr


def test_importing_the_ops_imports_no_triton():
    code = (
        "import sys, triton_kernels.denoise, triton_kernels.noise; print('triton' in sys.modules)"
    )
    done = imported(code)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
