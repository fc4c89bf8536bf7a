"""How a policy gets better: faster where groups spread more, slower where less of them trains.

    progress  += (V / V_random) ^ a  (k / k0) ^ b      per iteration
    level(x)   = start + (ceiling - start) (1 - exp(-x / tau))

V is the variance of what trains (unbiased, mean over groups), which are k rollouts of a group. With
k0 random seeds that all train an iteration is a progress of 1 (in expectation). Were the gradient's
noise all that counts, both exponents would be 1/2. They are fitted to real runs
(`benchmarks/learning_curve.py` writes `learning_curve.json`), with bootstrap draws that carry their
uncertainty into every simulation.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import variance

import msgspec

from spotlightd.simulate.assumptions import Task

FITTED = Path(__file__).with_name("learning_curve.json")


class FittedCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the fit found, beside what it was fitted to."""

    script: str
    variance_exponent: float
    share_exponent: float
    tau: float
    """Iterations with random seeds."""
    rise: float
    """Held-out reward at the ceiling less that at the start."""
    rms: float
    """Of the residuals, in held-out reward."""
    draws: tuple[tuple[float, float], ...]
    """Both exponents in resampled sets of runs."""
    points: tuple[tuple[str, int, int, float, float], ...]
    """(mode, seed, version, cumulated progress, rise of the held-out reward)."""


def load_fit(path: Path = FITTED) -> FittedCurve:
    return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), FittedCurve)


def drawn_exponents(seed: int, fit: FittedCurve) -> tuple[float, float]:
    """Return one of the bootstrap's pairs."""
    return random.Random(f"exponent:{seed}").choice(fit.draws)


@dataclass
class Learner:
    """The level of every version so far. Invariant: `levels[v]` exists for each trained version.

    Args:
        exponents: of the variance and of the number that trains.
        group_size: k0.
    """

    task: Task
    exponents: tuple[float, float]
    group_size: int
    progress: float = 0.0
    levels: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        task = self.task
        left = (task.ceiling - task.target) / (task.ceiling - task.start)
        self._tau = task.iterations / -math.log(left)
        self.levels.append(self._level())

    def _level(self) -> float:
        task = self.task
        return task.start + (task.ceiling - task.start) * (1 - math.exp(-self.progress / self._tau))

    @property
    def reached(self) -> bool:
        return self.levels[-1] >= self.task.target - 1e-12

    def trained(
        self, groups: Sequence[Sequence[float]], random_variances: Sequence[float]
    ) -> float:
        """One update; return the variance of what trained over that of random seeds.

        Args:
            groups: rewards of each group's rollouts that trained.
            random_variances: variance of its prompt's reward between random seeds.
        """
        expected, trained = sum(random_variances), sum(map(len, groups))
        spread = sum(variance(group) for group in groups if len(group) > 1)
        ratio = spread / expected if expected > 0 else 0.0
        share = trained / (len(groups) * self.group_size)
        by_variance, by_share = self.exponents
        self.progress += ratio**by_variance * share**by_share
        self.levels.append(self._level())
        return ratio
