"""How a policy gets better: a curve over iterations, faster where groups spread more.

    progress  += (V / V_random) ^ exponent       per iteration, V the variance of its groups
    level(x)   = start + (ceiling - start) (1 - exp(-x / tau))

With random seeds an iteration is a progress of 1 (in expectation). The exponent is fitted to real
runs (`benchmarks/learning_curve.py` writes `learning_curve.json`), with bootstrap draws that carry
its uncertainty into every simulation.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spotlightd.simulate.assumptions import Task

FITTED = Path(__file__).with_name("learning_curve.json")


class FittedCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the fit found, beside what it was fitted to."""

    script: str
    exponent: float
    tau: float
    """Iterations with random seeds."""
    rise: float
    """Held-out reward at the ceiling less that at the start."""
    rms: float
    """Of the residuals, in held-out reward."""
    draws: tuple[float, ...]
    """The exponent in resampled sets of runs."""
    points: tuple[tuple[str, int, int, float, float], ...]
    """(mode, seed, version, cumulated progress, rise of the held-out reward)."""


def load_fit(path: Path = FITTED) -> FittedCurve:
    return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), FittedCurve)


def drawn_exponent(seed: int, fit: FittedCurve) -> float:
    """Return one of the bootstrap's exponents."""
    return random.Random(f"exponent:{seed}").choice(fit.draws)


@dataclass
class Learner:
    """The level of every version so far. Invariant: `levels[v]` exists for each trained version."""

    task: Task
    exponent: float
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

    def trained(self, groups: Sequence[float], random_groups: Sequence[float]) -> None:
        """One update.

        Args:
            groups: variance of each group that trained (population variance).
            random_groups: variance of its prompt's reward between random seeds.
        """
        # K seeds have (K - 1) / K of the variance of all, in expectation.
        expected = sum(random_groups) * (1 - 1 / self.group_size)
        ratio = sum(groups) / expected if expected > 0 else 0.0
        self.progress += ratio**self.exponent
        self.levels.append(self._level())
