"""What the trainer computes of a rollout before any update, beside what the worker stored."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spotlightd.dit.denoise import denoise_step
from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.trajectory import Trajectory


def log_prob_differences(model: DiffusionModel, group: Sequence[Trajectory]) -> Tensor:
    """Return |log-prob anew - log-prob stored| [B, W]; `group` is one batch of B rollouts that
    share their settings, with W trained steps each.
    """
    settings = group[0].request.sampler
    prompts = model.encode_prompts([t.request.prompt for t in group])
    columns = []
    for position, step in enumerate(settings.sde_window):
        latents = torch.stack([t.window_latents[position] for t in group])
        after = torch.stack([t.window_next_latents[position] for t in group])
        sigma, following = (torch.full((len(group),), settings.sigmas[i]) for i in (step, step + 1))
        with torch.no_grad():
            velocity = model.velocity(latents, sigma, prompts, settings)
        out = denoise_step(
            settings.sde_form, latents, velocity, sigma, following, settings.noise_level,
            settings.sigmas[1], next_latents_BLD=after,
        )  # fmt: skip
        old = torch.tensor([t.window_log_probs[position] for t in group])
        columns.append((out.log_prob - old).abs())
    return torch.stack(columns, dim=1)
