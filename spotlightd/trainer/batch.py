"""From a Train message to tensors: windows of all trajectories, with advantages.

Legend: N trajectories, W window steps, L tokens, D channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlightd.dit.trajectory import decode_trajectory
from spotlightd.errors import InputError
from spotlightd.store.blobs import Blobs
from spotlightd.trainer.advantage import group_advantages, has_spread
from spotlightd.wire.sampling import Request, SamplerSettings
from spotlightd.wire.training import Train, TrainGroup


class DamagedError(InputError):
    """Trajectories that cannot be read back, by request id."""

    def __init__(self, reason: str, request_ids: tuple[str, ...]) -> None:
        super().__init__(reason)
        self.request_ids = request_ids


@dataclass
class WindowBatch:
    """What one update trains on."""

    latents_NWLD: Tensor
    """fp32, before each stochastic step."""
    next_latents_NWLD: Tensor
    old_log_prob_NW: Tensor
    """fp32, as the rollout computed it."""
    sigma_NW: Tensor
    sigma_next_NW: Tensor
    steps_NW: Tensor
    """int64, denoising step of each window entry."""
    final_latents_NLD: Tensor
    """fp32, what the rollout ended with."""
    advantages_N: Tensor
    group_N: Tensor
    """int64, the group that each trajectory belongs to."""
    request_ids: list[str]
    prompts: list[str]
    producers: list[str]
    settings: SamplerSettings
    """Guidance, image size, SDE form and noise level, which the whole batch shares."""
    zero_std_groups: int
    """Groups without spread, left out before anything else."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def window(self) -> int:
        return self.steps_NW.shape[1]


def load_batch(
    message: Train,
    blobs: Blobs,
    latent_shape: tuple[int, int],
    advantage_clip: float,
    global_std: bool,
    over_control: bool = False,
) -> WindowBatch | None:
    """Read the trajectories of a Train message.

    Args:
        advantage_clip, global_std: of the advantages.
        over_control: take control seeds' mean as the baseline instead of the group's.

    Groups of zero spread are dropped first, so that every rank would take the same number of
    steps. Returns None where no group has spread.

    Raises DamagedError where trajectories are missing, damaged, or do not fit their requests.
    """
    rewards = [torch.tensor([s.reward for s in group.samples]) for group in message.groups]
    kept = [i for i, values in enumerate(rewards) if has_spread(values)]
    if not kept:
        return None
    groups = [message.groups[i] for i in kept]
    centres = [_control_mean(group) for group in groups] if over_control else None
    advantages = group_advantages([rewards[i] for i in kept], advantage_clip, global_std, centres)
    damaged: dict[str, str] = {}
    rows = [_read(group, blobs, latent_shape, damaged) for group in groups]
    sizes = torch.tensor([len(group.samples) for group in groups])
    if damaged:
        first = next(iter(damaged.values()))
        raise DamagedError(f"{len(damaged)} trajectories: {first}", tuple(damaged))
    settings = groups[0].request.sampler
    return WindowBatch(
        torch.cat([r[0] for r in rows]),
        torch.cat([r[1] for r in rows]),
        torch.cat([r[2] for r in rows]),
        *_schedule(groups),
        torch.cat([r[3] for r in rows]),
        torch.cat(advantages),
        torch.arange(len(groups)).repeat_interleave(sizes),
        [sample.request_id for group in groups for sample in group.samples],
        [group.request.prompt for group in groups for _ in group.samples],
        [sample.producer for group in groups for sample in group.samples],
        settings,
        len(message.groups) - len(kept),
    )


def _control_mean(group: TrainGroup) -> float:
    """Return the control seeds' mean reward: selected seeds are extreme, and skewed rewards
    shift their mean. A group without control seeds has its own."""
    rewards = [s.reward for s in group.samples if s.control] or [s.reward for s in group.samples]
    return sum(rewards) / len(rewards)


def _read(
    group: TrainGroup, blobs: Blobs, latent_shape: tuple[int, int], damaged: dict[str, str]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stack a group's windows; what is wrong with a sample goes into `damaged` by request id."""
    before, after, log_probs, final = [], [], [], []
    for sample in group.samples:
        try:
            data = blobs.get(sample.trajectory)
            trajectory = decode_trajectory(data, group.request, latent_shape)
            if not trajectory.done:
                raise InputError(f"trajectory of {sample.request_id} is not finished")
        except InputError as error:
            damaged[sample.request_id] = str(error)
            continue
        before.append(torch.stack(trajectory.window_latents))
        after.append(torch.stack(trajectory.window_next_latents))
        log_probs.append(torch.tensor(trajectory.window_log_probs, dtype=torch.float32))
        final.append(trajectory.latents_LD)
    if not before:
        return torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0)
    return torch.stack(before), torch.stack(after), torch.stack(log_probs), torch.stack(final)


def _schedule(groups: Sequence[TrainGroup]) -> tuple[Tensor, Tensor, Tensor]:
    """Return (sigma, sigma after the step, step index), each [N, W]."""
    requests: list[Request] = [group.request for group in groups for _ in group.samples]
    steps = torch.tensor([request.sampler.sde_window for request in requests])
    sigmas = torch.tensor([request.sampler.sigmas for request in requests], dtype=torch.float32)
    return sigmas.gather(1, steps), sigmas.gather(1, steps + 1), steps
