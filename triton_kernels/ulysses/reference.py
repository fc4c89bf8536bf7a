"""Buffers of the all-to-alls around Ulysses attention, in plain torch: the truth for the kernel.

Differentiable: they only move elements.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def pack_heads(tensors: Sequence[Tensor], degree: int) -> Tensor:
    batch, tokens, heads, size = tensors[0].shape
    shape = (batch, tokens, degree, heads // degree, size)
    return torch.stack([tensor.reshape(shape).permute(2, 0, 1, 3, 4) for tensor in tensors], dim=1)


def unpack_heads(received: Tensor) -> Tensor:
    degree, batch, tokens, heads, size = received.shape
    return received.permute(1, 2, 0, 3, 4).reshape(batch, tokens, degree * heads, size)


def pack_tokens(joined: Tensor, counts: Sequence[int]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in joined.split(list(counts), dim=1)])


def unpack_tokens(received: Tensor, counts: Sequence[int], shape: Sequence[int]) -> Tensor:
    kinds, batch, heads, size = shape
    per_token = kinds * batch * heads * size
    parts = received.split([count * per_token for count in counts])
    views = [
        part.view(kinds, batch, count, heads, size)
        for part, count in zip(parts, counts, strict=True)
    ]
    return torch.cat(views, dim=2)
