"""FLUX.1: packed latents, and guidance that was distilled into an input of the transformer."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.models.pipeline import PATCH, PipelineModel, decode_scaled, unpack
from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings

T5_TOKENS = 512


class Flux(PipelineModel):
    pipeline = "FluxPipeline"
    spaced_to_1_over_n = True
    lora_targets = (
        "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
        "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
        "ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2",
    )  # fmt: skip

    def _latent_channels(self) -> int:
        return int(self.transformer.config.in_channels) // PATCH**2

    def _text_limit(self) -> tuple[Any, int]:
        return self.pipe.tokenizer_2, T5_TOKENS

    def _encode(self, prompts: list[str]) -> PromptEmbeds:
        embeds, pooled, _ = self.pipe.encode_prompt(
            prompts, None, device=self.device, max_sequence_length=T5_TOKENS
        )
        return PromptEmbeds(embeds, pooled_BC=pooled)

    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """See `DiffusionModel`. The guidance scale is an input: there is no second branch."""
        if not self.transformer.config.guidance_embeds and settings.guidance_scale != 1:
            raise InputError(
                f"sampler.guidance_scale is {settings.guidance_scale}: this FLUX takes no guidance "
                f"(it is distilled to few steps), set it to 1"
            )
        return self._forward(latents_BLD, sigma_B, prompts, settings).float()

    def _forward(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        dtype, device = self.transformer.dtype, latents_BLD.device
        assert prompts.pooled_BC is not None
        guidance = None
        if self.transformer.config.guidance_embeds:
            guidance = torch.full_like(sigma_B, settings.guidance_scale)
        return self.transformer(
            hidden_states=latents_BLD.to(dtype),
            timestep=sigma_B,
            guidance=guidance,
            pooled_projections=prompts.pooled_BC.to(dtype),
            encoder_hidden_states=prompts.embeds_BTC.to(dtype),
            txt_ids=torch.zeros(prompts.embeds_BTC.shape[1], 3, device=device),
            img_ids=_places(*self._grid(settings.height, settings.width), device),
            return_dict=False,
        )[0]

    def _decode(self, latents_1LD: Tensor, height: int, width: int) -> np.ndarray:
        return decode_scaled(self.pipe, unpack(latents_1LD, *self._grid(height, width)))


def _places(rows: int, columns: int, device: torch.device) -> Tensor:
    """Return (0, row, column) of each image token, [L, 3]."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack([torch.zeros_like(row), row, column], dim=-1)
    return places.flatten(0, 1).float().to(device)
