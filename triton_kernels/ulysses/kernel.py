"""The Triton version of reference.py: copies of whole head groups, four bytes at a time.

Elements are moved and never read, so every dtype is moved as int32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels.dispatch import interpreting, wrap_triton
from triton_kernels.variants import Variant

WORDS = 512
"""Words of a token per turn: twelve heads of 64 bf16 channels take one."""
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _copy(to_ptr, to, from_ptr, at, inside, words, W: tl.constexpr):
    """Copy `words` consecutive words at each of a block of positions."""
    for first in range(0, words, W):
        word = first + tl.arange(0, W)[None, :]
        there = inside[:, None] & (word < words)
        value = tl.load(from_ptr + at[:, None] + word, mask=there)
        tl.store(to_ptr + to[:, None] + word, value, mask=there)


@triton.jit(do_not_specialize=["rows", "words"])
def heads_kernel(
    packed_ptr,
    first_ptr,
    second_ptr,
    third_ptr,
    rows: tl.int32,
    words: tl.int32,
    UNPACKS: tl.constexpr,
    W: tl.constexpr,
    R: tl.constexpr,
):
    """packed [P, K, rows, words] <-> K tensors [rows, P, words]; rows are (sample, token)."""
    rank, degree = tl.program_id(1), tl.num_programs(1)
    kind, kinds = tl.program_id(2), tl.num_programs(2)
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    inside = row < rows
    packed = ((rank * kinds + kind).to(tl.int64) * rows + row) * words
    whole = (row * degree + rank) * words
    if UNPACKS:
        _copy(first_ptr, whole, packed_ptr, packed, inside, words, W)
    else:
        from_ptr = first_ptr
        if kind == 1:
            from_ptr = second_ptr
        if kind == 2:
            from_ptr = third_ptr
        _copy(packed_ptr, packed, from_ptr, whole, inside, words, W)


@triton.jit(do_not_specialize=["tokens", "ranks", "words"])
def tokens_kernel(
    packed_ptr,
    joined_ptr,
    starts_ptr,
    tokens: tl.int32,
    ranks: tl.int32,
    words: tl.int32,
    UNPACKS: tl.constexpr,
    W: tl.constexpr,
    R: tl.constexpr,
):
    """packed: each rank [planes, its tokens, words] in turn <-> joined [planes, tokens, words];
    planes are (kind, sample).
    """
    plane, planes = tl.program_id(1), tl.num_programs(1)
    token = tl.program_id(0) * R + tl.arange(0, R)
    begin = tl.zeros([R], tl.int32)
    count = tl.zeros([R], tl.int32)
    for rank in range(0, ranks):
        start = tl.load(starts_ptr + rank)
        stop = tl.load(starts_ptr + rank + 1)
        here = (token >= start) & (token < stop)
        begin = tl.where(here, start, begin)
        count = tl.where(here, stop - start, count)
    inside = token < tokens
    before = begin.to(tl.int64) * planes
    packed = (before + plane.to(tl.int64) * count + (token - begin)) * words
    joined = (plane.to(tl.int64) * tokens + token) * words
    if UNPACKS:
        _copy(joined_ptr, joined, packed_ptr, packed, inside, words, W)
    else:
        _copy(packed_ptr, packed, joined_ptr, joined, inside, words, W)


def _rows_per_program() -> int:
    return 128 if interpreting() else 8  # The interpreter pays by the program.


def _blocks(rows: int) -> int:
    return max(1, triton.cdiv(rows, _rows_per_program()))


def _as_words(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


def _launch_heads(packed: Tensor, tensors: list[Tensor], degree: int, unpacks: bool) -> None:
    batch, tokens, heads, size = tensors[0].shape
    first, second, third = [*tensors, *tensors, *tensors][:3]  # No program takes a repetition.
    wrap_triton(heads_kernel)[(_blocks(batch * tokens), degree, len(tensors))](
        packed, first, second, third, batch * tokens, heads // degree * size,
        UNPACKS=unpacks, W=WORDS, R=_rows_per_program(), **OPTIONS,
    )  # fmt: skip


def _launch_tokens(
    packed: Tensor, joined: Tensor, starts: Tensor, planes: int, tokens: int, unpacks: bool
) -> None:
    words = joined.numel() // max(1, planes * tokens)
    wrap_triton(tokens_kernel)[(_blocks(tokens), planes)](
        packed, joined, starts, tokens, starts.shape[0] - 1, words,
        UNPACKS=unpacks, W=WORDS, R=_rows_per_program(), **OPTIONS,
    )  # fmt: skip


@torch.library.triton_op("spotlight::ulysses_pack_heads", mutates_args={})
def pack_heads(tensors: list[Tensor], degree: int) -> Tensor:
    batch, tokens, heads, size = tensors[0].shape
    shape = (degree, len(tensors), batch, tokens, heads // degree, size)
    packed = tensors[0].new_empty(shape)
    words = [_as_words(tensor) for tensor in tensors]
    _launch_heads(packed.view(torch.int32), words, degree, unpacks=False)
    return packed


@torch.library.triton_op("spotlight::ulysses_unpack_heads", mutates_args={})
def unpack_heads(received: Tensor) -> Tensor:
    degree, batch, tokens, heads, size = received.shape
    whole = received.new_empty((batch, tokens, degree * heads, size))
    _launch_heads(_as_words(received), [whole.view(torch.int32)], degree, unpacks=True)
    return whole


@torch.library.triton_op("spotlight::ulysses_pack_tokens", mutates_args={})
def pack_tokens(joined: Tensor, starts: Tensor) -> Tensor:
    packed = joined.new_empty(joined.numel())
    batch, tokens, *_ = joined.shape
    _launch_tokens(
        packed.view(torch.int32), _as_words(joined), starts, batch, tokens, unpacks=False
    )
    return packed


@torch.library.triton_op("spotlight::ulysses_unpack_tokens", mutates_args={})
def unpack_tokens(
    received: Tensor, starts: Tensor, kinds: int, batch: int, heads: int, size: int
) -> Tensor:
    tokens = received.numel() // (kinds * batch * heads * size)
    joined = received.new_empty((kinds, batch, tokens, heads, size))
    _launch_tokens(
        _as_words(received), joined.view(torch.int32), starts, kinds * batch, tokens, unpacks=True
    )
    return joined


def _variant(kernel: Any, name: str, unpacks: bool) -> Variant:
    return Variant(
        name=f"ulysses {'unpack' if unpacks else 'pack'} {name}",
        kernel=kernel,
        types={
            argument: "*i32" if argument.endswith("_ptr") else "i32"
            for argument in kernel.arg_names
            if argument.islower()
        },
        constants={"UNPACKS": unpacks, "W": WORDS, "R": _rows_per_program()},
        options=OPTIONS,
    )


VARIANTS = [
    _variant(kernel, name, unpacks)
    for kernel, name in ((heads_kernel, "heads"), (tokens_kernel, "tokens"))
    for unpacks in (False, True)
]
