"""The Triton version of reference.py, with the noise drawn in registers.

Rounding is the reference's: no multiplication is fused with an addition, so a step that was sampled
here and is judged by plain torch has the same mean, bit for bit. A token's squares are summed by
one program in one order, whatever the shard.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels.denoise import MAX_CHANNELS
from triton_kernels.dispatch import interpreting, wrap_triton
from triton_kernels.noise.kernel import normals_of, random_words
from triton_kernels.precision import FLOATS
from triton_kernels.variants import Variant

FOLLOW, SAMPLE, JUDGE = 0, 1, 2
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


def token_block() -> int:
    """Tokens per program; the interpreter pays by the program, whatever its width."""
    return 128 if interpreting() else 16


@triton.jit
def _noise(seed, step_index, stream, first, row, channels, D: tl.constexpr, L: tl.constexpr):
    """Return normals [L, D] of tokens `row`; `first` is the shard's first element."""
    quad = tl.arange(0, D // 4)
    element = first + row.to(tl.int64)[:, None] * channels + quad[None, :] * 4
    r0, r1, r2, r3 = random_words(seed, step_index, stream, element >> 2)
    x0, y0, x1, y1 = normals_of(r0, r1, r2, r3)
    return tl.join(tl.join(x0, x1), tl.join(y0, y1)).reshape(L, D)


@triton.jit(do_not_specialize=["stream", "first", "tokens", "channels"])
def step_kernel(
    next_ptr,
    mean_ptr,
    squares_ptr,
    latents_ptr,
    velocity_ptr,
    coefficients_ptr,
    keys_ptr,
    stream: tl.uint32,
    first: tl.int64,
    tokens: tl.int32,
    channels: tl.int32,
    MODE: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
):
    """Tensors are contiguous [B, tokens, channels]; one program takes L tokens of a sample.

    FOLLOW writes `mean`; SAMPLE writes `next`, `mean` and `squares`; JUDGE reads `next` and writes
    the other two. `keys` is int64 [B, 2]: seed, step index.
    """
    sample = tl.program_id(1)
    row = tl.program_id(0) * L + tl.arange(0, L)
    column = tl.arange(0, D)
    inside = (row < tokens)[:, None] & (column < channels)[None, :]
    at = (sample.to(tl.int64) * tokens + row.to(tl.int64))[:, None] * channels + column[None, :]
    a = tl.load(coefficients_ptr + 3 * sample)
    b = tl.load(coefficients_ptr + 3 * sample + 1)
    x = tl.load(latents_ptr + at, mask=inside, other=0.0)
    v = tl.load(velocity_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = a * x + b * v
    tl.store(mean_ptr + at, mean, mask=inside)
    if MODE != 0:
        if MODE == 1:
            scale = tl.load(coefficients_ptr + 3 * sample + 2)
            seed = tl.load(keys_ptr + 2 * sample)
            step_index = tl.load(keys_ptr + 2 * sample + 1)
            z = _noise(seed, step_index, stream, first, row, channels, D, L)
            reached = mean + scale * z
            tl.store(next_ptr + at, reached, mask=inside)
        else:
            reached = tl.load(next_ptr + at, mask=inside, other=0.0)
        deviation = tl.where(inside, reached - mean, 0.0)
        total = tl.sum(deviation * deviation, axis=1)
        tl.store(squares_ptr + sample.to(tl.int64) * tokens + row, total, mask=row < tokens)


def _configuration(mode: int) -> dict[str, Any]:
    return {"MODE": mode, "D": MAX_CHANNELS, "L": token_block()}


def _grid(latents: Tensor) -> tuple[int, int]:
    return (max(1, triton.cdiv(latents.shape[1], token_block())), latents.shape[0])


@torch.library.triton_op("spotlight::denoise_sample", mutates_args={})
def sample(
    latents: Tensor, velocity: Tensor, coefficients: Tensor, keys: Tensor, stream: int, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (next latents, mean, squares); `keys` is int64 [B, 2]: seed, step index."""
    latents, velocity = latents.contiguous(), velocity.contiguous()
    reached, mean = torch.empty_like(latents), torch.empty_like(latents)
    squares = latents.new_empty(latents.shape[:2])
    wrap_triton(step_kernel)[_grid(latents)](
        reached, mean, squares, latents, velocity, coefficients.contiguous(), keys, stream, start,
        latents.shape[1], latents.shape[2], **_configuration(SAMPLE), **OPTIONS,
    )  # fmt: skip
    return reached, mean, squares


@torch.library.triton_op("spotlight::denoise_follow", mutates_args={})
def follow(latents: Tensor, velocity: Tensor, coefficients: Tensor) -> Tensor:
    latents, velocity = latents.contiguous(), velocity.contiguous()
    mean = torch.empty_like(latents)
    # What a mode neither reads nor writes is given any pointer of the right type.
    wrap_triton(step_kernel)[_grid(latents)](
        mean, mean, mean, latents, velocity, coefficients.contiguous(), None, 0, 0,
        latents.shape[1], latents.shape[2], **_configuration(FOLLOW), **OPTIONS,
    )  # fmt: skip
    return mean


@torch.library.triton_op("spotlight::denoise_judge", mutates_args={})
def judge(
    latents: Tensor, velocity: Tensor, coefficients: Tensor, next_latents: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (mean, squares)."""
    latents, velocity = latents.contiguous(), velocity.contiguous()
    mean, squares = torch.empty_like(latents), latents.new_empty(latents.shape[:2])
    wrap_triton(step_kernel)[_grid(latents)](
        next_latents.contiguous(), mean, squares, latents, velocity, coefficients.contiguous(),
        None, 0, 0, latents.shape[1], latents.shape[2],
        **_configuration(JUDGE), **OPTIONS,
    )  # fmt: skip
    return mean, squares


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, velocity, coefficients, next_latents = inputs
    ctx.velocity_dtype = velocity.dtype
    ctx.save_for_backward(coefficients, next_latents, output[0])


def _judge_backward(ctx: Any, grad_mean: Tensor, grad_squares: Tensor) -> tuple[Any, ...]:
    """Plain torch: under a megabyte, once a step."""
    coefficients, next_latents, mean = ctx.saved_tensors
    grad_next = 2.0 * grad_squares[:, :, None] * (next_latents - mean)
    grad = grad_mean - grad_next
    a, b, _ = coefficients[:, :, None, None].unbind(1)
    return a * grad, (b * grad).to(ctx.velocity_dtype), None, grad_next


torch.library.register_autograd("spotlight::denoise_judge", _judge_backward, setup_context=_save)


def _types(velocity: str) -> dict[str, str]:
    return {
        "next_ptr": "*fp32", "mean_ptr": "*fp32", "squares_ptr": "*fp32", "latents_ptr": "*fp32",
        "velocity_ptr": f"*{velocity}", "coefficients_ptr": "*fp32", "keys_ptr": "*i64",
        "stream": "u32", "first": "i64", "tokens": "i32", "channels": "i32",
    }  # fmt: skip


VARIANTS = [
    Variant(
        name=f"denoise {name} {dtype}",
        kernel=step_kernel,
        types=_types(dtype),
        constants=_configuration(mode) | ({} if mode == SAMPLE else {"keys_ptr": None}),
        options=OPTIONS,
    )
    for mode, name in ((FOLLOW, "follow"), (SAMPLE, "sample"), (JUDGE, "judge"))
    for dtype in FLOATS.values()
]
