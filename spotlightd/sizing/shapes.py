"""Sizes of a model: from its folder where it lies here, else of the published models by name.

Counts of transformers are exact (a test compares them with diffusers' own classes); those of
encoders and VAEs are the published models'. Legend: w width of the transformer.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlightd.errors import InputError
from spotlightd.models import EMBEDDED_MODEL, resolve_model_dir

MLP_RATIO = 4
"""Hidden width of a feed-forward over w in the joint transformers; Wan states its own."""

CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen-Image": {
        "num_layers": 60, "attention_head_dim": 128, "num_attention_heads": 24,
        "joint_attention_dim": 3584, "axes_dims_rope": [16, 56, 56],
    },
    "stable-diffusion-3.5-medium": {
        "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16,
        "num_layers": 24, "attention_head_dim": 64, "num_attention_heads": 24,
        "joint_attention_dim": 4096, "caption_projection_dim": 1536,
        "pooled_projection_dim": 2048, "pos_embed_max_size": 384,
        "dual_attention_layers": list(range(13)), "qk_norm": "rms_norm",
    },
    "FLUX.1-dev": {
        "num_layers": 19, "num_single_layers": 38, "attention_head_dim": 128,
        "num_attention_heads": 24, "joint_attention_dim": 4096, "pooled_projection_dim": 768,
        "guidance_embeds": True, "axes_dims_rope": [16, 56, 56],
    },
    "Wan2.1-T2V-1.3B": {
        "num_layers": 30, "attention_head_dim": 128, "num_attention_heads": 12, "ffn_dim": 8960,
        "freq_dim": 256, "text_dim": 4096, "in_channels": 16, "out_channels": 16,
    },
    "Wan2.1-T2V-14B": {
        "num_layers": 40, "attention_head_dim": 128, "num_attention_heads": 40, "ffn_dim": 13824,
        "freq_dim": 256, "text_dim": 4096, "in_channels": 16, "out_channels": 16,
    },
}  # fmt: skip
"""`transformer/config.json` of published models, as far as it differs from the class's defaults."""


@dataclass(frozen=True)
class ModelSize:
    """What sizing needs to know of a model. Parameters are counts, not bytes, and include stored
    buffers: SD3's table of positions is a tenth of it."""

    name: str
    pipeline: str
    """`_class_name` of its folder."""
    config: dict[str, Any]
    """Of the transformer."""
    transformer: int
    encoders: int
    vae: int
    text_tokens: int
    source: str
    """Where the figures are from, in words."""


def _published(
    name: str, pipeline: str, transformer: int, encoders: int, vae: int, text_tokens: int
) -> ModelSize:
    return ModelSize(
        name, pipeline, CONFIGS[name], transformer, encoders, vae, text_tokens, "published sizes"
    )


PUBLISHED = {
    size.name: size
    for size in (
        _published("Qwen-Image", "QwenImagePipeline", 20_430_401_088, 8_292_166_656,
                   126_892_531, 64),
        _published("stable-diffusion-3.5-medium", "StableDiffusion3Pipeline", 2_469_663_936,
                   5_581_000_000, 83_819_683, 333),
        _published("FLUX.1-dev", "FluxPipeline", 11_901_408_320, 4_885_000_000, 83_819_683, 512),
        _published("Wan2.1-T2V-1.3B", "WanPipeline", 1_418_996_800, 5_680_910_336,
                   126_892_531, 512),
        _published("Wan2.1-T2V-14B", "WanPipeline", 14_288_491_584, 5_680_910_336,
                   126_892_531, 512),
    )
}  # fmt: skip
_TEXT_TOKENS = {size.pipeline: size.text_tokens for size in PUBLISHED.values()}


def find_size(model: str) -> ModelSize:
    """Return the size of `run.model`: a folder here, or a published model's name.

    A folder that is not here yet is known by its last part: `/models/Qwen-Image`.

    Raises InputError where neither tells, or a folder's files are damaged.
    """
    if model == EMBEDDED_MODEL or (Path(model) / "model_index.json").is_file():
        return _measure(resolve_model_dir(model), model)
    wanted = Path(model).name.lower().removesuffix("-diffusers")
    for name, size in PUBLISHED.items():
        if name.lower() == wanted:
            return size
    raise InputError(
        f"no model at '{model}', and its name is none whose size is known: "
        f"{', '.join(PUBLISHED)}; download it first"
    )


def token_parameters(size: ModelSize) -> float:
    """Return the weights that each image token is multiplied with, over all layers.

    Attention has 4 w^2 (query, key, value, output), a feed-forward 2 r w^2. Modulations run once a
    sample and are left out; in joint transformers text tokens have weights of their own, as many.
    """
    config, w = size.config, width_of(size)
    blocks = blocks_of(size)
    if size.pipeline == "WanPipeline":
        # Cross attention multiplies image tokens with its query and output alone.
        return float(blocks * (6 * w**2 + 2 * config["ffn_dim"] * w))
    second = 4 * len(config.get("dual_attention_layers", ()))
    return float((blocks * (4 + 2 * MLP_RATIO) + second) * w**2)


def blocks_of(size: ModelSize) -> int:
    return int(size.config["num_layers"] + size.config.get("num_single_layers", 0))


def width_of(size: ModelSize) -> int:
    return int(size.config["attention_head_dim"] * size.config["num_attention_heads"])


def _measure(folder: Path, name: str) -> ModelSize:
    try:
        pipeline = json.loads((folder / "model_index.json").read_text())["_class_name"]
        config = json.loads((folder / "transformer" / "config.json").read_text())
        counts = {
            part.name: _count(part) for part in folder.iterdir() if any(part.glob("*.safetensors"))
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} is not a model folder: {error!r}") from None
    loose = _count(folder)
    return ModelSize(
        name,
        pipeline,
        config,
        counts.pop("transformer", 0),
        sum(count for part, count in counts.items() if part.startswith("text_encoder")) + loose,
        counts.get("vae", 0),
        _TEXT_TOKENS.get(pipeline, 12),
        f"the files in {folder}",
    )


def _count(folder: Path) -> int:
    """Return the parameters in a folder's safetensors files, from their headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                count = 1
                for side in entry["shape"]:
                    count *= side
                total += count
    return total
