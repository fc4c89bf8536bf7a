"""What models in a diffusers pipeline folder have in common: loading, packing, guidance, decoding.

A model's own file says what differs (docs/adding-a-model.md). Text is encoded by the pipeline's own
code, so a prompt means here what it means to whoever loads the trained adapter there.

Legend: B batch, L latent tokens, D channels of a token, C channels of the VAE's latent, F its
frames, H and W its height and width, p the patch side of a token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from safetensors import SafetensorError
from torch import Tensor

from spotlightd.dit.models import PromptEmbeds
from spotlightd.errors import InputError
from spotlightd.wire.sampling import SamplerSettings

PATCH = 2
"""Side of the square of VAE latents that makes a token, in all of these models."""


class PipelineModel:
    """A `DiffusionModel` (see `spotlightd.dit.models`) around a diffusers pipeline.

    Args:
        pipe: the pipeline; it may lack encoders and VAE where prompts come encoded and nothing is
            decoded.
        device: where its parts lie.
    """

    pipeline: ClassVar[str]
    """Class in `diffusers`."""
    lora_targets: tuple[str, ...]
    spaced_to_1_over_n: ClassVar[bool]
    """Whether the pipeline spaces its noise levels from 1 to 1/n before the scheduler shifts them;
    otherwise the scheduler spaces them itself."""
    negative_prompt: ClassVar[str] = ""
    """What guidance leads away from."""

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self.pipe = pipe
        self.transformer = pipe.transformer
        self.device = device
        self._negative: PromptEmbeds | None = None

    @classmethod
    def load(cls, model_dir: Path, dtype: torch.dtype, device: torch.device) -> Self:
        """Load a folder as `save_pretrained` writes it; nothing is fetched from a hub.

        Raises InputError where a part is missing or damaged, or the variant is not supported.
        """
        import diffusers

        try:
            pipe = getattr(diffusers, cls.pipeline).from_pretrained(
                model_dir, dtype=dtype, local_files_only=True
            )
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{model_dir}: cannot load the {cls.pipeline}: {error}") from None
        for part in pipe.components.values():
            if isinstance(part, torch.nn.Module):
                part.to(device).eval().requires_grad_(False)
        return cls(pipe, device)

    # --- shapes and noise levels --------------------------------------------------------------

    def latent_shape(self, height: int, width: int, num_frames: int = 1) -> tuple[int, int]:
        if num_frames != 1:
            raise InputError(f"sampler.num_frames is {num_frames}: {self.pipeline} draws images")
        rows, columns = self._grid(height, width)
        return rows * columns, self._latent_channels() * PATCH**2

    def sigmas(self, num_steps: int, tokens: int) -> tuple[float, ...]:
        scheduler = type(self.pipe.scheduler).from_config(self.pipe.scheduler.config)
        config, chosen = scheduler.config, {}
        if self.spaced_to_1_over_n:
            chosen["sigmas"] = np.linspace(1.0, 1 / num_steps, num_steps)
        if config.get("use_dynamic_shifting"):
            chosen["mu"] = calculate_shift(
                tokens,
                config.get("base_image_seq_len", 256),
                config.get("max_image_seq_len", 4096),
                config.get("base_shift", 0.5),
                config.get("max_shift", 1.15),
            )
        scheduler.set_timesteps(num_steps, **chosen)
        # Multistep schedulers shy away from 1 by 1e-6; a step's coefficients need the 1 itself.
        first = float(scheduler.sigmas[0])
        first = 1.0 if first > 1 - 1e-5 else first
        return (first, *(float(sigma) for sigma in scheduler.sigmas[1:-1]), 0.0)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of tokens of an image."""
        side = self._pixels_a_latent() * PATCH
        if height % side or width % side:
            raise InputError(
                f"image size {height} x {width}: {self.pipeline} needs multiples of {side}"
            )
        return height // side, width // side

    def _pixels_a_latent(self) -> int:
        return int(self.pipe.vae_scale_factor)

    def _latent_channels(self) -> int:
        return int(self.transformer.config.in_channels)

    # --- text ---------------------------------------------------------------------------------

    def encode_prompts(self, prompts: Sequence[str]) -> PromptEmbeds:
        self._refuse_long(prompts)
        return self._encode(list(prompts))

    def _refuse_long(self, prompts: Sequence[str]) -> None:
        """A pipeline cuts a long prompt off in silence, and the reward would ask for the rest."""
        tokenizer, limit = self._text_limit()
        for prompt in prompts:
            length = len(tokenizer(prompt).input_ids)
            if length > limit:
                raise InputError(
                    f"a prompt of {length} tokens is too long, {self.pipeline} reads {limit}: "
                    f"'{prompt[:60]}...'"
                )

    # --- forward ------------------------------------------------------------------------------

    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """See `DiffusionModel`. Classifier-free guidance above 1, both branches in one forward."""
        scale = settings.guidance_scale
        if scale <= 1:
            return self._forward(latents_BLD, sigma_B, prompts, settings).float()
        count = latents_BLD.shape[0]
        both = PromptEmbeds.join([prompts, self._negative_prompt().take([0] * count)])
        out = self._forward(latents_BLD.repeat(2, 1, 1), sigma_B.repeat(2), both, settings)
        conditional, unconditional = out.float().split(count)
        return self._guide(conditional, unconditional, scale)

    def _negative_prompt(self) -> PromptEmbeds:
        if self._negative is None:
            with torch.no_grad():
                self._negative = self._encode([self.negative_prompt])
        return self._negative

    def _guide(self, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
        return unconditional + scale * (conditional - unconditional)

    # --- pixels -------------------------------------------------------------------------------

    def decode(self, latents_BLD: Tensor, height: int, width: int) -> np.ndarray:
        return (self.pixels(latents_BLD, height, width) * 255).round().astype(np.uint8)

    @torch.no_grad()
    def pixels(self, latents_BLD: Tensor, height: int, width: int) -> np.ndarray:
        """Return images in [0, 1], one decoded after the other: a VAE's activations are large."""
        dtype = self.pipe.vae.dtype
        rows = [self._decode(row[None].to(dtype), height, width) for row in latents_BLD]
        return np.concatenate(rows)

    # --- a model's own part -------------------------------------------------------------------

    def _text_limit(self) -> tuple[Any, int]:
        """Return the tokenizer that reads most of a prompt, and how many tokens it may have."""
        raise NotImplementedError

    def _encode(self, prompts: list[str]) -> PromptEmbeds:
        raise NotImplementedError

    def _forward(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """One call of the transformer: velocity [B, L, D] in its dtype."""
        raise NotImplementedError

    def _decode(self, latents_1LD: Tensor, height: int, width: int) -> np.ndarray:
        """Return one image in [0, 1]: [1, height, width, 3]."""
        raise NotImplementedError


def pack(latents_BCHW: Tensor) -> Tensor:
    """Return tokens [B, L, C p p] of p x p patches in row-major order, channel first."""
    batch, channels, height, width = latents_BCHW.shape
    grid = latents_BCHW.view(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(latents_BLD: Tensor, rows: int, columns: int) -> Tensor:
    """Undo `pack`: return [B, C, rows p, columns p]."""
    batch, _, channels = latents_BLD.shape
    grid = latents_BLD.view(batch, rows, columns, channels // PATCH**2, PATCH, PATCH)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, rows * PATCH, columns * PATCH)


def decode_scaled(pipe: Any, latents_BCHW: Tensor) -> np.ndarray:
    """Decode with a VAE whose latents were scaled and shifted as a whole (SD3, FLUX)."""
    config = pipe.vae.config
    latents = latents_BCHW / config.scaling_factor + config.shift_factor
    image = pipe.vae.decode(latents, return_dict=False)[0]
    return pipe.image_processor.postprocess(image, output_type="np")


def unnormalise(vae: Any, latents_BCFHW: Tensor) -> Tensor:
    """Undo the per-channel normalisation of the Wan and Qwen-Image VAEs' latents."""
    mean, std = (
        torch.tensor(values, device=latents_BCFHW.device, dtype=latents_BCFHW.dtype)
        .view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )  # fmt: skip
    return latents_BCFHW * std + mean
