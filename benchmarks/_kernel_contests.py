"""For each op: inputs, our call, what torch users write in its place, and the truth in fp32.

The rivals are written as diffusers' models have them, in bf16, and not as our references, which
widen everything first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from _kernel_cases import Shape
from torch import Tensor

from triton_kernels import adaln, attention, denoise, ulysses
from triton_kernels.adaln import reference as adaln_reference
from triton_kernels.attention import reference as attention_reference
from triton_kernels.denoise import reference as denoise_reference
from triton_kernels.qk_norm_rope import Tokens, qk_norm_rope
from triton_kernels.qk_norm_rope import reference as qk_reference
from triton_kernels.ulysses import reference as ulysses_reference

EPS = 1e-6
DEGREE = 4
ATTENTION_ROWS = 256
"""Queries of which the truth is computed: its scores would not fit for all."""

Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Contest:
    ours: Call
    truth: Call
    """In fp32, from the same inputs."""
    eager: Callable[..., tuple[Tensor, ...]]
    """What torch users write; timed eagerly and compiled. Called with `inputs`."""
    inputs: tuple[Tensor, ...]
    tolerance: float = 8e-3
    """Of our result against the truth, relative to its largest value: one rounding to bf16."""
    eager_tolerance: float | None = 4e-2
    """The same for eager torch, which rounds after each step; None where it draws other noise."""
    compared: int | None = None
    """How many tokens (dimension 1), from the first, are compared; None for all."""


def contest(op: str, shape: Shape, device: torch.device, dtype: torch.dtype) -> Contest:
    """Build inputs, the same for every run, and the calls on them."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(size, generator=generator, device=device).to(kind)

    return _BUILDERS[op](shape, normal)


Normal = Callable[..., Tensor]


def _denoise(shape: Shape, normal: Normal) -> Contest:
    size = (shape.batch, shape.image_tokens, shape.model.latent_channels)
    x, v = normal(*size, kind=torch.float32), normal(*size)
    coefficients = torch.tensor([[0.93, -0.11, 0.21]] * shape.batch, device=x.device)
    key = denoise.NoiseKey(list(range(shape.batch)), [3] * shape.batch, 1)

    def eager(x: Tensor, v: Tensor, coefficients: Tensor) -> tuple[Tensor, ...]:
        a, b, scale = coefficients[:, :, None, None].unbind(1)
        mean = a * x + b * v.float()
        reached = mean + scale * torch.randn_like(x)
        return reached, mean, ((reached - mean) ** 2).sum(dim=2)

    return Contest(
        ours=lambda: denoise.sample(x, v, coefficients, key),
        truth=lambda: denoise_reference.step(
            x, v, coefficients, denoise.draw(key, x.cpu()).to(x.device)
        ),
        eager=eager,
        inputs=(x, v, coefficients),
        tolerance=2e-6,
        eager_tolerance=None,
    )


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    inverse = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
    return (x * inverse).to(weight.dtype) * weight


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = pairs * torch.view_as_complex(rotation)[:, None]
    return torch.view_as_real(turned).flatten(3).type_as(x)


