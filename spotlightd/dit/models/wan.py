"""Wan 2.1, text to video: latents with frames, classifier-free guidance.

Its folders name a multistep scheduler. Here each step is a first-order one on that scheduler's
noise levels: only a single step has a density, and only a density can be trained.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.models.pipeline import PATCH, PipelineModel, pack, unnormalise, unpack
from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings

TEXT_TOKENS = 512


class Wan(PipelineModel):
    pipeline = "WanPipeline"
    spaced_to_1_over_n = False
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")

    def __init__(self, pipe: Any, device: torch.device) -> None:
        two = pipe.transformer is None or getattr(pipe, "transformer_2", None) is not None
        if two or pipe.config.boundary_ratio is not None or pipe.config.expand_timesteps:
            raise InputError(
                "this Wan has two transformers or a timestep per token (2.2): of the family only "
                "the text-to-video models of Wan 2.1 are supported"
            )
        super().__init__(pipe, device)

    def latent_shape(self, height: int, width: int, num_frames: int = 1) -> tuple[int, int]:
        rows, columns = self._grid(height, width)
        return self._frames(num_frames) * rows * columns, self._latent_channels() * PATCH**2

    def _pixels_a_latent(self) -> int:
        return int(self.pipe.vae_scale_factor_spatial)

    def _frames(self, num_frames: int) -> int:
        """Return frames of the latent."""
        step = int(self.pipe.vae_scale_factor_temporal)
        if num_frames % step != 1:
            raise InputError(
                f"sampler.num_frames is {num_frames}: Wan needs 1 + a multiple of {step}"
            )
        return num_frames // step + 1

    def _text_limit(self) -> tuple[Any, int]:
        return self.pipe.tokenizer, TEXT_TOKENS

    def _encode(self, prompts: list[str]) -> PromptEmbeds:
        embeds, _ = self.pipe.encode_prompt(
            prompts,
            do_classifier_free_guidance=False,
            device=self.device,
            max_sequence_length=TEXT_TOKENS,
        )
        return PromptEmbeds(embeds)

    def _forward(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        dtype = self.transformer.dtype
        grid = self._grid(settings.height, settings.width)
        out = self.transformer(
            hidden_states=unpack_video(latents_BLD.to(dtype), *grid),
            timestep=sigma_B * 1000,
            encoder_hidden_states=prompts.embeds_BTC.to(dtype),
            return_dict=False,
        )[0]
        return pack_video(out)

    def _decode(self, latents_1LD: Tensor, height: int, width: int) -> np.ndarray:
        latents = unpack_video(latents_1LD, *self._grid(height, width))
        video = self.pipe.vae.decode(unnormalise(self.pipe.vae, latents), return_dict=False)[0]
        return self.pipe.video_processor.postprocess_video(video, output_type="np")


def pack_video(latents_BCFHW: Tensor) -> Tensor:
    """Return tokens [B, L, D], frame after frame."""
    batch, _, frames = latents_BCFHW.shape[:3]
    tokens = pack(latents_BCFHW.transpose(1, 2).flatten(0, 1))
    return tokens.reshape(batch, frames * tokens.shape[1], -1)


def unpack_video(latents_BLD: Tensor, rows: int, columns: int) -> Tensor:
    """Undo `pack_video`: return [B, C, F, rows p, columns p]."""
    batch, _, channels = latents_BLD.shape
    frames = unpack(latents_BLD.reshape(-1, rows * columns, channels), rows, columns)
    return frames.unflatten(0, (batch, -1)).transpose(1, 2)
