"""FSDP2: weights, gradients and optimizer state are spread over the ranks.

A shard is a DTensor; each block's weights are whole only while it computes.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(transformer: Any, mesh: DeviceMesh, compute_dtype: torch.dtype | None) -> None:
    """Shard a diffusers model over `mesh`, block by block.

    Args:
        compute_dtype: blocks compute in it, from weights that keep their own dtype; None: in the
            weights' own. Gradients are summed over ranks in fp32 always.
    """
    # Nothing here works in place on what a block returns, which is what the warning is about.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for module in list(transformer.modules()):
        if is_block(transformer, module):
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(transformer, mesh=mesh, mp_policy=precision)


def is_block(transformer: Any, module: Any) -> bool:
    """Whether a submodule is one of the blocks that diffusers never splits over devices."""
    blocks = set(getattr(transformer, "_no_split_modules", None) or ())
    return bool(blocks & {kind.__name__ for kind in type(module).__mro__})


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor whole on every rank, which must all ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole, detached copies on the CPU."""
    return {name: whole(t.detach()).cpu().contiguous() for name, t in tensors.items()}


@torch.no_grad()
def copy_whole(target: Tensor, source: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    source = source.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        source = distribute_tensor(source, target.device_mesh, target.placements)
    target.copy_(source)
