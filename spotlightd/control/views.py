"""What the control socket tells of a run's past and present, as types; api.py has the rest.

Everything here can be read from the state directory alone, whether or not a daemon runs.
"""

from typing import Any, Literal

from spotlightd.control.api import Answer

Severity = Literal["warning", "error"]


class Sample(Answer, frozen=True):
    """One trajectory: what was asked for, and what came of it."""

    request_id: str
    kind: str
    """explore, rollout or evaluate."""
    iteration: int
    policy_version: int
    prompt_id: str
    prompt: str
    target: str
    """What the reward compares with."""
    seed: str
    """A 63-bit integer, as text: JavaScript's numbers hold 53 bits."""
    state: str
    """queued, leased, done, failed or cancelled."""
    agent_id: str
    """Who holds it or produced it; empty before the first lease."""
    leased_at: float
    """When its latest lease was given, seconds since 1970 (UTC); 0: never."""
    gpu_s: float
    """GPU-seconds of what was committed of it."""
    scores: dict[str, float] | None = None
    """By reward name; None until it is done."""
    text: str = ""
    """What the recogniser read in the image."""
    committed_at: float | None = None
    resumed_from: int = 0
    """Denoising step from which its last worker went on; 0: it began afresh."""
    has_image: bool = False
    has_trajectory: bool = False


class SamplePage(Answer, frozen=True):
    samples: tuple[Sample, ...]
    """In the order in which they were asked for."""
    next_after: int | None
    """Pass it as `after` for the next page; None: this was the last."""


class GridCell(Answer, frozen=True):
    request_id: str
    seed: str
    reward: float
    """The one that trains."""
    text: str
    has_image: bool


class GridRow(Answer, frozen=True):
    prompt_id: str
    prompt: str
    target: str
    before: tuple[GridCell, ...]
    """By seed; the same seeds as `after`, as far as both are there."""
    after: tuple[GridCell, ...]


class Grid(Answer, frozen=True):
    """Held-out pictures of two policy versions, by prompt and seed."""

    before: int
    """Policy version on the left: the first that was evaluated."""
    after: int
    versions: tuple[int, ...]
    """All evaluated versions, oldest first; at most 200 of them, evenly chosen."""
    prompts: int
    """How many rows there are in all."""
    rows: tuple[GridRow, ...]


class Curve(Answer, frozen=True):
    name: str
    points: tuple[tuple[float, float, float, float], ...]
    """(iteration, mean, least, most) of each bucket of iterations; a bucket of one has three
    equal values."""


class Curves(Answer, frozen=True):
    last_iteration: int
    curves: tuple[Curve, ...]
    """Those that were asked for and are there, in that order."""


class StripCell(Answer, frozen=True):
    """What an agent's GPUs did in one slice of time."""

    slot: int
    """Which slice, from 0."""
    state: str
    """Its condition at the slice's end: live, suspect, draining, preempted, lost or gone."""
    useful: float
    """Shares of the slice, summing to at most 1; the rest of it the agent was not there."""
    wasted: float
    loading: float
    idle: float


class Strip(Answer, frozen=True):
    agent_id: str
    name: str
    role: str
    cells: tuple[StripCell, ...]
    """Slices in which it was not there are left out."""


class Strips(Answer, frozen=True):
    since: float
    """Seconds since 1970 (UTC)."""
    slot_s: float
    slots: int
    strips: tuple[Strip, ...]
    """Trainer first, then those that were last there; at most as many as asked for."""
    agents: int
    """How many agents were there in this time in all."""


class SpendingPoint(Answer, frozen=True):
    time: float
    reserved: float
    """The trainer's GPUs, since the beginning."""
    spot: float
    all_on_demand: float
    """The same GPU-hours, all at the reserved price."""


class Account(Answer, frozen=True):
    agent_id: str
    name: str
    role: str
    workers: int
    price_per_hour: float
    """Of one GPU."""
    joined_at: float
    """Of its latest session."""
    left_at: float | None
    gpu_seconds: dict[str, float]
    """By class: useful, wasted, loading, idle. The sum is the time held."""
    cost: float


class LedgerView(Answer, frozen=True):
    currency: str
    gpu_seconds: dict[str, float]
    reserved: float
    spot: float
    all_on_demand: float
    """What the same GPU-hours would have cost at the reserved price."""
    saved_fraction: float
    accounts: tuple[Account, ...]
    """The dearest first."""
    spending: tuple[SpendingPoint, ...]
    """Over time, oldest first; empty before there are two measurements."""


class Alarm(Answer, frozen=True):
    """Something that an operator should look at; it goes away when its cause does."""

    name: str
    """Stable: zero_spread, ratio_off, reward_hacking, lost, no_agents, overrun."""
    severity: Severity
    text: str
    """What was seen, against which bound, and what to do."""


class WeightsRow(Answer, frozen=True):
    kind: str
    """base or adapter."""
    version: int
    bytes: int
    chunks: int
    files: int
    digest: str
    """BLAKE3 of the manifest."""
    holders: tuple[str, ...]
    """Agents that hold all of it and can sample with it."""


class WeightsView(Answer, frozen=True):
    current_version: int | None
    """None before the first is published."""
    published: tuple[WeightsRow, ...]
    """Served now, newest first."""
    kept: tuple[int, ...]
    """Adapter versions in the state directory, which can be exported."""


class ConfigRow(Answer, frozen=True):
    key: str
    value: Any
    origin: str
    """Command line, environment variable, file, or default."""
