"""How much memory a rank will need beside what it holds already, before the first update shows it.

Activations are an estimate: a transformer block keeps about 34 bytes a token and channel in 16-bit
arithmetic (Korthikanti et al. 2022, arXiv 2205.05198, without the attention matrix, which fused
attention never keeps), or its input alone where activations are computed again.
"""

from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spotlightd.trainer.policy import Policy
from spotlightd.trainer.sharding import is_block

BLOCK_BYTES = 34 / 2
"""Per token, channel and byte of a number."""


class MemoryNeed(NamedTuple):
    """Bytes that are still to come on this rank."""

    gradients: int
    optimizer: int
    whole_blocks: int
    """Two sharded blocks gathered at a time: one computes, the next arrives."""
    activations: int

    @property
    def total(self) -> int:
        return sum(self)


def estimate(policy: Policy, tokens: int) -> MemoryNeed:
    """Estimate an update's need.

    Args:
        tokens: of image and text together, for one trajectory.
    """
    trained = sum(_local(p).numel() * p.element_size() for p in policy.parameters.values())
    stepped = any(policy.optimizer.state.values())
    transformer = policy.model.transformer
    blocks = [module for module in transformer.modules() if is_block(transformer, module)]
    number = _number_bytes(policy)
    sizes = [sum(p.numel() * number for p in block.parameters()) for block in blocks]
    sharded = any(isinstance(p, DTensor) for p in policy.parameters.values())
    return MemoryNeed(
        trained,
        0 if stepped else 2 * trained,
        2 * max(sizes, default=0) if sharded else 0,
        _activations(policy, tokens, len(blocks), number),
    )


def free_bytes(device: torch.device) -> int:
    """Return what is free on the device, reserved but unused memory of this process included."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + unused)


def _activations(policy: Policy, tokens: int, blocks: int, number: int) -> int:
    config: Any = policy.model.transformer.config
    width = int(config.num_attention_heads) * int(config.attention_head_dim)
    of_block = BLOCK_BYTES * number * policy.section.micro_batch * tokens * width
    if policy.section.activation_checkpointing:
        kept = number * policy.section.micro_batch * tokens * width
        return int(of_block + kept * blocks)
    return int(of_block * blocks)


def _number_bytes(policy: Policy) -> int:
    dtype = policy.compute_dtype or next(policy.model.transformer.parameters()).dtype
    return torch.tensor([], dtype=dtype).element_size()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
