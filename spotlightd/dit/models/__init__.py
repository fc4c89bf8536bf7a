"""Models that can be trained: each adapts one diffusers class to what sampling and training need.

`load_model` picks the adapter by the folder's `model_index.json`. To add a model, add a file here
and a line to `ADAPTERS`.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings


class PromptEmbeds(NamedTuple):
    """Encoded prompts, always padded to the model's one text length.

    A fixed length keeps a trajectory independent of the prompts that share its batch.
    """

    embeds_BTC: Tensor

    def take(self, rows: Sequence[int]) -> "PromptEmbeds":
        return PromptEmbeds(self.embeds_BTC[list(rows)])


class DiffusionModel(Protocol):
    """What a model brings (L latent tokens, D latent channels, B batch)."""

    transformer: Any
    """A diffusers model: an `nn.Module` that takes peft adapters."""
    lora_targets: tuple[str, ...]
    """Names of the linear layers that an adapter is attached to."""
    device: torch.device

    def latent_shape(self, height: int, width: int) -> tuple[int, int]:
        """Return (L, D) for an image size in pixels. Raises InputError for a size it cannot do."""

    def sigmas(self, num_steps: int) -> tuple[float, ...]:
        """Return the model's own noise levels for `num_steps`, one more than steps, last 0."""

    def encode_prompts(self, prompts: Sequence[str]) -> PromptEmbeds:
        """Encode prompts. Raises InputError for one that the model cannot take."""

    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """The one model forward: return the velocity (noise minus data), fp32 [B, L, D].

        Each element may be at its own sigma; image size and guidance are the batch's.
        """

    def decode(self, latents_BLD: Tensor, height: int, width: int) -> np.ndarray:
        """Return images, uint8 [B, height, width, channels]."""


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
    return ADAPTERS[kind](model_dir, dtype, torch.device(device))


def _load_glyph_ocr(model_dir: Path, dtype: torch.dtype, device: torch.device) -> DiffusionModel:
    from spotlightd.dit.models.glyph_ocr import GlyphOcr

    return GlyphOcr.load(model_dir, dtype, device)


ADAPTERS: dict[str, Callable[[Path, torch.dtype, torch.device], DiffusionModel]] = {
    "GlyphOcrPipeline": _load_glyph_ocr,
}
