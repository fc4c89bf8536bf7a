"""What lies before and after the two all-to-alls of Ulysses attention (arXiv 2309.14509).

Each of P ranks holds some tokens with all H heads, and attends with all tokens and H / P heads:

    pack_heads    -> all-to-all -> unpack_tokens -> attention
    pack_tokens   -> all-to-all -> unpack_heads

Send and receive buffers are rank-major, as `all_to_all_single` takes them. Ranks may hold different
numbers of tokens, none included. Queries, keys and values travel in one buffer and one collective.

Legend: B samples, L tokens of this rank, T of all ranks, H heads, E channels of a head.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from triton_kernels import dispatch
from triton_kernels.ulysses import reference

MAX_KINDS = 3


def pack_heads(tensors: Sequence[Tensor], degree: int) -> Tensor:
    """Return [P, K, B, L, H / P, E]: what each rank is sent of K tensors [B, L, H, E].

    Raises:
        ValueError: the degree does not divide the heads, or the tensors differ.
    """
    first = tensors[0]
    if any(tensor.shape != first.shape or tensor.dtype != first.dtype for tensor in tensors):
        raise ValueError(f"tensors differ: {[(tuple(t.shape), t.dtype) for t in tensors]}")
    if first.dim() != 4 or degree < 1 or first.shape[2] % degree:
        raise ValueError(f"[B, L, H, E] is {tuple(first.shape)}: {degree} ranks must divide H")
    if dispatch.use_kernel("ulysses", first.device, _obstacle, first.shape[3], *tensors):
        from triton_kernels.ulysses import kernel

        return kernel.pack_heads(list(tensors), degree)
    return reference.pack_heads(tensors, degree)


def unpack_tokens(
    received: Tensor, counts: Sequence[int], kinds: int, batch: int, heads: int, size: int
) -> Tensor:
    """Return [K, B, T, H / P, E] from what the ranks sent.

    Args:
        received: [sum over ranks of K B L_rank (H / P) E], rank after rank.
        counts: tokens of each rank.
        kinds, batch, heads, size: K, B, H / P and E.
    """
    wanted = kinds * batch * sum(counts) * heads * size
    if received.shape != (wanted,):
        raise ValueError(f"received {tuple(received.shape)}, expected ({wanted},) for {counts}")
    shape = (kinds, batch, heads, size)
    if dispatch.use_kernel("ulysses", received.device, _obstacle, size, received):
        from triton_kernels.ulysses import kernel

        return kernel.unpack_tokens(received, _starts(tuple(counts), received.device), *shape)
    return reference.unpack_tokens(received, counts, shape)


def pack_tokens(joined: Tensor, counts: Sequence[int]) -> Tensor:
    """Return [sum over ranks of B L_rank (H / P) E], rank after rank, from [B, T, H / P, E]."""
    if joined.dim() != 4 or joined.shape[1] != sum(counts):
        raise ValueError(f"[B, T, H, E] is {tuple(joined.shape)}, expected {sum(counts)} tokens")
    if dispatch.use_kernel("ulysses", joined.device, _obstacle, joined.shape[3], joined):
        from triton_kernels.ulysses import kernel

        return kernel.pack_tokens(joined, _starts(tuple(counts), joined.device))
    return reference.pack_tokens(joined, counts)


def unpack_heads(received: Tensor) -> Tensor:
    """Return [B, L, H, E] from [P, B, L, H / P, E], the heads that each rank computed."""
    if received.dim() != 5:
        raise ValueError(f"expected [P, B, L, H / P, E], not {tuple(received.shape)}")
    if dispatch.use_kernel("ulysses", received.device, _obstacle, received.shape[4], received):
        from triton_kernels.ulysses import kernel

        return kernel.unpack_heads(received)
    return reference.unpack_heads(received)


@lru_cache(maxsize=256)
def _starts(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return int32 [P + 1]: the token that each rank begins with, and their number."""
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)


def _obstacle(size: int, *tensors: Tensor) -> str | None:
    if len(tensors) > MAX_KINDS:
        return f"{len(tensors)} tensors, at most {MAX_KINDS} go into one buffer"
    if size * tensors[0].element_size() % 4:
        return f"heads of {size} {tensors[0].dtype} are no whole number of four-byte words"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "the kernel has no gradient"
    return None
