"""What defines a trajectory: sampler settings and the request for one rollout."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Fixes the initial latent and the noise of every SDE step. 63 bits, so that SQLite holds it."""

PolicyVersion = Annotated[int, Meta(ge=0, lt=2**31)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
RequestId = Annotated[str, Meta(min_length=1, max_length=200)]
StepIndex = Annotated[int, Meta(ge=0, le=1000)]
AVERAGES_FROM = 2**30
"""Policy version k's moving average, which only the trainer holds, has the number this plus k."""
Fence = Annotated[int, Meta(ge=1, lt=2**53)]

SdeForm = Literal["flow_sde", "flow_cps", "dance_sde"]
RequestKind = Literal["explore", "rollout", "evaluate"]
PRIORITY: tuple[RequestKind, ...] = ("rollout", "evaluate", "explore")
"""Most urgent first, in the scheduler's queues and in a worker's batches."""


class SamplerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a trajectory is denoised. Computed once per run; nobody regenerates the sigma array."""

    sigmas: Annotated[tuple[float, ...], Meta(min_length=2, max_length=1001)]
    """Noise levels from first to last, one more than there are denoising steps."""
    sde_form: SdeForm
    noise_level: Annotated[float, Meta(ge=0, le=10)]
    """`eta` of the SDE forms."""
    sde_window: Annotated[tuple[StepIndex, ...], Meta(max_length=1000)]
    """Step indices that are stochastic and train; all others are ODE steps."""
    guidance_scale: Annotated[float, Meta(ge=0, le=100)]
    height: Annotated[int, Meta(ge=1, le=16384)]
    width: Annotated[int, Meta(ge=1, le=16384)]
    num_frames: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Frames of a video; 1 for an image."""

    @property
    def num_steps(self) -> int:
        return len(self.sigmas) - 1


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """One trajectory to produce. With the policy's weights it determines the result."""

    request_id: RequestId
    kind: RequestKind
    iteration: Annotated[int, Meta(ge=0, lt=2**31)]
    prompt_id: Name
    prompt: Annotated[str, Meta(min_length=1, max_length=4096)]
    target: Annotated[str, Meta(max_length=1024)]
    """What the reward compares with (OCR: the quoted text)."""
    seed: Seed
    policy_version: PolicyVersion
    sampler: SamplerSettings


encode_sampler = msgspec.json.encode
"""Canonical form of settings for the store and for digests."""
