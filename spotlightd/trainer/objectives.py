"""What one forward of a micro-batch is for, and the loss of its result.

The three policy gradients judge the rollout's own steps; NFT predicts at noised versions of the
rollout's final latents. For all of them "old" is the policy as it was before this update, which
made the rollouts.
"""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from spotlightd.dit.denoise import coefficients, denoise_step
from spotlightd.dit.noise import Stream, standard_normal
from spotlightd.dit.sampler import Sampler
from spotlightd.sections import TrainerSection
from spotlightd.trainer.batch import WindowBatch
from spotlightd.trainer.loss import (
    flow_dppo_loss,
    flow_grpo_loss,
    gaussian_kl,
    grpo_guard_loss,
    nft_loss,
    velocity_distance,
)
from spotlightd.trainer.micro_batches import MicroBatch

DPPO_KL_THRESHOLD = 1e-5
NFT_BETA = 1.0


class Prediction(NamedTuple):
    """What the model says of a micro-batch of B pairs."""

    value: Tensor
    """[B, L, D]: mean of the step, or the velocity. Other policies are compared by it."""
    scale: Tensor
    """[B, 1, 1]: the step's noise; 0 where there is no step."""
    log_prob: Tensor | None
    """[B]; None where the prediction is of no step of the rollout."""


class Objective(Protocol):
    keeps_old: bool
    """Whether the loss needs the old policy's prediction of every pair."""

    def predict(self, batch: WindowBatch, pairs: MicroBatch) -> Prediction:
        """Call the model once, with whatever weights it has now."""

    def losses(self, batch: WindowBatch, pairs: MicroBatch, now: Prediction, old: Tensor) -> Tensor:
        """Return [B]; `old` is the old policy's `value`, or `now`'s own without its gradient."""

    def divergences(self, now: Prediction, reference: Tensor) -> Tensor:
        """Return [B]: how far the policy is from the reference, whose `value` is given."""


class PolicyGradient:
    """`flow_grpo`, `grpo_guard` and `flow_dppo`.

    Args:
        sampler: whose model is called, and whose cache of prompts is used.
    """

    def __init__(self, sampler: Sampler, section: TrainerSection, clip_range: float) -> None:
        self.keeps_old = section.objective in ("grpo_guard", "flow_dppo")
        self._model = sampler.model
        self._prompts = sampler.prompt_embeds
        self._section = section
        self._clip_range = clip_range

    def predict(self, batch: WindowBatch, pairs: MicroBatch) -> Prediction:
        settings, device = batch.settings, self._model.device
        rows, position = pairs.rows, pairs.position
        latents = batch.latents_NWLD[rows, position].to(device)
        sigma = batch.sigma_NW[rows, position]
        prompts = self._prompts([batch.prompts[row] for row in rows.tolist()])
        velocity = self._model.velocity(latents, sigma.to(device), prompts, settings)
        step = denoise_step(
            settings.sde_form,
            latents,
            velocity,
            sigma,
            batch.sigma_next_NW[rows, position],
            settings.noise_level,
            settings.sigmas[1],
            next_latents_BLD=batch.next_latents_NWLD[rows, position].to(device),
        )
        return Prediction(step.mean, step.scale, step.log_prob)

    def losses(self, batch: WindowBatch, pairs: MicroBatch, now: Prediction, old: Tensor) -> Tensor:
        assert now.log_prob is not None
        device = now.log_prob.device
        log_probs = now.log_prob, batch.old_log_prob_NW[pairs.rows, pairs.position].to(device)
        advantages = batch.advantages_N[pairs.rows].to(device)
        section = self._section
        match section.objective:
            case "grpo_guard":
                std, root = (t.to(device) for t in _step_widths(batch, pairs))
                return grpo_guard_loss(
                    *log_probs, now.value, old, std, root, advantages, self._clip_range
                )
            case "flow_dppo":
                threshold = section.dppo_kl_threshold or DPPO_KL_THRESHOLD
                return flow_dppo_loss(*log_probs, now.value, old, now.scale, advantages, threshold)
            case _:
                return flow_grpo_loss(*log_probs, advantages, self._clip_range)

    def divergences(self, now: Prediction, reference: Tensor) -> Tensor:
        return gaussian_kl(now.value, reference, now.scale)


def _step_widths(batch: WindowBatch, pairs: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return (std, sqrt(-dt)) of the optimizer step's pairs at this window position."""
    settings = batch.settings
    sigmas = batch.sigma_NW[pairs.part, pairs.position].tolist()
    after = batch.sigma_next_NW[pairs.part, pairs.position].tolist()
    roots = [math.sqrt(s - s_next) for s, s_next in zip(sigmas, after, strict=True)]
    scales = [
        coefficients(settings.sde_form, *pair, settings.noise_level, settings.sigmas[1]).scale
        for pair in zip(sigmas, after, strict=True)
    ]
    stds = [scale / root for scale, root in zip(scales, roots, strict=True)]
    return torch.tensor(stds), torch.tensor(roots)


class Nft:
    """`nft`: noise levels come from the schedule's own, and the noise from the update's seed.

    Both are drawn for the whole batch, so that every layout of ranks trains on the same.
    """

    keeps_old = True

    def __init__(
        self, sampler: Sampler, section: TrainerSection, batch: WindowBatch, seed: int
    ) -> None:
        self._model = sampler.model
        self._prompts = sampler.prompt_embeds
        self._clip = section.advantage_clip
        self._beta = section.nft_beta or NFT_BETA
        draw = torch.Generator().manual_seed(seed)
        levels = torch.tensor(batch.settings.sigmas[:-1], dtype=torch.float32)
        picks = torch.rand(len(batch), len(levels), generator=draw).argsort(dim=1)
        self._sigma_NW = levels[picks[:, : batch.window]]
        self._noise_seeds_NW = torch.randint(2**62, self._sigma_NW.shape, generator=draw)

    def _noisy(self, batch: WindowBatch, pairs: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return (noisy, clean, sigma [B]) of the pairs."""
        clean = batch.final_latents_NLD[pairs.rows].to(self._model.device)
        sigma = self._sigma_NW[pairs.rows, pairs.position].to(self._model.device)
        seeds = self._noise_seeds_NW[pairs.rows, pairs.position].tolist()
        shape, device = tuple(clean.shape[1:]), self._model.device
        noise = torch.stack(
            [standard_normal(s, 0, Stream.FORWARD, shape, device=device) for s in seeds]
        )
        mix = sigma[:, None, None]
        return (1 - mix) * clean + mix * noise, clean, sigma

    def predict(self, batch: WindowBatch, pairs: MicroBatch) -> Prediction:
        noisy, _, sigma = self._noisy(batch, pairs)
        prompts = self._prompts([batch.prompts[row] for row in pairs.rows.tolist()])
        velocity = self._model.velocity(noisy, sigma, prompts, batch.settings)
        return Prediction(velocity, torch.zeros_like(sigma)[:, None, None], None)

    def losses(self, batch: WindowBatch, pairs: MicroBatch, now: Prediction, old: Tensor) -> Tensor:
        noisy, clean, sigma = self._noisy(batch, pairs)
        advantages = batch.advantages_N[pairs.rows].to(sigma.device)
        return nft_loss(now.value, old, noisy, clean, sigma, advantages, self._clip, self._beta)

    def divergences(self, now: Prediction, reference: Tensor) -> Tensor:
        return velocity_distance(now.value, reference)
