"""What the kernels are measured on: shapes of three models, and bytes and operations of each op.

The counts are a model: every tensor is read or written once from memory, at two bytes an element
unless it is fp32. Parameters of a row (scale, shift, weights) are left out.
"""

from dataclasses import dataclass

PIXELS_PER_TOKEN = 16
"""Edge of a token in pixels: a VAE that shrinks by 8, and patches of 2 x 2."""


@dataclass(frozen=True)
class Model:
    """A transformer's sizes, from its published configuration."""

    name: str
    channels: int
    heads: int
    text_tokens: int
    rotated: bool = True
    latent_channels: int = 64

    @property
    def head_size(self) -> int:
        return self.channels // self.heads


MODELS = (
    Model("Qwen-Image", 3072, 24, 256),
    Model("SD3.5-M", 1536, 24, 333, rotated=False),
    Model("FLUX", 3072, 24, 512),
)
PIXELS = (512, 1280)


@dataclass(frozen=True)
class Shape:
    """One model at one image size; one image, as in sampling on one GPU of a group."""

    model: Model
    pixels: int
    batch: int = 1

    @property
    def image_tokens(self) -> int:
        return (self.pixels // PIXELS_PER_TOKEN) ** 2

    @property
    def tokens(self) -> int:
        return self.image_tokens + self.model.text_tokens

    @property
    def name(self) -> str:
        return f"{self.model.name} {self.pixels}"


SHAPES = tuple(Shape(model, pixels) for model in MODELS for pixels in PIXELS)


@dataclass(frozen=True)
class Cost:
    """Of one call. Eager bytes count what each of eager torch's kernels reads and writes."""

    bytes: int
    flops: int
    eager_bytes: int


def cost(op: str, shape: Shape) -> Cost:
    """Return the model's figures for `op`, one of OPS."""
    return OPS[op](shape)


def _latent(shape: Shape) -> int:
    return shape.batch * shape.image_tokens * shape.model.latent_channels


def _hidden(shape: Shape) -> int:
    return shape.batch * shape.image_tokens * shape.model.channels


def _denoise(shape: Shape) -> Cost:
    """Read x in fp32 and v; write next and mean in fp32. Eager: v to fp32 6, a x 8, b v 8, sum 12,
    noise 4, scale z 8, sum 12, difference 12, square 8, sum 4.
    """
    elements = _latent(shape)
    return Cost(14 * elements, 0, 82 * elements)


def _qk_norm_rope(shape: Shape) -> Cost:
    """Queries and keys of all tokens, and the rotation in fp32 (a cosine and a sine a pair).

    Eager RMSNorm: to fp32 6, square 8, mean 4, product 6, to bf16 6, weight 4. Rotation: to fp32 6,
    complex product 8, to bf16 6. Joining text and image: 4.
    """
    model = shape.model
    elements = 2 * shape.batch * shape.tokens * model.channels
    rotation = 4 * shape.tokens * model.head_size if model.rotated else 0
    eager = 34 + (20 if model.rotated else 0) + 4
    return Cost(4 * elements + rotation, 0, eager * elements)


def _modulate(shape: Shape) -> Cost:
    """Eager: norm 4, product 4, sum 4."""
    return Cost(4 * _hidden(shape), 0, 12 * _hidden(shape))


def _gate_residual(shape: Shape) -> Cost:
    """Eager: product 4, sum 6."""
    return Cost(6 * _hidden(shape), 0, 10 * _hidden(shape))


def _gate_modulate(shape: Shape) -> Cost:
    return Cost(8 * _hidden(shape), 0, 22 * _hidden(shape))


def _attention(shape: Shape) -> Cost:
    """Two products of T x T x E a head; scores stay on the chip, in torch's attention too."""
    model = shape.model
    flops = 4 * shape.batch * model.heads * shape.tokens**2 * model.head_size
    elements = shape.batch * shape.tokens * model.channels
    return Cost(8 * elements, flops, 8 * elements)


def _pack_heads(shape: Shape) -> Cost:
    """Queries, keys and values into one buffer, read once and written once by eager torch too."""
    return Cost(12 * _hidden(shape), 0, 12 * _hidden(shape))


def _unpack_tokens(shape: Shape) -> Cost:
    return Cost(12 * _hidden(shape), 0, 12 * _hidden(shape))


OPS = {
    "denoise": _denoise,
    "qk_norm_rope": _qk_norm_rope,
    "modulate": _modulate,
    "gate_residual": _gate_residual,
    "gate_modulate": _gate_modulate,
    "attention": _attention,
    "pack_heads": _pack_heads,
    "unpack_tokens": _unpack_tokens,
}
USED_BY_DEFAULT = ("denoise", "qk_norm_rope", "modulate", "gate_residual", "gate_modulate")
"""What a CUDA tensor takes without being asked: these must not lose to eager torch."""
