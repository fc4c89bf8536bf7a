"""RMSNorm and rotation of queries and keys in plain torch: the truth for the kernel.

Differentiable throughout; computed in fp32 and rounded once.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels.precision import widen


class Tokens(NamedTuple):
    """Queries and keys of one stream (image or text), and what is done to them."""

    query: Tensor
    """[B, L, H, E]."""
    key: Tensor
    """[B, L, H, E]."""
    query_weight: Tensor
    """[E], of RMSNorm over the head."""
    key_weight: Tensor
    """[E]."""
    rotation: Tensor | None
    """fp32 [L, E / 2, 2]: cosine and sine by which channel pairs (2i, 2i + 1) of each token are
    turned; None for no position embedding."""


def qk_norm_rope(image: Tokens, text: Tokens | None, eps: float) -> tuple[Tensor, Tensor]:
    streams = [image] if text is None else [text, image]
    query = [_one(s.query, s.query_weight, s.rotation, eps) for s in streams]
    key = [_one(s.key, s.key_weight, s.rotation, eps) for s in streams]
    return torch.cat(query, dim=1), torch.cat(key, dim=1)


def _one(x: Tensor, weight: Tensor, rotation: Tensor | None, eps: float) -> Tensor:
    wide = widen(x)
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * widen(weight)
    if rotation is not None:
        turned = torch.view_as_complex(normed.view(*normed.shape[:-1], x.shape[-1] // 2, 2))
        by = torch.view_as_complex(rotation.to(normed.dtype))[:, None]
        normed = torch.view_as_real(turned * by).flatten(-2)
    return normed.to(x.dtype)
