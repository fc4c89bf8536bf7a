"""RMSNorm of queries and keys per head, rotary embedding, and text before image, in one pass.

In eager torch this is a dozen passes, and through complex numbers, which Inductor cannot fuse. The
rotation turns neighbouring channels (2i, 2i + 1), as Qwen-Image and FLUX do; models without a
rotary embedding (SD3) pass none.

Legend: B samples, L tokens, H heads, E channels of a head.
"""

from torch import Tensor

from triton_kernels import dispatch
from triton_kernels.precision import FLOATS
from triton_kernels.qk_norm_rope import reference
from triton_kernels.qk_norm_rope.reference import Tokens

HEAD_SIZES = (64, 128)

__all__ = ["HEAD_SIZES", "Tokens", "qk_norm_rope"]


def qk_norm_rope(
    image: Tokens, text: Tokens | None = None, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return joint (queries, keys), each [B, L_text + L_image, H, E] with the text first.

    Differentiable in queries and keys. A rank of a sequence-parallel group passes the rotation of
    its own tokens.

    Raises:
        ValueError: shapes do not fit, or one stream is rotated and the other not.
    """
    streams = [image] if text is None else [text, image]
    for stream in streams:
        _check(stream, image)
    if dispatch.use_kernel("qk_norm_rope", image.query.device, _obstacle, streams):
        from triton_kernels.qk_norm_rope import kernel

        flat = [*image] if text is None else [*image, *text]
        return kernel.joint(*flat, eps=eps)
    return reference.qk_norm_rope(image, text, eps)


def _check(stream: Tokens, image: Tokens) -> None:
    if stream.query.dim() != 4 or stream.query.shape != stream.key.shape:
        raise ValueError(
            f"query {tuple(stream.query.shape)} and key {tuple(stream.key.shape)} must both be "
            f"[B, L, H, E]"
        )
    batch, tokens, heads, size = stream.query.shape
    if (batch, heads, size) != (image.query.shape[0], *image.query.shape[2:]):
        raise ValueError(
            f"text {tuple(stream.query.shape)} and image {tuple(image.query.shape)} may differ in "
            f"tokens alone"
        )
    for weight in (stream.query_weight, stream.key_weight):
        if weight.shape != (size,):
            raise ValueError(f"a weight is {tuple(weight.shape)}, expected [{size}]")
    if (stream.rotation is None) != (image.rotation is None):
        raise ValueError("text and image must both be rotated, or neither")
    if stream.rotation is not None and stream.rotation.shape != (tokens, size // 2, 2):
        raise ValueError(
            f"rotation is {tuple(stream.rotation.shape)}, expected ({tokens}, {size // 2}, 2)"
        )


def _obstacle(streams: list[Tokens]) -> str | None:
    size = streams[0].query.shape[3]
    if size not in HEAD_SIZES and not dispatch.interpreting():
        return f"heads of {size} channels, the kernel takes {HEAD_SIZES}"
    tensors = [tensor for stream in streams for tensor in stream[:4]]
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1 or not kinds <= FLOATS.keys():
        names = ", ".join(sorted(map(str, kinds)))
        return f"inputs are {names}, the kernel takes one of {', '.join(map(str, FLOATS))}"
    if any(weight.requires_grad for stream in streams for weight in stream[2:4]):
        return "norm weights that train have no gradient in the kernel"
    return None
