"""One forward, step and adapter update of a transformer with random weights, of any size.

The same code runs tiny on a CPU, which proves it, and at real size on a GPU, which measures it.
"""

import time
from dataclasses import dataclass
from typing import Any

import diffusers as d
import torch

from spotlightd.dit.denoise import denoise_step
from spotlightd.dit.lora import adapter_parameters, attach_lora
from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.models.qwen_image import QwenImage
from spotlightd.dit.models.sd3 import StableDiffusion3
from spotlightd.dit.sampler import Sampler
from spotlightd.wire.sampling import Request, SamplerSettings


@dataclass
class Measured:
    """Seconds of one call each, after a first one that is not counted; bytes at the peak."""

    build_s: float
    forward_s: float
    step_s: float
    update_s: float
    sample_bytes: int
    train_bytes: int
    moved: float
    """Largest change of an adapter weight by the update."""
    finite: bool


def build(name: str, config: dict[str, Any], device: str, dtype: torch.dtype) -> Any:
    """Return an adapter around a transformer alone; its prompts are random embeddings."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            kind = d.SD3Transformer2DModel if name == "sd3" else d.QwenImageTransformer2DModel
            transformer = kind(**config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    scheduler = d.FlowMatchEulerDiscreteScheduler(shift=3.0)
    width = transformer.config.joint_attention_dim
    if name == "sd3":
        rest = ("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2",
                "text_encoder_3", "tokenizer_3")  # fmt: skip
        pipe = d.StableDiffusion3Pipeline(transformer, scheduler, **dict.fromkeys(rest))
        model: Any = StableDiffusion3(pipe, torch.device(device))
        pooled = torch.randn(1, transformer.config.pooled_projection_dim, device=device)
        embeds = PromptEmbeds(torch.randn(1, 333, width, device=device), pooled_BC=pooled)
    else:
        pipe = d.QwenImagePipeline(scheduler, None, None, None, transformer)
        model = QwenImage(pipe, torch.device(device))
        mask = torch.arange(64, device=device)[None] < 40
        embeds = PromptEmbeds(torch.randn(1, 64, width, device=device), mask)
    model.encode_prompts = lambda prompts: embeds.take([0] * len(prompts))
    model._negative = embeds
    return model


def measure(
    name: str,
    config: dict[str, Any],
    device: str,
    dtype: torch.dtype,
    side: int,
    batch: int,
    guidance: float,
) -> Measured:
    began = _now(device)
    model = build(name, config, device, dtype)
    attach_lora(model, 16, 32.0)
    build_s = _now(device) - began
    tokens = model.latent_shape(side, side)[0]
    settings = SamplerSettings(
        model.sigmas(10, tokens), "flow_cps", 0.8, (0, 1, 2), guidance, side, side
    )
    sampler = Sampler(model)
    running = [
        sampler.start(Request(f"r{seed}", "rollout", 0, "p", "a cup", "", seed, 0, settings))
        for seed in range(batch)
    ]
    sampler.advance(running)
    _reset_peak(device)
    began = _now(device)
    sampler.advance(running)
    step_s, sample_bytes = _now(device) - began, _peak(device)
    latents = torch.stack([t.window_latents[0] for t in running])
    after = torch.stack([t.window_next_latents[0] for t in running])
    sigma, following = (torch.full((batch,), settings.sigmas[i]) for i in (0, 1))
    prompts = sampler.prompt_embeds(["a cup"] * batch)
    began = _now(device)
    with torch.no_grad():
        model.velocity(latents, sigma.to(device), prompts, settings)
    forward_s = _now(device) - began
    parameters = adapter_parameters(model)
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-4)
    start = {key: p.detach().clone() for key, p in parameters.items()}

    def update() -> bool:
        velocity = model.velocity(latents[:1], sigma[:1].to(device), prompts.take([0]), settings)
        out = denoise_step(
            "flow_cps", latents[:1], velocity, sigma[:1], following[:1], 0.8, settings.sigmas[1],
            next_latents_BLD=after[:1],
        )  # fmt: skip
        assert out.log_prob is not None
        (-out.log_prob.mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return bool(torch.isfinite(norm)) and float(norm) > 0

    first = update()
    _reset_peak(device)
    began = _now(device)
    finite = update() and first
    return Measured(
        build_s,
        forward_s,
        step_s,
        _now(device) - began,
        sample_bytes,
        _peak(device),
        max(float((p.detach() - start[key]).abs().max()) for key, p in parameters.items()),
        finite and all(bool(t.latents_LD.isfinite().all()) for t in running),
    )


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.monotonic()


def _reset_peak(device: str) -> None:
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device != "cpu" else 0
