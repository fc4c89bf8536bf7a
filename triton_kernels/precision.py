"""Element types: what kernels take, and what everything is computed in."""

import torch
from torch import Tensor

FLOATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Element types that the kernels take, and Triton's names for them."""
_WIDE = (torch.float32, torch.float64)


def widen(tensor: Tensor) -> Tensor:
    """Return in fp32 what is narrower; fp64 stays, so that a reference can be more exact."""
    return tensor if tensor.dtype in _WIDE else tensor.float()