def _qk_norm_rope(shape: Shape, normal: Normal) -> Contest:
    model = shape.model

    def stream(tokens: int) -> Tokens:
        size = (shape.batch, tokens, model.heads, model.head_size)
        weights = (1 + 0.1 * normal(model.head_size) for _ in range(2))
        angles = normal(tokens, model.head_size // 2, kind=torch.float32)
        rotation = torch.stack([angles.cos(), angles.sin()], dim=-1)
        return Tokens(normal(*size), normal(*size), *weights, rotation if model.rotated else None)

    image, text = stream(shape.image_tokens), stream(model.text_tokens)

    def eager(*tensors: Tensor) -> tuple[Tensor, ...]:
        streams = [Tokens(*tensors[:4], None), Tokens(*tensors[4:8], None)]
        joint = []
        for part in (0, 1):
            normed = [_rms_norm(stream[part], stream[part + 2]) for stream in streams]
            if model.rotated:
                pairs = zip(normed, tensors[8:], strict=True)
                normed = [_rotate(x, rotation) for x, rotation in pairs]
            joint.append(torch.cat(normed, dim=1))
        return tuple(joint)

    rotations = (text.rotation, image.rotation)
    wide = [Tokens(*(None if t is None else t.float() for t in part)) for part in (image, text)]
    return Contest(
        ours=lambda: qk_norm_rope(image, text, eps=EPS),
        truth=lambda: qk_reference.qk_norm_rope(wide[0], wide[1], EPS),
        eager=eager,
        inputs=(*text[:4], *image[:4], *(r for r in rotations if r is not None)),
    )


def _adaln(op: str) -> Callable[[Shape, Normal], Contest]:
    def build(shape: Shape, normal: Normal) -> Contest:
        size = (shape.batch, shape.image_tokens, shape.model.channels)
        x, branch = normal(*size), normal(*size)
        gate, scale, shift = (normal(shape.batch, size[2]) for _ in range(3))

        def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
            normed = F.layer_norm(x, x.shape[-1:], eps=EPS)
            return normed * (1 + scale[:, None]) + shift[:, None]

        def gated(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
            return x + gate[:, None] * branch

        def both(
            x: Tensor, branch: Tensor, gate: Tensor, scale: Tensor, shift: Tensor
        ) -> tuple[Tensor, Tensor]:
            hidden = gated(x, branch, gate)
            return hidden, modulated(hidden, scale, shift)

        match op:
            case "modulate":
                given = (x, scale, shift)
                ours = adaln.modulate
                return Contest(
                    lambda: (ours(*given, eps=EPS),),
                    lambda: (adaln_reference.modulate(*(t.float() for t in given), "layer", EPS),),
                    lambda *tensors: (modulated(*tensors),),
                    given,
                )
            case "gate_residual":
                pair = (x, branch, gate)
                return Contest(
                    lambda: (adaln.gate_residual(*pair),),
                    lambda: (adaln_reference.gate_residual(*(t.float() for t in pair)),),
                    lambda *tensors: (gated(*tensors),),
                    pair,
                )
        everything = (x, branch, gate, scale, shift)
        return Contest(
            lambda: adaln.gate_modulate(*everything, eps=EPS),
            lambda: adaln_reference.gate_modulate(*(t.float() for t in everything), "layer", EPS),
            both,
            everything,
        )

    return build


def _attention(shape: Shape, normal: Normal) -> Contest:
    model = shape.model
    size = (shape.batch, shape.tokens, model.heads, model.head_size)
    q, k, v = normal(*size), normal(*size), normal(*size)

    def truth() -> tuple[Tensor, ...]:
        rows = (tensor.float() for tensor in (q[:, :ATTENTION_ROWS], k, v))
        return (attention_reference.attend_chunk(*rows, None, None, model.head_size**-0.5).out,)

    return Contest(
        ours=lambda: (attention.attend_chunk(q, k, v, dtype=q.dtype).out,),
        truth=truth,
        eager=lambda *tensors: (attention.attend(*tensors),),
        inputs=(q, k, v),
        tolerance=2e-2,
        compared=ATTENTION_ROWS,
    )


def _pack_heads(shape: Shape, normal: Normal) -> Contest:
    model = shape.model
    size = (shape.batch, shape.image_tokens, model.heads, model.head_size)
    given = tuple(normal(*size) for _ in range(3))
    return Contest(
        ours=lambda: (ulysses.pack_heads(given, DEGREE),),
        truth=lambda: (ulysses_reference.pack_heads(given, DEGREE),),
        eager=lambda *tensors: (ulysses_reference.pack_heads(tensors, DEGREE),),
        inputs=given,
        tolerance=0.0,
        eager_tolerance=0.0,
    )


def _unpack_tokens(shape: Shape, normal: Normal) -> Contest:
    model = shape.model
    shard = -(-shape.image_tokens // DEGREE)
    counts = [shard] * (DEGREE - 1) + [shape.image_tokens - shard * (DEGREE - 1)]
    # All tokens with a rank's share of the heads: as many elements as its own with all heads.
    size = (3, shape.batch, model.heads // DEGREE, model.head_size)
    received = normal(3 * shape.batch * shape.image_tokens * size[2] * size[3])
    return Contest(
        ours=lambda: (ulysses.unpack_tokens(received, counts, *size),),
        truth=lambda: (ulysses_reference.unpack_tokens(received, counts, size),),
        eager=lambda flat: (ulysses_reference.unpack_tokens(flat, counts, size),),
        inputs=(received,),
        tolerance=0.0,
        eager_tolerance=0.0,
    )


_BUILDERS: dict[str, Callable[[Shape, Normal], Contest]] = {
    "denoise": _denoise,
    "qk_norm_rope": _qk_norm_rope,
    "modulate": _adaln("modulate"),
    "gate_residual": _adaln("gate_residual"),
    "gate_modulate": _adaln("gate_modulate"),
    "attention": _attention,
    "pack_heads": _pack_heads,
    "unpack_tokens": _unpack_tokens,
}


def largest_error(
    ours: tuple[Tensor, ...], truth: tuple[Tensor, ...], compared: int | None = None
) -> float:
    """Return the largest difference relative to the largest true value; inf where one is NaN."""
    worst = 0.0
    for a, b in zip(ours, truth, strict=True):
        a = a[:, :compared].float()
        b = b.float()
        if a.shape != b.shape or not bool(a.isfinite().all()):
            return float("inf")
        worst = max(worst, float((a - b).abs().max() / b.abs().max()))
    return worst
