"""A world in virtual time for the planner: prompts, a fleet that changes, and training that drifts.

Everything that happens is drawn beforehand from one seed, so that every policy meets the same
world: the same prompts with the same seeds and rewards, the same losses of VMs, the same training
times. Rewards are made up; times are virtual; a policy sees only what a daemon would see.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from spotlightd.planner.selection import Candidate, select_seeds
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Moment

GROUP_SIZE, CONTROLS = 24, 6
PROMPTS, POOL = 8, 64
WINDOW_STEPS, FULL_TAIL = 12, 28
TAILS = (1, 2, 4, 8, 16, 28)
DECODE_STEPS = 1.0
"""Decoding and reward, in denoising steps."""
MOST = 400
TICK_S = 1.0
CHECK_SHARE, PUBLISH_SHARE = 0.1, 0.05
"""Shares of a training phase before the first and after the last report of progress."""
STEP_S = 0.1
"""GPU-seconds of a denoising step on a GPU of speed 1."""


def cost_s(tail: float) -> float:
    return (WINDOW_STEPS + tail + DECODE_STEPS) * STEP_S


@dataclass(frozen=True)
class PromptKind:
    """How one prompt's rewards are spread between its seeds."""

    spread: float
    pass_rate: float | None
    """None: a normal reward; else 0 or 1 with this rate."""

    @property
    def variance(self) -> float:
        rate = self.pass_rate
        return self.spread**2 if rate is None else rate * (1 - rate)


@dataclass(frozen=True)
class Iteration:
    """One iteration of the world."""

    prompts: dict[str, PromptKind]
    fresh: dict[str, np.ndarray]
    """[MOST]: reward of each candidate under the weights that train."""
    stale_noise: dict[str, np.ndarray]
    train_s: float
    fleet: list[tuple[float, float, float]]
    """(from, until, speed) of each GPU, in seconds since training began."""
    fidelity: dict[float, float]
    """rho by tail."""

    def stale(self, prompt: str, index: int, tail: float) -> float:
        """The candidate's score from exploration: correlates with its reward by rho."""
        kind, rho = self.prompts[prompt], self.fidelity[tail]
        centre = 0.0 if kind.pass_rate is None else kind.pass_rate
        noise = kind.variance**0.5 * float(self.stale_noise[prompt][index])
        signal = float(self.fresh[prompt][index]) - centre
        if kind.pass_rate is not None:
            # A stale score of a pass or fail flips sometimes.
            flips = abs(float(self.stale_noise[prompt][index])) > 1 / (1 - rho + 1e-9) ** 0.5
            return float(self.fresh[prompt][index] if not flips else 1 - self.fresh[prompt][index])
        return centre + rho * signal + (1 - rho**2) ** 0.5 * noise

    def gpus_at(self, now: float) -> list[int]:
        return [i for i, (start, end, _) in enumerate(self.fleet) if start <= now < end]

    def moment(self, now: float) -> Moment:
        agents = Spots({f"gpu-{i}": Spot(1, 1) for i in self.gpus_at(now)})
        done = (now / self.train_s - CHECK_SHARE) / (1 - CHECK_SHARE - PUBLISH_SHARE)
        return Moment(now, agents, min(max(done, 0.0), 1.0))


def make_world(seed: int, iterations: int) -> list[Iteration]:
    rng = np.random.default_rng(seed)
    pool = {f"p{i}": _prompt(rng) for i in range(POOL)}
    slow, gpus, age = 0.0, {i: rng.lognormal(0, 0.2) for i in range(6)}, 6
    penalty, level = 0.3, 0.9
    world = []
    for number in range(iterations):
        slow = 0.9 * slow + 0.1 * rng.normal()
        train_s = 80 * float(np.exp(slow + 0.03 * rng.normal()))
        # The penalty of a short tail drifts, and now and then it is another one altogether.
        penalty = float(np.clip(penalty + 0.04 * rng.normal(), 0.02, 0.8))
        if rng.random() < 0.02:
            penalty = float(rng.uniform(0.02, 0.8))
        level = float(np.clip(level + 0.02 * rng.normal(), 0.6, 0.98))
        fleet, gpus, age = _fleet(rng, gpus, age, train_s)
        chosen = [f"p{(number * PROMPTS + i) % POOL}" for i in range(PROMPTS)]
        world.append(
            Iteration(
                {p: pool[p] for p in chosen},
                {p: _rewards(rng, pool[p]) for p in chosen},
                {p: rng.normal(size=MOST) for p in chosen},
                train_s,
                fleet,
                {float(t): level * (1 - penalty * (1 - t / FULL_TAIL) ** 2) for t in (*TAILS, 12)},
            )
        )
    return world


