"""How long things take: training, a trajectory, a whole batch; and how late exploration may go.

Everything is learned online from what the fleet reports, and all of it may change: agents leave
and join, GPUs differ, training slows down. Times come in as arguments, in seconds.
"""

import math
from dataclasses import dataclass
from dataclasses import field as default

from msgspec import Struct, field

from spotlightd.planner.estimators import Line, Running
from spotlightd.planner.spots import Spots, Strength

PER_TRAINING = 0.8
"""Discount per training phase."""
PER_TRAJECTORY = 0.99
"""Discount per trajectory."""
TRAINING_SPREAD = 0.1
"""Relative spread of training times that is assumed until it is known."""
PACE_SHARE = 0.1
"""Share of an update after which its pace says more than earlier updates."""
MISS_RATE = 0.01
"""Share of iterations in which exploration may still be running when training ends."""
MARGIN_STEP = 0.5
SLOWEST, FASTEST = 0.05, 20.0
"""Bounds of an agent's speed relative to the fleet's mean."""


@dataclass(frozen=True)
class Moment:
    """The clock and the fleet as the planner sees them."""

    now: float = 0.0
    agents: Spots = default(default_factory=Spots)
    """Those that may be given exploration; it goes on changing with the fleet."""
    train_fraction: float = 0.0
    """Share of the update that the trainer has reported as done."""


class Times(Struct, dict=True):
    """What is known about durations."""

    training: Running = field(default_factory=Running)
    """Seconds of training per group that has spread."""
    publish: Running = field(default_factory=Running)
    """Seconds from the update's end to the new version."""
    cost: Line = field(default_factory=Line)
    """GPU-seconds of a trajectory over its denoising steps, on a GPU of mean speed; decoding is
    the part that does not depend on steps."""
    latency: Line = field(default_factory=Line)
    """Seconds from adding a request to its committed scores: queue, batch, decoding, reward."""
    step_s: Running = field(default_factory=Running)
    """GPU-seconds of one denoising step, from heartbeats."""
    speeds: dict[str, Running] = field(default_factory=dict)
    """By agent: its speed relative to the fleet's."""

    def __post_init__(self) -> None:
        self._strength = Strength()

    def trained(self, window: "TrainingWindow", now: float) -> None:
        """A training phase ended. One without any group of spread says nothing."""
        if window.groups:
            self.training.observe((now - window.began) / window.groups, PER_TRAINING)
            updated_at = window.updated_at()
            if updated_at is not None:
                self.publish.observe(max(now - updated_at, 0.0), PER_TRAINING)

    def committed(self, agent_id: str, steps: int, gpu_s: float) -> None:
        """A trajectory cost so many GPU-seconds on this agent."""
        if gpu_s <= 0:
            return
        expected = self.cost.predict(steps)
        if expected is not None and expected[0] > 0:
            self._speed(agent_id).observe(expected[0] / gpu_s, PER_TRAJECTORY)
        self.cost.observe(steps, gpu_s, PER_TRAJECTORY)

    def heartbeat(self, agent_id: str, steps: int, busy_s: float) -> None:
        """An agent did so many denoising steps in so much time since its last heartbeat.

        Only an agent that has committed nothing yet is judged by its heartbeats.
        """
        if steps <= 0 or busy_s <= 0:
            return
        if self.step_s.weight and agent_id not in self.speeds:
            self._speed(agent_id).observe(self.step_s.mean * steps / busy_s, PER_TRAJECTORY)
        self.step_s.observe(busy_s / steps, PER_TRAJECTORY)

    def _speed(self, agent_id: str) -> Running:
        self._strength.judged.add(agent_id)
        return self.speeds.setdefault(agent_id, Running())

    def speed(self, agent_id: str) -> float:
        known = self.speeds.get(agent_id)
        return min(max(known.mean, SLOWEST), FASTEST) if known else 1.0

    def rate(self, agents: Spots, steps: float) -> float | None:
        """Return trajectories per second of these agents together; None before the first one."""
        cost = self.cost.predict(steps)
        if cost is None:
            return None
        return self._strength.of(agents, self.speed) / max(cost[0], 1e-9)

    def validate(self, agents: Spots) -> None:
        """Raise AssertionError where what is kept of these agents is not what they amount to."""
        working = sum(self.speed(agent_id) * spot.workers for agent_id, spot in agents.items())
        kept = self._strength.of(agents, self.speed)
        assert math.isclose(kept, working, rel_tol=1e-6, abs_tol=1e-6), (kept, working)

    def forget_absent(self, agents: Spots) -> None:
        self.speeds = {name: speed for name, speed in self.speeds.items() if name in agents}


class Margin(Struct):
    """How many standard deviations before the expected end of training exploration stops.

    Adaptive conformal inference (Gibbs and Candes 2021, arXiv 2106.00170): a miss widens the
    margin at once, hits narrow it slowly, so that misses settle at `MISS_RATE` whatever the
    distribution of times.
    """

    deviations: float = 3.0
    misses: int = 0
    hits: int = 0

    def settle(self, missed: bool) -> None:
        self.misses += missed
        self.hits += not missed
        moved = self.deviations + MARGIN_STEP * (missed - MISS_RATE)
        self.deviations = min(max(moved, 1.0), 8.0)


@dataclass
class TrainingWindow:
    """One training phase in progress.

    At first its end is known from earlier phases; once the trainer has reported progress for a
    while, from its pace. The first report comes after the ratio check and the last before the
    new version is written, so the pace counts between reports, and writing is learned apart.
    """

    began: float
    groups: int
    """Groups with spread, hence how much there is to train."""
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    """(time, share of the update) of the first and the latest report."""

    def observe(self, moment: Moment) -> None:
        if moment.train_fraction > (self.last[1] if self.last else 0.0):
            self.last = (moment.now, moment.train_fraction)
            self.first = self.first or self.last

    def updated_at(self) -> float | None:
        """Return when the update will be complete at the pace seen; None while it is not known."""
        if self.first is None or self.last is None:
            return None
        (began, least), (now, share) = self.first, self.last
        if share - least < PACE_SHARE:
            return None
        return now + (1 - share) * (now - began) / (share - least)

    def end(self, times: Times, moment: Moment) -> tuple[float, float] | None:
        """Return (expected end, standard deviation); None before any training was seen."""
        if not times.training.weight:
            return None
        updated_at = self.updated_at()
        if updated_at is None:
            mean = times.training.mean * self.groups
            return self.began + mean, times.training.sd(TRAINING_SPREAD) * self.groups
        left = max(updated_at - moment.now, 0.0)
        sd = math.hypot(TRAINING_SPREAD * left, times.publish.sd(TRAINING_SPREAD))
        return updated_at + times.publish.mean, sd

    def seconds_left(
        self, times: Times, margin: Margin, moment: Moment, steps: float
    ) -> float | None:
        """Return for how long requests may still be added that finish in time with confidence."""
        end, latency = self.end(times, moment), times.latency.predict(steps)
        if end is None or latency is None:
            return None
        spread = margin.deviations * math.hypot(end[1], latency[1])
        return end[0] - moment.now - latency[0] - spread
