"""What the control socket says and hears, as types, and what it asks of the daemon.

Answers may gain fields: clients ignore what they do not know, so an older `spotlightctl` goes on
working. Requests refuse unknown fields: a misspelt option must not pass for a default.
docs/control-api.md shows each of them with curl.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from spotlightd.wire.sampling import Name

MAX_WAIT_S = 60.0
"""Longest time that the daemon holds a request for events open."""
MAX_EVENTS = 1000
"""Most events in one answer."""

Level = Literal["info", "warning", "error"]


class Answer(Struct, frozen=True, kw_only=True):
    """Base of what the daemon answers."""


class HeldOutPoint(Answer, frozen=True):
    """One evaluation on the held-out prompts."""

    policy_version: int
    scores: dict[str, float]
    """Mean by reward name."""


class Reward(Answer, frozen=True):
    control_mean: float | None
    """Mean training reward of the last iteration's rollouts with random seeds; None before."""
    held_out: tuple[HeldOutPoint, ...]
    """The first evaluation and the newest ones, oldest first."""


class Cost(Answer, frozen=True):
    """Money for the time held so far, at the configured prices."""

    currency: str
    reserved: float
    """The trainer's GPUs."""
    spot: float
    """All agents' GPUs."""
    all_reserved: float
    """What the same GPU-hours would have cost at the reserved price."""


class Status(Answer, frozen=True):
    name: str
    """Always `spotlightd`."""
    version: str
    protocol: tuple[int, int]
    """Major and minor of the fleet protocol."""
    epoch: int
    """Rises with every start of the daemon on this state directory."""
    state_dir: str
    pid: int
    uptime_s: float
    run: str
    phase: str
    iteration: int
    """The one in progress, from 0; equals `iterations` when the run is done."""
    iterations: int
    policy_version: int
    """Newest published weights."""
    reward: Reward
    agents: dict[str, int]
    """Count by state; states as in AgentRow."""
    requests: dict[str, dict[str, int]]
    """Count by kind (explore, rollout, evaluate), then by state (queued, leased, done, failed)."""
    lost: int
    """Trajectories that were acknowledged and then lost: 0, or something is broken."""
    gpu_seconds: dict[str, float]
    """By class: useful, wasted, loading, idle. The sum is the time held."""
    cost: Cost
    run_state: str = "running"
    """running, paused, done, stopped, or waiting: for a run, and what is told is the last one's."""
    train_reward: str = ""
    """Name of the reward that trains."""
    last_event: int = 0
    """Id of the newest event."""
    dashboard: str = ""
    """Address of the dashboard on this machine; empty: there is none."""


class AgentRow(Answer, frozen=True):
    agent_id: str
    name: str
    role: str
    """`agent` or `trainer`."""
    state: str
    """What membership thinks of it: live, suspect, draining, lost or gone."""
    workers: int
    leases: int
    """Requests that it holds."""
    versions: tuple[int, ...]
    """Policy versions that it can sample with now."""
    last_seen_s: float
    """Seconds since its last message."""
    gpu_seconds: dict[str, float]
    notice_s: float | None = None
    """Seconds until its VM is taken away; None without a notice."""


class RunRow(Answer, frozen=True):
    name: str
    state: str
    """running, paused, done, stopped, failed, interrupted (its daemon ended and nobody went on
    with it) or unreadable."""
    iteration: int
    iterations: int
    policy_version: int
    started_at: float
    """Seconds since 1970 (UTC)."""
    updated_at: float
    reward_first: float | None = None
    """Held-out mean of the training reward at version 0; None when not measured."""
    reward_last: float | None = None
    state_dir: str = ""
    failure: str = ""
    """Why it was given up, where it was."""


class ArmRow(Answer, frozen=True):
    """What the planner believes about one length of exploration."""

    tail_steps: int
    """Denoising steps after the stochastic ones."""
    staleness: int
    """Policy versions between exploration and training."""
    rho: float
    """Rank fidelity: correlation of exploration's scores with regenerated rewards."""
    rho_error: float


class PlannedIteration(Answer, frozen=True):
    iteration: int
    figures: dict[str, float]
    """Names as in docs/planner.md, without `planner.`."""


class PlanView(Answer, frozen=True):
    """What the planner does, and why."""

    mode: str
    iteration: int
    """The one that the plan is for."""
    reason: str
    arms: tuple[ArmRow, ...]
    windows_kept: int
    """Training phases at whose end exploration was complete."""
    windows_overrun: int
    iterations: tuple[PlannedIteration, ...]
    """Oldest first."""


class EventRow(Answer, frozen=True):
    event_id: int
    """Rises by at least one with each event."""
    time: float
    """Seconds since 1970 (UTC)."""
    level: Level
    component: str
    """Part of the daemon that speaks: fleet, planner, trainer, weights, store, control."""
    text: str


class TokenCreated(Answer, frozen=True):
    token: str
    """Shown once; the daemon keeps only a hash of its secret."""
    token_id: str
    expires_at: float
    """Seconds since 1970 (UTC)."""
    uses: int
    pool: str


class Submitted(Answer, frozen=True):
    """The daemon begins, or goes on with, this run; a restart of the daemon changes nothing."""

    run: str
    state_dir: str
    """Where it is kept; readable by the daemon's user alone."""
    iteration: int
    """With which it goes on; 0: it is new."""


class Accepted(Answer, frozen=True):
    """The daemon has begun to do it."""

    accepted: str


class Health(Answer, frozen=True, omit_defaults=True):
    ok: bool
    waiting_for: str = ""
    """What is missing until work can go on; empty: nothing."""


class Failure(Answer, frozen=True):
    """Body of every answer with a status of 400 or above."""

    error: str


class Ask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies. An empty body means all defaults."""


class TokenRequest(Ask, frozen=True):
    ttl_s: Annotated[float, Meta(ge=1, le=30 * 86400)] = 900.0
    uses: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many agents may join with it."""
    pool: Name = "default"


class DrainRequest(Ask, frozen=True):
    deadline_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """Time for finishing or handing back what the agent holds."""


class PricesRequest(Ask, frozen=True):
    prices: dict[str, Annotated[float, Meta(ge=0, le=1e6)]]
    """Of one spot GPU-hour in the configured currency, by zone; they replace the pool's."""


class RunRequest(Ask, frozen=True):
    """A run's configuration. Paths in it are the daemon's: relative ones are refused."""

    config: dict[str, dict[str, Any]] = {}
    """Section -> key -> value, as in the TOML file."""
    set: dict[str, str] = {}
    """Dotted key -> text, as after `--set`; these come before `config`."""
    file: Annotated[str, Meta(max_length=4096)] = "the configuration that was sent"
    """Where `config` was read, for errors and origins."""


class Nothing(Ask, frozen=True):
    """A request that says all by its address."""
