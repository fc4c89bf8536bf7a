"""Qwen-Image: true classifier-free guidance, rescaled to the conditional branch's norm."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.models.pipeline import PATCH, PipelineModel, unnormalise, unpack
from spotlightd.dit.models.qwen_ops import use_fused_ops
from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings

TEXT_TOKENS = 512
TEXT_MULTIPLE = 64
"""Texts are padded, each alone, to a multiple of this, so that most batches have one length and
company does not change a sample's arithmetic. 512 for all would cost half as much again at 512 x
512 pixels (1,024 image tokens)."""


class QwenImage(PipelineModel):
    pipeline = "QwenImagePipeline"
    spaced_to_1_over_n = True
    negative_prompt = " "
    lora_targets = (
        "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj",
        "to_add_out", "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2",
    )  # fmt: skip

    def __init__(self, pipe: Any, device: torch.device) -> None:
        if pipe.transformer.config.guidance_embeds:
            raise InputError("this Qwen-Image is distilled for guidance, which is not supported")
        use_fused_ops(pipe.transformer)
        super().__init__(pipe, device)

    def _latent_channels(self) -> int:
        return int(self.transformer.config.in_channels) // PATCH**2

    def _text_limit(self) -> tuple[Any, int]:
        return self.pipe.tokenizer, TEXT_TOKENS

    def _encode(self, prompts: list[str]) -> PromptEmbeds:
        return PromptEmbeds.join([self._encode_one(prompt) for prompt in prompts])

    def _encode_one(self, prompt: str) -> PromptEmbeds:
        embeds, _ = self.pipe.encode_prompt([prompt], device=self.device)
        length = embeds.shape[1]
        missing = -length % TEXT_MULTIPLE
        mask = torch.ones(1, length, dtype=torch.bool, device=self.device)
        return PromptEmbeds(pad(embeds, (0, 0, 0, missing)), pad(mask, (0, missing)))

    def _forward(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        dtype = self.transformer.dtype
        shape = [(1, *self._grid(settings.height, settings.width))]
        return self.transformer(
            hidden_states=latents_BLD.to(dtype),
            timestep=sigma_B,
            encoder_hidden_states=prompts.embeds_BTC.to(dtype),
            encoder_hidden_states_mask=prompts.mask_BT,
            img_shapes=[shape] * latents_BLD.shape[0],
            return_dict=False,
        )[0]

    def _guide(self, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
        guided = super()._guide(conditional, unconditional, scale)
        lengths = [part.norm(dim=-1, keepdim=True) for part in (conditional, guided)]
        return guided * (lengths[0] / lengths[1])

    def _decode(self, latents_1LD: Tensor, height: int, width: int) -> np.ndarray:
        latents = unpack(latents_1LD, *self._grid(height, width))[:, :, None]
        image = self.pipe.vae.decode(unnormalise(self.pipe.vae, latents), return_dict=False)[0]
        return self.pipe.image_processor.postprocess(image[:, :, 0], output_type="np")
