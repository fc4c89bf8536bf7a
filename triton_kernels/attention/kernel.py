"""The Triton version of reference.py: one pass over the keys with a running softmax.

The method is FlashAttention-2's (arXiv 2307.08691); what differs is that the running maximum, sum
and output may start from those of earlier chunks. A row that has seen no key keeps output 0 and
log-sum-exp -inf.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels.attention import HEAD_SIZES
from triton_kernels.dispatch import interpreting, wrap_triton
from triton_kernels.precision import FLOATS
from triton_kernels.variants import Variant

BLOCKS = {
    # (bytes an element, head size): queries and keys per program, warps, stages
    (2, 64): (128, 64, 8, 3),
    (2, 128): (128, 64, 8, 3),
    (4, 64): (32, 32, 8, 1),
    (4, 128): (16, 16, 8, 1),
}
"""Blocks that spill no register (`make aot`). Products of fp32 take no tensor core: it is there to
be exact, not fast."""
BLOCKS_BEFORE_HOPPER = {**BLOCKS, (2, 128): (128, 32, 8, 3)}
"""sm_80 keeps the scores in more registers."""
TARGETS = {"sm_80": BLOCKS_BEFORE_HOPPER, "sm_90": BLOCKS, "sm_100": BLOCKS}


@triton.jit(do_not_specialize=["queries", "keys", "scale", "has_mask", "has_carried"])
def chunk_kernel(
    out_ptr,
    lse_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    mask_ptr,
    carried_out_ptr,
    carried_lse_ptr,
    queries: tl.int32,
    keys: tl.int32,
    heads: tl.int32,
    scale: tl.float32,
    has_mask: tl.int32,
    has_carried: tl.int32,
    UPCAST: tl.constexpr,
    E: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Tensors are contiguous [B, tokens, heads, E], lse [B, heads, queries], mask [B, keys].

    A program takes M queries of one head, N keys at a time. Exponentials are to base 2.
    """
    sample = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    row = tl.program_id(0) * M + tl.arange(0, M)
    channel = tl.arange(0, E)
    in_rows = (row < queries)[:, None]
    at_query = ((sample * queries + row)[:, None] * heads + head) * E + channel[None, :]
    at_lse = (sample * heads + head) * queries + row
    q = tl.load(query_ptr + at_query, mask=in_rows, other=0.0)
    if UPCAST:  # Triton's interpreter multiplies the bit patterns of bf16.
        q = q.to(tl.float32)
    to_base_2 = scale * 1.4426950408889634

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, E], tl.float32)
    if has_carried:
        lse = tl.load(carried_lse_ptr + at_lse, mask=row < queries, other=float("-inf"))
        top = lse * 1.4426950408889634
        total = tl.where(lse == float("-inf"), 0.0, 1.0)
        out = tl.load(carried_out_ptr + at_query, mask=in_rows, other=0.0)

    for first in range(0, keys, N):
        column = first + tl.arange(0, N)
        in_columns = column < keys
        at_key = ((sample * keys + column) * heads + head) * E
        k = tl.load(
            key_ptr + at_key[None, :] + channel[:, None], mask=in_columns[None, :], other=0.0
        )
        v = tl.load(
            value_ptr + at_key[:, None] + channel[None, :], mask=in_columns[:, None], other=0.0
        )
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        kept = tl.load(mask_ptr + sample * keys + column, mask=column < keys * has_mask, other=1)
        seen = in_columns & (kept != 0)
        scores = tl.dot(q, k, input_precision="ieee") * to_base_2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        # Rows that have seen no key would subtract -inf from -inf.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None]
        out = tl.dot(weights.to(v.dtype), v, out, input_precision="ieee")
        top = new_top

    seen_total = tl.where(total == 0.0, 1.0, total)
    out = out / seen_total[:, None]
    lse = (top + tl.log2(seen_total)) * 0.6931471805599453
    tl.store(out_ptr + at_query, out.to(out_ptr.dtype.element_ty), mask=in_rows)
    tl.store(lse_ptr + at_lse, lse, mask=row < queries)


def _configuration(
    blocks: dict[tuple[int, int], tuple[int, int, int, int]], element_bytes: int, size: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (constants, compiler options)."""
    queries, keys, warps, stages = blocks[element_bytes, size]
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return {"UPCAST": False, "E": size, "M": queries, "N": keys}, options


def _configuration_here(query: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    size = query.shape[3]
    if interpreting():  # It pays by the program, whatever its width.
        return {"UPCAST": True, "E": size, "M": 128, "N": 64}, {}
    hopper = torch.cuda.get_device_capability(query.device) >= (9, 0)
    blocks = BLOCKS if hopper else BLOCKS_BEFORE_HOPPER
    return _configuration(blocks, query.element_size(), size)


@torch.library.triton_op("spotlight::attention_chunk", mutates_args={})
def chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    carried_out: Tensor | None,
    carried_lse: Tensor | None,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return (output in `dtype`, lse)."""
    batch, queries, heads, _ = query.shape
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    out = torch.empty(query.shape, dtype=dtype, device=query.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    # What is not there is given any pointer of the right type, which is not followed.
    mask = lse.view(torch.uint8) if key_mask is None else key_mask.contiguous().view(torch.uint8)
    first_out = lse if carried_out is None else carried_out.float().contiguous()
    first_lse = lse if carried_lse is None else carried_lse.contiguous()
    constants, options = _configuration_here(query)
    grid = (max(1, triton.cdiv(queries, constants["M"])), batch * heads)
    wrap_triton(chunk_kernel)[grid](
        out, lse, query, key, value, mask, first_out, first_lse,
        queries, key.shape[1], heads, scale, int(key_mask is not None),
        int(carried_out is not None), **constants, **options,
    )  # fmt: skip
    return out, lse


def _variant(size: int, dtype: torch.dtype, out: torch.dtype, targets: tuple[str, ...]) -> Variant:
    constants, options = _configuration(TARGETS[targets[0]], dtype.itemsize, size)
    name = FLOATS[dtype]
    kind = f"*{name}"
    return Variant(
        name=f"attention head {size} {name} into {FLOATS[out]}, {constants['N']} keys",
        kernel=chunk_kernel,
        types={
            "out_ptr": f"*{FLOATS[out]}", "lse_ptr": "*fp32", "query_ptr": kind, "key_ptr": kind,
            "value_ptr": kind, "mask_ptr": "*u8", "carried_out_ptr": "*fp32",
            "carried_lse_ptr": "*fp32", "queries": "i32", "keys": "i32", "heads": "i32",
            "scale": "fp32", "has_mask": "i32", "has_carried": "i32",
        },
        constants=constants,
        options=options,
        targets=targets,
    )  # fmt: skip


def _variants() -> list[Variant]:
    found = []
    for size in HEAD_SIZES:
        for dtype in FLOATS:
            by_blocks: dict[tuple[int, int, int, int], list[str]] = {}
            for target, blocks in TARGETS.items():
                by_blocks.setdefault(blocks[dtype.itemsize, size], []).append(target)
            for targets in by_blocks.values():
                for out in dict.fromkeys((torch.float32, dtype)):
                    found.append(_variant(size, dtype, out, tuple(targets)))
    return found


VARIANTS = _variants()
