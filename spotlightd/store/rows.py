"""Rows of the store as they are read."""

import math
from typing import Literal

import msgspec

from spotlightd.wire.sampling import Request

RunIntent = Literal["running", "paused", "stopped"]
"""What the operator wants of a run."""


class StoredRequest(msgspec.Struct, frozen=True):
    """A request with its state, as found after a restart."""

    request: Request
    state: str
    fence: int
    agent_id: str
    """Holder of the latest lease; empty before the first."""
    progress_step: int
    progress_blob: str | None


class StoredResult(msgspec.Struct, frozen=True):
    request_id: str
    scores: dict[str, float]
    text: str
    trajectory: str | None
    image: str | None
    agent_id: str
    resumed_from: int


class RunState(msgspec.Struct, frozen=True):
    name: str
    config: str
    sigmas: tuple[float, ...]
    cycle: str
    """CycleState as JSON; empty before the first phase."""
    policy_version: int
    epoch: int
    started_at: float
    updated_at: float
    state: RunIntent = "running"


class TokenRow(msgspec.Struct, frozen=True):
    key: bytes
    """SHA-256 of the token's secret: proofs are HMACs under it."""
    uses_left: int
    expires_at: float
    pool: str


class PeerRow(msgspec.Struct, frozen=True):
    public_key: str
    agent_id: str
    name: str
    revoked: bool
    pool: str = "default"
    """Of the token that let it in."""
    expires_at: float = math.inf
    """Seconds since 1970; moves on while its agent is heard."""
