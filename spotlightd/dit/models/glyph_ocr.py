"""The embedded model "glyph-ocr": a small text-to-image flow transformer that draws a word.

diffusers' `QwenImageTransformer2DModel` with Qwen-Image's own channel counts (16 latent, 64
packed), on 32 x 128 grey images of 2 x 8 patches; one character per patch column. In place of a
VAE a linear codec maps 16 x 16 pixel patches to 64 coefficients.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.models.digests import check_digests, write_index
from spotlightd.dit.models.glyph_text import GlyphTextEncoder, tokenize
from spotlightd.dit.models.qwen_ops import use_fused_ops
from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings

PATCH = 16
CHANNELS = 64
TOKENS = 16
TEXT_WIDTH = 96
TRANSFORMER_CONFIG = {
    "patch_size": 2,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS // 4,
    "num_layers": 4,
    "attention_head_dim": 32,
    "num_attention_heads": 4,
    "joint_attention_dim": TEXT_WIDTH,
    "axes_dims_rope": (8, 12, 12),
}


class PatchCodec:
    """Linear map between 16 x 16 patches and latent channels.

    `encode`: (pixels - mean) @ analysis; `decode`: latents @ synthesis + mean. Pixels are in
    [-1, 1].
    """

    def __init__(self, mean: Tensor, analysis: Tensor, synthesis: Tensor) -> None:
        self.mean = mean
        self.analysis = analysis
        self.synthesis = synthesis

    def encode(self, images_BHW: Tensor) -> Tensor:
        """Return latents [B, L, D] of images in [-1, 1] [B, H, W]."""
        batch, height, width = images_BHW.shape
        grid = images_BHW.view(batch, height // PATCH, PATCH, width // PATCH, PATCH)
        patches = grid.permute(0, 1, 3, 2, 4).reshape(batch, -1, PATCH * PATCH)
        return (patches - self.mean) @ self.analysis

    def decode(self, latents_BLD: Tensor, height: int, width: int) -> Tensor:
        """Return images [B, H, W] in [-1, 1], not clipped."""
        batch = latents_BLD.shape[0]
        patches = latents_BLD @ self.synthesis + self.mean
        grid = patches.view(batch, height // PATCH, width // PATCH, PATCH, PATCH)
        return grid.permute(0, 1, 3, 2, 4).reshape(batch, height, width)


class GlyphOcr:
    """A `DiffusionModel` (see `spotlightd.dit.models`)."""

    lora_targets: tuple[str, ...] = (
        "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj",
        "to_add_out", "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2",
    )  # fmt: skip

    def __init__(
        self,
        transformer: Any,
        text_encoder: GlyphTextEncoder,
        codec: PatchCodec,
        shift: float,
        device: torch.device,
    ) -> None:
        use_fused_ops(transformer)
        self.transformer = transformer
        self.text_encoder = text_encoder
        self.codec = codec
        self.shift = shift
        self.device = device

    @classmethod
    def load(cls, model_dir: Path, dtype: torch.dtype, device: torch.device) -> "GlyphOcr":
        """Load a folder written by `save`. Raises InputError where a file is damaged."""
        from diffusers import QwenImageTransformer2DModel

        check_digests(model_dir)
        try:
            transformer = QwenImageTransformer2DModel.from_pretrained(
                model_dir / "transformer", torch_dtype=dtype, local_files_only=True
            )
            shift = float(json.loads((model_dir / "scheduler.json").read_text())["shift"])
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{model_dir}: cannot load the model: {error}") from None
        encoder = GlyphTextEncoder(TEXT_WIDTH)
        encoder_weights = _load_tensors(model_dir / "text_encoder.safetensors")
        codec = _load_tensors(model_dir / "codec.safetensors")
        try:
            encoder.load_state_dict({k: v.float() for k, v in encoder_weights.items()})
            parts = [codec[k].float().to(device) for k in ("mean", "analysis", "synthesis")]
        except (RuntimeError, KeyError) as error:
            raise InputError(f"{model_dir}: tensors do not fit the model: {error}") from None
        transformer.to(device).eval().requires_grad_(False)
        encoder.to(device).eval().requires_grad_(False)
        return cls(transformer, encoder, PatchCodec(*parts), shift, device)

    def save(self, model_dir: Path) -> None:
        """Write the folder that `load` reads: bf16 transformer and encoder, fp32 codec."""
        narrow = copy.deepcopy(self.transformer).to(torch.bfloat16)
        narrow.save_pretrained(model_dir / "transformer")
        encoder = {k: v.bfloat16().contiguous() for k, v in self.text_encoder.state_dict().items()}
        save_file(encoder, model_dir / "text_encoder.safetensors")
        codec = {k: getattr(self.codec, k) for k in ("mean", "analysis", "synthesis")}
        save_file({k: v.contiguous() for k, v in codec.items()}, model_dir / "codec.safetensors")
        (model_dir / "scheduler.json").write_text(json.dumps({"shift": self.shift}) + "\n")
        fields = {"_class_name": "GlyphOcrPipeline", "spotlight_model": "glyph-ocr"}
        write_index(model_dir, fields)

    def latent_shape(self, height: int, width: int, num_frames: int = 1) -> tuple[int, int]:
        if num_frames != 1:
            raise InputError(f"sampler.num_frames is {num_frames}: the embedded model draws images")
        if height % PATCH or width % PATCH:
            raise InputError(f"image size {height} x {width}: both must be multiples of {PATCH}")
        return (height // PATCH) * (width // PATCH), CHANNELS

    def sigmas(self, num_steps: int, tokens: int = TOKENS) -> tuple[float, ...]:
        """Qwen-Image's spacing (1 to 1/n), shifted: shift s / (1 + (shift - 1) s), then 0."""
        spaced = [1 - i * (1 - 1 / num_steps) / max(num_steps - 1, 1) for i in range(num_steps)]
        shifted = [self.shift * s / (1 + (self.shift - 1) * s) for s in spaced]
        return (*(float(np.float32(s)) for s in shifted), 0.0)

    def encode_prompts(self, prompts: Sequence[str]) -> PromptEmbeds:
        glyphs, context = tokenize(prompts)
        return PromptEmbeds(self.text_encoder(glyphs.to(self.device), context.to(self.device)))

    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        if settings.guidance_scale != 1.0:
            raise InputError(
                f"sampler.guidance_scale is {settings.guidance_scale}: the embedded model has no "
                f"unconditional branch, set it to 1"
            )
        dtype = next(self.transformer.parameters()).dtype
        shape = [(1, settings.height // PATCH, settings.width // PATCH)]
        return self.transformer(
            hidden_states=latents_BLD.to(dtype),
            encoder_hidden_states=prompts.embeds_BTC.to(dtype),
            encoder_hidden_states_mask=None,
            timestep=sigma_B.to(dtype),
            img_shapes=[shape] * latents_BLD.shape[0],
            return_dict=False,
        )[0].float()

    def decode(self, latents_BLD: Tensor, height: int, width: int) -> np.ndarray:
        pixels = self.codec.decode(latents_BLD.float(), height, width)
        grey = ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        return grey.cpu().numpy()[..., None]


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is missing or damaged ({error}); restore it") from None
