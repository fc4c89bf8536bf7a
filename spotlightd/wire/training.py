"""Messages between the daemon and its trainer, which shares the fleet link with the agents."""

from typing import Annotated

from msgspec import Meta, Struct

from spotlightd.wire.messages import Count, Digest, Message, Seconds, Text
from spotlightd.wire.sampling import Name, PolicyVersion, Request, RequestId, Seed, StepIndex


class TrainSample(Struct, frozen=True, forbid_unknown_fields=True):
    request_id: RequestId
    seed: Seed
    reward: float
    trajectory: Digest
    """Blob with the window's latents and log-probs, in the daemon's blob store."""
    producer: Name
    """Agent id, so that the ratio check can name who disagrees."""
    control: bool
    """Seed was drawn at random, not selected."""


class TrainGroup(Struct, frozen=True, forbid_unknown_fields=True):
    prompt_id: Name
    request: Request
    """Any of the group's requests: prompt and sampler settings are shared."""
    samples: Annotated[tuple[TrainSample, ...], Meta(min_length=1, max_length=4096)]


class Train(Message, frozen=True, tag="train"):
    """Daemon to trainer: turn `policy_version` into `policy_version + 1`."""

    iteration: Count
    policy_version: PolicyVersion
    groups: Annotated[tuple[TrainGroup, ...], Meta(max_length=4096)]


class Damaged(Message, frozen=True, tag="damaged"):
    """Trainer to daemon: these trajectories cannot be read back, so nothing was trained."""

    iteration: Count
    request_ids: Annotated[tuple[RequestId, ...], Meta(min_length=1, max_length=65536)]
    reason: Text


class TrainProgress(Message, frozen=True, tag="train_progress"):
    iteration: Count
    fraction: Annotated[float, Meta(ge=0, le=1)]


class ProducerDifference(Struct, frozen=True, forbid_unknown_fields=True):
    """Ratio check of one producer: |log-prob of trainer - of worker| before the first update."""

    producer: Name
    mean_abs_difference: float
    max_abs_difference: float
    worst_step: StepIndex


class Trained(Message, frozen=True, tag="trained"):
    """The new version is checkpointed and its adapter file lies in the weights folder."""

    iteration: Count
    policy_version: PolicyVersion
    """The new one."""
    metrics: Annotated[dict[Name, float], Meta(max_length=64)]
    differences: tuple[ProducerDifference, ...]
    clip_range: float
    seconds: Seconds


class TrainerReady(Message, frozen=True, tag="trainer_ready"):
    """The trainer has loaded its checkpoint and holds this version."""

    policy_version: PolicyVersion
    sigmas: Annotated[tuple[float, ...], Meta(min_length=2, max_length=1001)]
    """The model's sigma array for the configured number of steps; the daemon stores it once."""
    latent_elements: Count
    """Elements of one latent (D of the mean log-prob)."""
    clip_range: float


TrainingMessage = Train | Damaged | TrainProgress | Trained | TrainerReady
