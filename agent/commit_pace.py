"""How often a worker commits the state of its trajectories: as often as it costs next to nothing.

Pure. A step commit costs the worker's time (copy, encode, hand over) and saves the steps since the
last one when the VM vanishes, so its price is set against the price of a step.
"""

import math
from dataclasses import dataclass

TARGET_SHARE = 0.01
"""A commit may cost this share of the denoising steps between two commits."""
LEAST_COMMITS = 4
"""Commits measured before the first judgement; until then every step is committed."""
MAX_EVERY = 8
SMOOTHING = 0.2


@dataclass
class CommitPace:
    """`fixed`: what the configuration says, 0 for never; None: by cost."""

    fixed: int | None
    cost_share: float = 0.0
    """Running mean of (seconds of a batch's commit) / (seconds of its denoising step)."""
    measured: int = 0

    def observe(self, commit_s: float, step_s: float) -> None:
        """A batch was committed after a step that took `step_s`."""
        share = commit_s / max(step_s, 1e-9)
        weight = max(SMOOTHING, 1 / (self.measured + 1))
        self.cost_share += weight * (share - self.cost_share)
        self.measured += 1

    @property
    def every(self) -> int:
        """Denoising steps between two commits; 0: none."""
        if self.fixed is not None:
            return self.fixed
        if self.measured < LEAST_COMMITS:
            return 1
        return min(max(math.ceil(self.cost_share / TARGET_SHARE), 1), MAX_EVERY)
