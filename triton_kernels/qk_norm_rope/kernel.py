"""The Triton version of reference.py, forward and backward: one load and one store an element."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels.dispatch import interpreting, wrap_triton
from triton_kernels.precision import FLOATS
from triton_kernels.qk_norm_rope import HEAD_SIZES
from triton_kernels.variants import Variant

OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _turn(x, cosine, sine, R: tl.constexpr, E: tl.constexpr):
    """Turn each channel pair (2i, 2i + 1) of x [R, E] by angles [R, E / 2]."""
    even, odd = tl.split(x.reshape(R, E // 2, 2))
    return tl.join(even * cosine - odd * sine, even * sine + odd * cosine).reshape(R, E)


@triton.jit
def _stream(
    joint_ptr,
    x_ptr,
    grad_ptr,
    weight_ptr,
    rotation_ptr,
    block,
    sample,
    tokens,
    before,
    joint_tokens,
    heads,
    eps,
    ROTATES: tl.constexpr,
    BACKWARD: tl.constexpr,
    E: tl.constexpr,
    R: tl.constexpr,
):
    """R rows (token, head) of one stream; it begins at token `before` of the joint sequence."""
    row = block * R + tl.arange(0, R)
    channel = tl.arange(0, E)[None, :]
    inside = (row < tokens * heads)[:, None]
    row = row.to(tl.int64)
    own = (sample * tokens * heads + row)[:, None] * E + channel
    joint = ((sample * joint_tokens + before) * heads + row)[:, None] * E + channel
    x = tl.load(x_ptr + own, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + channel).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / E + eps)[:, None]
    if ROTATES:
        turn = rotation_ptr + (row // heads)[:, None] * E + channel
        by = tl.load(turn, mask=inside, other=0.0)
        cosine, sine = tl.split(by.reshape(R, E // 2, 2))
    if BACKWARD:
        grad = tl.load(joint_ptr + joint, mask=inside, other=0.0).to(tl.float32)
        if ROTATES:
            grad = _turn(grad, cosine, -sine, R, E)
        grad *= weight
        normed = x * inverse
        along = tl.sum(grad * normed, axis=1)[:, None] / E
        grad = inverse * (grad - normed * along)
        tl.store(grad_ptr + own, grad.to(grad_ptr.dtype.element_ty), mask=inside)
    else:
        out = x * inverse * weight
        if ROTATES:
            out = _turn(out, cosine, sine, R, E)
        tl.store(joint_ptr + joint, out.to(joint_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["image_tokens", "text_tokens", "heads", "eps"])
def joint_kernel(
    joint_q_ptr, joint_k_ptr,
    image_q_ptr, image_k_ptr, image_wq_ptr, image_wk_ptr, image_rotation_ptr,
    text_q_ptr, text_k_ptr, text_wq_ptr, text_wk_ptr, text_rotation_ptr,
    image_gq_ptr, image_gk_ptr, text_gq_ptr, text_gk_ptr,
    image_tokens: tl.int32, text_tokens: tl.int32, heads: tl.int32, eps: tl.float32,
    ROTATES: tl.constexpr, BACKWARD: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Tensors are contiguous [B, tokens, heads, E]. Programs: blocks of rows, text before image;
    samples; queries, then keys.

    Forward writes the joint tensors. Backward reads their gradients from there, and writes those of
    the four inputs.
    """
    sample = tl.program_id(1).to(tl.int64)
    text_blocks = tl.cdiv(text_tokens * heads, R)
    block = tl.program_id(0)
    is_text = block < text_blocks
    joint_tokens = text_tokens + image_tokens
    joint_ptr, x_ptr, grad_ptr, weight_ptr = joint_q_ptr, image_q_ptr, image_gq_ptr, image_wq_ptr
    rotation_ptr = image_rotation_ptr
    tokens, before = image_tokens, text_tokens
    if tl.program_id(2) == 0:
        if is_text:
            x_ptr, grad_ptr, weight_ptr = text_q_ptr, text_gq_ptr, text_wq_ptr
    else:
        joint_ptr = joint_k_ptr
        if is_text:
            x_ptr, grad_ptr, weight_ptr = text_k_ptr, text_gk_ptr, text_wk_ptr
        else:
            x_ptr, grad_ptr, weight_ptr = image_k_ptr, image_gk_ptr, image_wk_ptr
    if is_text:
        rotation_ptr = text_rotation_ptr
        tokens, before = text_tokens, 0
    else:
        block -= text_blocks
    _stream(joint_ptr, x_ptr, grad_ptr, weight_ptr, rotation_ptr, block, sample, tokens, before,
            joint_tokens, heads, eps, ROTATES, BACKWARD, E, R)  # fmt: skip


