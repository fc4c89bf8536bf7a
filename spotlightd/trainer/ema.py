"""An exponential moving average of the trained weights, one step for each optimizer step."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Ema:
    """Averages of `parameters`, or of this rank's shards of them.

    Args:
        parameters: the live weights, by name.
        decay: what the decay rises to; see `decay_at`.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.steps = 0
        """Optimizer steps that were averaged; skipped ones are none."""
        self._live = parameters
        self.averages = {name: p.detach().clone() for name, p in parameters.items()}
        self.swapped = False
        """Whether the model holds the averages, and `averages` the live weights."""

    @torch.no_grad()
    def observe(self) -> None:
        """Take in the live weights after an optimizer step."""
        assert not self.swapped, "the model holds the averages: nothing may train"
        weight = 1 - decay_at(self.steps, self.decay)
        for name, average in self.averages.items():
            average.lerp_(self._live[name].detach(), weight)
        self.steps += 1

    @torch.no_grad()
    def restart(self, steps: int | None) -> None:
        """Take up restored averages after `steps` steps; None: begin with the live weights."""
        if steps is None:
            for name, average in self.averages.items():
                average.copy_(self._live[name].detach())
        self.steps = steps or 0

    @torch.no_grad()
    def select(self, averages: bool) -> None:
        """Put the averages (or the live weights) into the model; again does nothing."""
        if averages == self.swapped:
            return
        for name, other in self.averages.items():
            kept = self._live[name].detach().clone()
            self._live[name].copy_(other)
            other.copy_(kept)
        self.swapped = averages


def decay_at(steps: int, decay: float) -> float:
    """Return the decay after `steps` steps: (1 + n) / (10 + n), at most `decay`.

    Without this warm-up the average would hold to weights that nothing had trained yet.
    """
    return min(decay, (1 + steps) / (10 + steps))