def _prompt(rng: np.random.Generator) -> PromptKind:
    """A tenth is always equal, a tenth nearly so; the others' spread has a heavy tail."""
    draw = rng.random()
    if draw < 0.1:
        return PromptKind(0.0, None)
    if draw < 0.2:
        return PromptKind(0.0, 0.95)
    return PromptKind(float(0.15 * (1 + rng.pareto(3.0))), None)


def _rewards(rng: np.random.Generator, kind: PromptKind) -> np.ndarray:
    if kind.pass_rate is not None:
        return (rng.random(MOST) < kind.pass_rate).astype(float)
    return kind.spread * rng.normal(size=MOST)


def _fleet(
    rng: np.random.Generator, gpus: dict[int, float], age: int, train_s: float
) -> tuple[list[tuple[float, float, float]], dict[int, float], int]:
    """Losses come in bursts; replacements join one by one, in the middle of things too."""
    stay, rows = dict(gpus), []
    burst = rng.random() < 0.12
    for name, speed in gpus.items():
        if burst and rng.random() < 0.6:
            rows.append((0.0, float(rng.uniform(0, train_s)), speed))
            del stay[name]
        else:
            rows.append((0.0, float("inf"), speed))
    for _ in range(int(rng.poisson(0.6)) if len(stay) < 12 else 0):
        speed = float(rng.lognormal(0, 0.2))
        rows.append((float(rng.uniform(0, train_s)), float("inf"), speed))
        stay[age], age = speed, age + 1
    return rows, stay, age


Next = Callable[[Moment], Iterable[tuple[str, str]]]
"""(request id, prompt) of candidates to add at this moment."""
Scored = Callable[[str, str, float, float, float, str], None]
"""Told (request id, prompt, score, GPU-seconds, time, agent)."""


def explore(world: Iteration, tail: float, ask: Next, scored: Scored) -> dict[str, list[float]]:
    """Play the exploration of one training phase; return the scores by prompt, by index.

    One trajectory at a time per GPU; what a lost GPU was working on goes back to the queue.
    """
    queue: list[tuple[str, str]] = []
    scores: dict[str, list[float]] = {prompt: [] for prompt in world.prompts}
    events: list[tuple[float, int, str, object]] = []
    number = 0

    def push(at: float, what: str, data: object) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, what, data))

    idle: set[int] = set()
    for gpu, (start, end, _) in enumerate(world.fleet):
        push(start, "up", gpu)
        if end < world.train_s:
            push(end, "down", gpu)
    push(0.0, "tick", None)
    working: dict[int, tuple[str, str, int]] = {}
    serial = 0
    while events and events[0][0] <= world.train_s:
        now, _, what, data = heapq.heappop(events)
        if what == "up":
            idle.add(int(data))  # type: ignore[call-overload]
        elif what == "down":
            idle.discard(int(data))  # type: ignore[call-overload]
            lost = working.pop(int(data), None)  # type: ignore[call-overload]
            if lost:
                queue.insert(0, lost[:2])
        elif what == "done":
            gpu, mark, seconds = data  # type: ignore[misc]
            if working.get(gpu, ("", "", -1))[2] != mark:
                continue
            request, prompt, _ = working.pop(gpu)
            idle.add(gpu)
            value = world.stale(prompt, len(scores[prompt]), tail)
            scores[prompt].append(value)
            scored(request, prompt, value, seconds, now, f"gpu-{gpu}")
        else:
            push(now + TICK_S, "tick", None)
        queue += ask(world.moment(now))
        while idle and queue:
            gpu, (request, prompt) = idle.pop(), queue.pop(0)
            serial += 1
            seconds = cost_s(tail) / world.fleet[gpu][2]
            working[gpu] = (request, prompt, serial)
            push(now + seconds, "done", (gpu, serial, seconds))
    return scores


def regenerate(
    world: Iteration, prompt: str, scores: list[float], controls: int = CONTROLS
) -> tuple[list[int], list[float], list[bool]]:
    """Select by the planner's own rule; return (indices, rewards, which are controls)."""
    candidates = [Candidate(i, score) for i, score in enumerate(scores)]
    fresh = range(len(scores), MOST)
    while len(candidates) < controls:
        candidates.append(Candidate(len(candidates), None))
    chosen, _ = select_seeds(candidates, fresh[:GROUP_SIZE], GROUP_SIZE, controls, 7)
    indices = [s.seed for s in chosen]
    return (
        indices,
        [float(world.fresh[prompt][i]) for i in indices],
        [s.role == "control" for s in chosen],
    )
