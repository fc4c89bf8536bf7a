"""Rewards that a simulated run sees: a prompt's seeds spread around what the policy can do by then.

A seed has a standard normal draw z of its own. Regenerated, its reward follows from z. Exploration
sees z through fidelity rho: rho z + sqrt(1 - rho^2) e, with e drawn anew for each policy version.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import NormalDist

from spotlightd.planner.seeds import keyed_hash
from spotlightd.simulate.assumptions import FidelityTable, Task
from spotlightd.wire.sampling import Request

_NORMAL = NormalDist()
_TO_UNIT = 1 / 2**53
QUANTILES = tuple(_NORMAL.inv_cdf((i + 0.5) / 64) for i in range(64))
"""A prompt's seeds, as evenly as 64 can be."""


def draw(*key: int | str) -> float:
    """Return a standard normal draw that depends on nothing but the key."""
    return _NORMAL.inv_cdf(((keyed_hash(*key) >> 11) + 0.5) * _TO_UNIT)


class Fidelity:
    def __init__(self, table: FidelityTable) -> None:
        self._lags, self._tails = table.by_lag, sorted(table.by_tail)

    def rho(self, lag: int, tail_share: float) -> float:
        """Return the rank fidelity of scores.

        Args:
            lag: policy versions between exploration and training.
            tail_share: of the steps after the window, those that were taken.
        """
        base = self._lags[min(lag, len(self._lags) - 1)]
        return base * _between(self._tails, tail_share)


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    right = min(bisect_left([p[0] for p in points], x), len(points) - 1)
    left = max(right - 1, 0)
    (x0, y0), (x1, y1) = points[left], points[right]
    share = 1.0 if x1 == x0 else min(max((x - x0) / (x1 - x0), 0.0), 1.0)
    return y0 + share * (y1 - y0)


class RewardModel:
    """Scores of requests under a policy of some level (its held-out score)."""

    def __init__(
        self,
        task: Task,
        fidelity: Fidelity,
        train: str,
        names: Sequence[str],
        rank_by: str,
        full_steps: int,
    ) -> None:
        self._task, self._fidelity = task, fidelity
        self._train, self._rank_by, self._full_steps = train, rank_by, full_steps
        self._blank = dict.fromkeys(names, 0.0)
        self._prompts: dict[str, float] = {}

    def scores(self, request: Request, level: float) -> dict[str, float]:
        """Return the scores of a finished request, by reward name."""
        z = draw("z", request.seed)
        if request.kind == "explore":
            lag = request.iteration - request.policy_version
            z = self._stale(request, z, lag)
        centre = self._centre(request.prompt_id, level)
        graded = min(max(centre + self._task.spread * z, 0.0), 1.0)
        reward = graded if self._task.reward == "graded" else float(_NORMAL.cdf(z) < centre)
        # Whoever passes must rank above who fails: the grade is that of -z where few z pass.
        rank = graded if self._task.reward == "graded" else -z
        return self._blank | {self._rank_by: rank, self._train: reward}

    def _stale(self, request: Request, z: float, lag: int) -> float:
        sampler = request.sampler
        end = sampler.sde_window[-1] + 1
        share = (sampler.num_steps - end) / max(self._full_steps - end, 1)
        rho = self._fidelity.rho(lag, share)
        noise = draw("stale", request.seed, request.policy_version)
        return rho * z + math.sqrt(1 - rho**2) * noise

    def _centre(self, prompt_id: str, level: float) -> float:
        """Mean reward of a prompt, or its pass rate: prompts differ."""
        offset = self._prompts.get(prompt_id)
        if offset is None:
            offset = self._prompts[prompt_id] = self._task.prompt_spread * draw("p", prompt_id)
        return level + offset

    def random_variance(self, prompt_id: str, level: float) -> float:
        """Return the reward's variance between a prompt's random seeds."""
        centre = self._centre(prompt_id, level)
        if self._task.reward == "pass":
            rate = min(max(centre, 0.0), 1.0)
            return rate * (1 - rate)
        values = [min(max(centre + self._task.spread * z, 0.0), 1.0) for z in QUANTILES]
        mean = sum(values) / len(values)
        return sum((v - mean) ** 2 for v in values) / len(values)
