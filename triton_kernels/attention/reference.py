"""Attention over a chunk of keys, and merging of chunks, in plain torch: the truth for the kernel.

Computed in fp32; differentiable.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels.precision import widen


class Attended(NamedTuple):
    out: Tensor
    """[B, L, H, E]: values averaged over the keys seen so far; 0 where there were none."""
    lse: Tensor
    """fp32 [B, H, L]: natural logarithm of the sum of exp(score); -inf where there were none."""


def attend_chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    carried: Attended | None,
    scale: float,
) -> Attended:
    q, k, v = (widen(tensor) for tensor in (query, key, value))
    scores = torch.einsum("blhe,bmhe->bhlm", q, k) * scale
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None], -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - _finite(lse)[..., None])
    chunk = Attended(torch.einsum("bhlm,bmhe->blhe", weights, v), lse)
    return chunk if carried is None else merge(carried, chunk)


def merge(first: Attended, second: Attended) -> Attended:
    """Return attention over the keys of both.

    With L = log(exp(a) + exp(b)): out = out_a exp(a - L) + out_b exp(b - L).
    """
    lse = torch.logaddexp(first.lse, second.lse)
    shares = [torch.exp(part.lse - _finite(lse)) for part in (first, second)]
    a, b = (share.transpose(1, 2)[..., None] for share in shares)
    return Attended(a * first.out + b * second.out, lse)


def _finite(lse: Tensor) -> Tensor:
    """Put 0 for -inf, so that the difference of two is -inf and not NaN."""
    return torch.where(lse == -torch.inf, 0.0, lse)
