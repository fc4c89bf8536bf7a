"""When a run should end before its last iteration: the training reward is being hacked.

A policy that learns what the reward misses shows it in two curves that part: the training reward
rises, and a reward that does not train falls on held-out prompts.
"""

from collections.abc import Mapping
from statistics import fmean

from msgspec import Struct, field

from spotlightd.sections import RunSection


class Evaluated(Struct, frozen=True):
    """One evaluation beside the training before it."""

    iteration: int
    held_out: float
    training: float
    """Mean training reward of random seeds since the evaluation before."""


class Watch(Struct):
    """What is known of both curves; part of the run's state."""

    evaluations: list[Evaluated] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    """Training rewards since the last evaluation, one an iteration."""
    stopped: str = ""
    """Why the run ended early; empty: it did not."""

    def trained(self, metrics: Mapping[str, float], reward: str) -> None:
        """Take an iteration's rollouts. Selected seeds are extreme: random ones count first."""
        value = metrics.get(f"control.{reward}", metrics.get(f"rollout.{reward}"))
        if value is not None:
            self.recent.append(value)

    def evaluated(self, iteration: int, metrics: Mapping[str, float], run: RunSection) -> str:
        """Take an evaluation; return why the run should end, or nothing."""
        held_out = metrics.get(f"held_out.{run.early_stop_reward}")
        if held_out is not None and self.recent:
            self.evaluations.append(Evaluated(iteration, held_out, fmean(self.recent)))
            self.recent = []
        if run.early_stop:
            self.stopped = parted(self.evaluations, run.early_stop_reward, run.early_stop)
        return self.stopped

    def ended(self, run: RunSection) -> bool:
        """Whether the run ended early, and is not now told to go on all the same."""
        return bool(self.stopped) and run.early_stop > 0


def parted(evaluations: list[Evaluated], reward: str, patience: int) -> str:
    """Return the reason to stop: `patience` evaluations in a row below the best one, each after
    training rewards above those of the best. Nothing where the curves have not parted so.
    """
    if len(evaluations) <= patience:
        return ""
    best = max(evaluations, key=lambda e: e.held_out)
    after = evaluations[evaluations.index(best) + 1 :]
    if len(after) < patience or any(e.training <= best.training for e in after[-patience:]):
        return ""
    last = evaluations[-1]
    return (
        f"held-out {reward} has been below its best ({best.held_out:.3g} at iteration "
        f"{best.iteration}) in {len(after)} evaluations and is {last.held_out:.3g}, while the "
        f"training reward rose from {best.training:.3g} to {last.training:.3g}: it is being hacked"
    )