def configuration(size: int) -> dict[str, int]:
    """Return head size and rows per program."""
    return {"E": size, "R": 1024 if interpreting() else 4096 // size}


def _launch(
    joint: tuple[Tensor, Tensor],
    image: list[Tensor],
    text: list[Tensor],
    rotations: tuple[Tensor | None, Tensor | None],
    grads: list[Tensor],
    eps: float,
) -> None:
    """`image` and `text`: query, key and their weights; `grads`: of the four inputs, or none.

    A stream or gradient that is not there is given pointers of the right type, never followed.
    """
    there = bool(text)
    batch, image_tokens, heads, size = image[0].shape
    text_tokens = text[0].shape[1] if there else 0
    given = configuration(size)
    blocks = sum(triton.cdiv(tokens * heads, given["R"]) for tokens in (text_tokens, image_tokens))
    rotates = rotations[0] is not None
    image_rotation = rotations[0] if rotates else None
    text_rotation = rotations[1] if there and rotates else image_rotation
    unused = [joint[0]] * 4
    wrap_triton(joint_kernel)[(max(1, blocks), batch, 2)](
        *joint, *image, image_rotation, *(text if there else image), text_rotation,
        *([*grads, *unused][:4]), image_tokens, text_tokens, heads, eps,
        ROTATES=rotates, BACKWARD=bool(grads), **given, **OPTIONS,
    )  # fmt: skip


def _contiguous(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors if tensor is not None]


@torch.library.triton_op("spotlight::qk_norm_rope", mutates_args={})
def joint(
    image_q: Tensor,
    image_k: Tensor,
    image_wq: Tensor,
    image_wk: Tensor,
    image_rotation: Tensor | None,
    text_q: Tensor | None = None,
    text_k: Tensor | None = None,
    text_wq: Tensor | None = None,
    text_wk: Tensor | None = None,
    text_rotation: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, size = image_q.shape
    if text_q is not None:
        tokens += text_q.shape[1]
    query, key = (image_q.new_empty((batch, tokens, heads, size)) for _ in range(2))
    image = _contiguous(image_q, image_k, image_wq, image_wk)
    text = _contiguous(text_q, text_k, text_wq, text_wk)
    rotations = (_rotation(image_rotation), _rotation(text_rotation))
    _launch((query, key), image, text, rotations, [], eps)
    return query, key


def _rotation(rotation: Tensor | None) -> Tensor | None:
    return None if rotation is None else rotation.float().contiguous()


@torch.library.triton_op("spotlight::qk_norm_rope_backward", mutates_args={})
def _grad_joint(
    grad_query: Tensor,
    grad_key: Tensor,
    image: list[Tensor],
    text: list[Tensor],
    image_rotation: Tensor | None,
    text_rotation: Tensor | None,
    eps: float,
) -> list[Tensor]:
    image, text = _contiguous(*image), _contiguous(*text)
    grads = [torch.empty_like(tensor) for tensor in (*image[:2], *text[:2])]
    rotations = (_rotation(image_rotation), _rotation(text_rotation))
    upstream = (grad_query.contiguous(), grad_key.contiguous())
    _launch(upstream, image, text, rotations, grads, eps)
    return grads


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad_query: Tensor, grad_key: Tensor) -> tuple[Any, ...]:
    *image, image_rotation, text_q, text_k, text_wq, text_wk, text_rotation = ctx.saved_tensors
    text = [] if text_q is None else [text_q, text_k, text_wq, text_wk]
    grads = _grad_joint(grad_query, grad_key, image, text, image_rotation, text_rotation, ctx.eps)
    of_text = grads[2:] if text else [None, None]
    return (*grads[:2], None, None, None, *of_text, None, None, None, None)


torch.library.register_autograd("spotlight::qk_norm_rope", _backward, setup_context=_save)


def _variant(size: int, dtype: str, rotates: bool, backward: bool) -> Variant:
    pointers = [name for name in joint_kernel.arg_names if name.endswith("_ptr")]
    rotations = [name for name in pointers if "rotation" in name]
    return Variant(
        name=f"qk_norm_rope {'backward ' * backward}{'rotated ' * rotates}head {size} {dtype}",
        kernel=joint_kernel,
        types={name: "*fp32" if name in rotations else f"*{dtype}" for name in pointers}
        | {"image_tokens": "i32", "text_tokens": "i32", "heads": "i32", "eps": "fp32"},
        constants={"ROTATES": rotates, "BACKWARD": backward, **configuration(size)}
        | ({} if rotates else dict.fromkeys(rotations)),
        options=OPTIONS,
    )


VARIANTS = [
    _variant(size, dtype, rotates, backward)
    for size in HEAD_SIZES
    for dtype in FLOATS.values()
    for rotates in (False, True)
    for backward in (False, True)
]
