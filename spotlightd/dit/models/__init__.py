"""Models that can be trained: each adapts one diffusers class to what sampling and training need.

`load_model` picks the adapter by the folder's `model_index.json`. To add a model, add a file here
and a line to `ADAPTERS`; docs/adding-a-model.md says what goes into the file.
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings


class PromptEmbeds(NamedTuple):
    """Encoded prompts (B prompts, T text tokens, C channels).

    A prompt's length is its own, whatever prompts share its batch: models pad each prompt alone to
    one length, or to a multiple of one where the text is long.
    """

    embeds_BTC: Tensor
    mask_BT: Tensor | None = None
    """bool, False for padding that must not be attended to; None: every token counts."""
    pooled_BC: Tensor | None = None
    """Summary of the whole prompt, for models that take one beside the tokens."""

    def take(self, rows: Sequence[int]) -> "PromptEmbeds":
        index = list(rows)
        embeds, *rest = self
        return PromptEmbeds(
            embeds[index], *(None if part is None else part[index] for part in rest)
        )

    @staticmethod
    def join(parts: Sequence["PromptEmbeds"]) -> "PromptEmbeds":
        """Return one batch of several; the shorter ones are padded, and masked there."""
        lengths = {part.embeds_BTC.shape[1] for part in parts}
        if len(lengths) > 1 or any(part.mask_BT is not None for part in parts):
            parts = [part._padded(max(lengths)) for part in parts]
        embeds, *rest = zip(*parts, strict=True)
        joined = (None if column[0] is None else torch.cat(column) for column in rest)
        return PromptEmbeds(torch.cat(embeds), *joined)

    def _padded(self, length: int) -> "PromptEmbeds":
        embeds, missing = self.embeds_BTC, length - self.embeds_BTC.shape[1]
        mask = self.mask_BT
        if mask is None:
            mask = torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        return PromptEmbeds(
            pad(embeds, (0, 0, 0, missing)), pad(mask, (0, missing)), self.pooled_BC
        )


class DiffusionModel(Protocol):
    """What a model brings (L latent tokens, D latent channels, B batch)."""

    transformer: Any
    """A diffusers model: an `nn.Module` that takes peft adapters."""
    lora_targets: tuple[str, ...]
    """Names of the linear layers that an adapter is attached to."""
    device: torch.device

    def latent_shape(self, height: int, width: int, num_frames: int = 1) -> tuple[int, int]:
        """Return (L, D) for a size in pixels and frames. Raises InputError for one it cannot do."""

    def sigmas(self, num_steps: int, tokens: int) -> tuple[float, ...]:
        """Return the model's own noise levels for `num_steps`, one more than steps, last 0.

        Args:
            tokens: L; some models shift their noise levels by it.
        """

    def encode_prompts(self, prompts: Sequence[str]) -> PromptEmbeds:
        """Encode prompts. Raises InputError for one that the model cannot take."""

    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """The one model forward: return the velocity (noise minus data), fp32 [B, L, D].

        Each element may be at its own sigma; image size and guidance are the batch's.
        """

    def decode(self, latents_BLD: Tensor, height: int, width: int) -> np.ndarray:
        """Return images, uint8 [B, height, width, channels], or videos with frames as axis 1."""


def load_model(
    model_dir: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> DiffusionModel:
    """Load a model folder in diffusers' layout.

    Raises:
        InputError: the folder, its index or one of its files is missing or damaged, or no
            adapter knows the model.
    """
    index = model_dir / "model_index.json"
    try:
        kind = json.loads(index.read_text(encoding="utf-8"))["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{index} is not a model index with a '_class_name': {error!r}") from None
    if kind not in ADAPTERS:
        raise InputError(f"{index}: no adapter for '{kind}'; known: {', '.join(sorted(ADAPTERS))}")
    module, name = ADAPTERS[kind].split(":")
    adapter = getattr(importlib.import_module(f"spotlightd.dit.models.{module}"), name)
    model: DiffusionModel = adapter.load(model_dir, dtype, torch.device(device))
    return model


ADAPTERS = {
    "GlyphOcrPipeline": "glyph_ocr:GlyphOcr",
    "StableDiffusion3Pipeline": "sd3:StableDiffusion3",
    "FluxPipeline": "flux:Flux",
    "QwenImagePipeline": "qwen_image:QwenImage",
    "WanPipeline": "wan:Wan",
}
"""`_class_name` of a model folder -> module here and class, loaded when it is asked for."""
