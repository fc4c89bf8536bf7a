"""Requests to trajectories, one denoising step at a time.

Workers and the trainer call this same code. `advance` takes one step of a batch whose members
may each be at their own step, so that resumed and fresh trajectories share a batch; between two
calls the caller has control (commits, notices, cancellation).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spotlightd.dit.denoise import denoise_step
from spotlightd.dit.models import DiffusionModel, PromptEmbeds
from spotlightd.dit.noise import Stream, standard_normal
from spotlightd.dit.trajectory import Trajectory, decode_trajectory, stochastic_steps
from spotlightd.errors import InputError
from spotlightd.wire.codec import Buffer
from spotlightd.wire.sampling import Request, SamplerSettings
from triton_kernels.denoise import NoiseKey

PROMPT_CACHE = 4096


class Sampler:
    """Denoises with the weights that `model` has at the moment of each call."""

    def __init__(self, model: DiffusionModel) -> None:
        self.model = model
        self._prompts: dict[str, PromptEmbeds] = {}

    def start(self, request: Request, state: Buffer | None = None) -> Trajectory:
        """Begin a trajectory, or go on from an encoded one.

        Raises InputError for a prompt, size or state that the model cannot take.
        """
        sampler = request.sampler
        shape = self.model.latent_shape(sampler.height, sampler.width, sampler.num_frames)
        self._embed(request.prompt)
        if state is not None:
            trajectory = decode_trajectory(state, request, shape)
            trajectory.latents_LD = trajectory.latents_LD.to(self.model.device)
            return trajectory
        latents = standard_normal(request.seed, 0, Stream.INITIAL, shape, device=self.model.device)
        return Trajectory(request, latents)

    @torch.no_grad()
    def advance(self, trajectories: Sequence[Trajectory]) -> None:
        """Take one denoising step of each.

        All must share guidance and image size; each has its own step, sigma and window.
        Raises FloatingPointError naming the requests whose latents are no longer finite, and
        InputError for one that is finished.
        """
        for trajectory in trajectories:
            if trajectory.done:
                raise InputError(f"{trajectory.request.request_id} is finished: no step is left")
        settings = trajectories[0].request.sampler
        prompts = self.prompt_embeds([t.request.prompt for t in trajectories])
        latents = torch.stack([t.latents_LD for t in trajectories])
        sigma, sigma_next = sigmas_at(trajectories)
        velocity = self.model.velocity(latents, sigma.to(self.model.device), prompts, settings)
        for rows, stochastic in _by_mode(trajectories):
            chosen = [trajectories[row] for row in rows]
            self._step(chosen, stochastic, latents[rows], velocity[rows], sigma[rows],
                       sigma_next[rows])  # fmt: skip
        broken = [t.request.request_id for t in trajectories if not t.latents_LD.isfinite().all()]
        if broken:
            raise FloatingPointError(f"latents are not finite: {', '.join(broken)}")

    def _step(
        self,
        trajectories: Sequence[Trajectory],
        stochastic: bool,
        latents: Tensor,
        velocity: Tensor,
        sigma: Tensor,
        sigma_next: Tensor,
    ) -> None:
        settings = trajectories[0].request.sampler
        noise = None
        if stochastic:
            seeds = [t.request.seed for t in trajectories]
            noise = NoiseKey(seeds, [t.step_index for t in trajectories], Stream.SDE)
        out = denoise_step(
            settings.sde_form if stochastic else "ode",
            latents,
            velocity,
            sigma,
            sigma_next,
            settings.noise_level,
            settings.sigmas[1],
            noise=noise,
        )
        for row, trajectory in enumerate(trajectories):
            if out.log_prob is not None:
                trajectory.window_latents.append(trajectory.latents_LD)
                trajectory.window_next_latents.append(out.next_latents[row])
                trajectory.window_log_probs.append(float(out.log_prob[row]))
            trajectory.latents_LD = out.next_latents[row]
            trajectory.step_index += 1

    def decode(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """Return the images of finished trajectories, each uint8 [height, width, channels]."""
        settings = trajectories[0].request.sampler
        latents = torch.stack([t.latents_LD for t in trajectories])
        return list(self.model.decode(latents, settings.height, settings.width))

    def prompt_embeds(self, prompts: Sequence[str]) -> PromptEmbeds:
        """Return cached embeddings of prompts."""
        return PromptEmbeds.join([self._embed(prompt) for prompt in prompts])

    def _embed(self, prompt: str) -> PromptEmbeds:
        if prompt not in self._prompts:
            if len(self._prompts) >= PROMPT_CACHE:
                self._prompts.clear()
            with torch.no_grad():
                self._prompts[prompt] = self.model.encode_prompts([prompt])
        return self._prompts[prompt]


def sigmas_at(trajectories: Sequence[Trajectory]) -> tuple[Tensor, Tensor]:
    """Return sigma now and after the next step of each trajectory, fp32 [B] on the CPU."""
    pairs = [t.request.sampler.sigmas[t.step_index : t.step_index + 2] for t in trajectories]
    table = torch.tensor(pairs, dtype=torch.float32)
    return table[:, 0], table[:, 1]


def compatible(first: SamplerSettings, second: SamplerSettings) -> bool:
    """Whether trajectories with these settings may share a batch."""
    return (
        first.guidance_scale == second.guidance_scale
        and (first.height, first.width) == (second.height, second.width)
        and first.num_frames == second.num_frames
        and first.sde_form == second.sde_form
        and first.noise_level == second.noise_level
        and first.sigmas[1] == second.sigmas[1]
    )


def _by_mode(trajectories: Sequence[Trajectory]) -> list[tuple[list[int], bool]]:
    """Split rows into those at an ODE step and those at a stochastic one."""
    rows: dict[bool, list[int]] = {False: [], True: []}
    for row, trajectory in enumerate(trajectories):
        stochastic = trajectory.step_index in stochastic_steps(trajectory.request.sampler)
        rows[stochastic].append(row)
    return [(chosen, mode) for mode, chosen in rows.items() if chosen]
