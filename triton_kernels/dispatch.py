"""Kernel or reference: the one place that chooses, for every op.

CUDA tensors use the Triton kernel and all others the reference. Where a kernel cannot take a CUDA
tensor, the reference stands in, and the log says why, once for each op and reason.
`SPOTLIGHT_KERNELS`, read when this module is imported, forces one of three:

- `reference`: plain torch, wherever the tensors are;
- `triton`: compiled kernels; what they cannot take is an error;
- `interpret`: kernels in Triton's interpreter, on the CPU. Triton decides for it when it is first
  imported, so this module must be imported before triton is.
"""

import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch

Mode = Literal["auto", "reference", "triton", "interpret"]

VARIABLE = "SPOTLIGHT_KERNELS"
logger = logging.getLogger(__name__)


def _read_mode() -> Mode:
    text = os.environ.get(VARIABLE, "auto")
    if text not in get_args(Mode):
        choices = ", ".join(get_args(Mode))
        raise ValueError(f"{VARIABLE} is '{text}', expected one of: {choices}")
    if text == "interpret":
        if "triton" in sys.modules and not sys.modules["triton"].knobs.runtime.interpret:
            raise ValueError(
                f"{VARIABLE}=interpret came too late: triton was imported before it; set "
                f"TRITON_INTERPRET=1 as well"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    return cast(Mode, text)


MODE: Mode = _read_mode()
HAS_TRITON = importlib.util.find_spec("triton") is not None
_reported: set[tuple[str, str]] = set()


def use_kernel(
    op: str,
    device: torch.device,
    find_obstacle: Callable[..., str | None] | None = None,
    *inputs: Any,
) -> bool:
    """Whether `op` runs as a kernel on tensors of `device`.

    Args:
        op: its name, for the log.
        find_obstacle: tells, given `inputs`, why the kernel cannot take them; None where it can.
            Only called where a kernel is in question: on a CPU, small ops feel every microsecond.

    Raises:
        ValueError: a kernel is forced and cannot run.
    """
    if MODE == "reference" or (MODE == "auto" and device.type != "cuda"):
        return False
    if MODE == "triton" and device.type != "cuda":
        raise ValueError(f"{VARIABLE}=triton, but {op} was given tensors on {device}")
    if MODE == "interpret" and device.type != "cpu":
        raise ValueError(f"{VARIABLE}=interpret, but {op} was given tensors on {device}")
    obstacle = find_obstacle(*inputs) if find_obstacle is not None else None
    if obstacle is None and not HAS_TRITON:
        obstacle = "triton is not installed"
    if obstacle is None:
        return True
    if MODE != "auto":
        raise ValueError(f"{VARIABLE}={MODE}, but the kernel of {op} cannot run: {obstacle}")
    _report(op, obstacle)
    return False


def _report(op: str, obstacle: str) -> None:
    # torch.compile cannot trace a logger; a compiled model has run eagerly before, or will.
    if torch.compiler.is_compiling() or (op, obstacle) in _reported:
        return
    _reported.add((op, obstacle))
    logger.warning("%s runs as plain torch: %s", op, obstacle)


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return MODE == "interpret"


def wrap_triton(kernel: Any) -> Any:
    """Return `kernel` in the form that `torch.library.triton_op` traces.

    The interpreter's functions are plain Python: there is nothing in them to trace.
    """
    return kernel if interpreting() else torch.library.wrap_triton(kernel)
