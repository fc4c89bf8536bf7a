"""Attention over keys that arrive in chunks, for ranks that hold parts of the tokens.

`attend_chunk` takes the result of earlier chunks along: its online softmax starts from their output
and log-sum-exp, so chunks need no kernel to be merged, and may be of any length, zero included.
`attend` is for keys that are all there: it is torch's own attention, which is faster than this
kernel on every GPU that has a fused one, and which has a backward pass.

Legend: B samples, L queries, M keys, H heads, E channels of a head.
"""

import math

import torch
from torch import Tensor

from triton_kernels import dispatch
from triton_kernels.attention import reference
from triton_kernels.attention.reference import Attended
from triton_kernels.precision import FLOATS

HEAD_SIZES = (64, 128)

__all__ = ["HEAD_SIZES", "Attended", "attend", "attend_chunk"]


def attend(query: Tensor, key: Tensor, value: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Return attention [B, L, H, E] over all keys; differentiable.

    Args:
        query: [B, L, H, E].
        key, value: [B, M, H, E].
        key_mask: bool [B, M], False for keys that nobody attends to, such as padded text.
    """
    _check(query, key, value, key_mask)
    out = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=None if key_mask is None else key_mask[:, None, None],
    )
    return out.transpose(1, 2)


def attend_chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_mask: Tensor | None = None,
    carried: Attended | None = None,
    dtype: torch.dtype = torch.float32,
) -> Attended:
    """Attend to one more chunk of keys. The kernel has no gradient: sampling only.

    Args:
        query: [B, L, H, E].
        key, value: [B, M, H, E] of this chunk.
        key_mask: bool [B, M], False for keys that nobody attends to.
        carried: what earlier chunks gave, `out` in fp32; None at the first.
        dtype: of the output; fp32 unless this is the last chunk, or rounding would add up.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check(query, key, value, key_mask)
    if dtype not in (torch.float32, query.dtype):
        raise ValueError(f"output in {dtype}, expected float32 or the query's {query.dtype}")
    if carried is not None:
        _check_carried(query, carried)
    scale = 1 / math.sqrt(query.shape[3])
    if dispatch.use_kernel("attention", query.device, _obstacle, query, key, value):
        from triton_kernels.attention import kernel

        previous = (None, None) if carried is None else carried
        return Attended(*kernel.chunk(query, key, value, key_mask, *previous, scale, dtype))
    out, lse = reference.attend_chunk(query, key, value, key_mask, carried, scale)
    return Attended(out.to(dtype), lse)


def _check(query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None) -> None:
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} "
            f"must be [B, L, H, E] and twice [B, M, H, E]"
        )
    if (query.shape[0], *query.shape[2:]) != (key.shape[0], *key.shape[2:]):
        raise ValueError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} may differ in tokens alone"
        )
    if key_mask is not None and (key_mask.shape != key.shape[:2] or key_mask.dtype != torch.bool):
        raise ValueError(
            f"key_mask must be bool {tuple(key.shape[:2])}, not {key_mask.dtype} "
            f"{tuple(key_mask.shape)}"
        )


def _check_carried(query: Tensor, carried: Attended) -> None:
    batch, tokens, heads, _ = query.shape
    shapes = (tuple(carried.out.shape), tuple(carried.lse.shape))
    if shapes != (tuple(query.shape), (batch, heads, tokens)):
        raise ValueError(f"carried output and log-sum-exp are {shapes}, for {tuple(query.shape)}")
    if carried.out.dtype == torch.bfloat16 or carried.out.dtype == torch.float16:
        raise ValueError(f"carried output is {carried.out.dtype}: carry it in float32")


def _obstacle(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    size = query.shape[3]
    if size not in HEAD_SIZES and not dispatch.interpreting():
        return f"heads of {size} channels, the kernel takes {HEAD_SIZES}"
    kinds = {query.dtype, key.dtype, value.dtype}
    if len(kinds) > 1 or not kinds <= FLOATS.keys():
        names = ", ".join(sorted(map(str, kinds)))
        return f"inputs are {names}, the kernel takes one of {', '.join(map(str, FLOATS))}"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        return "the kernel has no gradient"
    return None
