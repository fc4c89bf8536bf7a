"""Stable Diffusion 3 and 3.5: a joint transformer on unpacked latents, classifier-free guidance."""

from typing import Any

import numpy as np
from torch import Tensor

from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.models.pipeline import PipelineModel, decode_scaled, pack, unpack
from spotlightd.wire.sampling import SamplerSettings

T5_TOKENS = 256
"""The pipeline's default; the model saw up to 512, at twice the cost."""


class StableDiffusion3(PipelineModel):
    pipeline = "StableDiffusion3Pipeline"
    spaced_to_1_over_n = False
    lora_targets = (
        "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
        "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
    )  # fmt: skip

    def _text_limit(self) -> tuple[Any, int]:
        if self.pipe.text_encoder_3 is None:
            return self.pipe.tokenizer, self.pipe.tokenizer_max_length
        return self.pipe.tokenizer_3, T5_TOKENS

    def _encode(self, prompts: list[str]) -> PromptEmbeds:
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompts,
            None,
            None,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=T5_TOKENS,
        )
        return PromptEmbeds(embeds, pooled_BC=pooled)

    def _forward(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        dtype = self.transformer.dtype
        assert prompts.pooled_BC is not None
        out = self.transformer(
            hidden_states=unpack(
                latents_BLD.to(dtype), *self._grid(settings.height, settings.width)
            ),
            timestep=sigma_B * 1000,
            encoder_hidden_states=prompts.embeds_BTC.to(dtype),
            pooled_projections=prompts.pooled_BC.to(dtype),
            return_dict=False,
        )[0]
        return pack(out)

    def _decode(self, latents_1LD: Tensor, height: int, width: int) -> np.ndarray:
        return decode_scaled(self.pipe, unpack(latents_1LD, *self._grid(height, width)))
