"""What the iteration machine decides, each with its reason; the conductor acts on it."""

from dataclasses import dataclass
from typing import Literal

from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Train

Phase = Literal["starting", "evaluate", "explore", "rollout", "train", "finished"]


@dataclass(frozen=True)
class AddRequests:
    requests: list[Request]
    reason: str


@dataclass(frozen=True)
class StopRequests:
    request_ids: list[str]
    reason: str


@dataclass(frozen=True)
class Reopen:
    """Forget committed results: they cannot be read back, and are produced again."""

    request_ids: list[str]
    reason: str


@dataclass(frozen=True)
class StartTraining:
    message: Train
    reason: str


@dataclass(frozen=True)
class Record:
    """Metrics of an iteration, to be stored."""

    iteration: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Planned:
    """What the next iteration's exploration will be, and why."""

    iteration: int
    reason: str


@dataclass(frozen=True)
class PhaseBegins:
    phase: Phase
    iteration: int
    reason: str


Decision = AddRequests | StopRequests | Reopen | StartTraining | Record | Planned | PhaseBegins
