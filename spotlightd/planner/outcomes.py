"""What a finished iteration says about the exploration before it: the honest figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance, variance

from msgspec import Struct, field

from spotlightd.planner.allocation import SAME
from spotlightd.planner.estimators import Running
from spotlightd.planner.variance import group_gain

PER_GROUP = 0.98
FEWEST_GROUPS = 12
"""Groups before controls may show harm."""


@dataclass(frozen=True)
class GroupOutcome:
    """One prompt's regenerated group beside what exploration had said."""

    prompt_id: str
    candidates: int
    """Seeds that were scored in time, control seeds included."""
    stale: tuple[float | None, ...]
    """Ranking score of each member from exploration; None where it was not scored."""
    fresh: tuple[float, ...]
    """Training reward of each member, regenerated."""
    control: tuple[bool, ...]
    """Which members are control seeds, drawn before any score was known."""
    rank_spread: float
    """Standard deviation of the ranking score over all candidates; 0: not known or none."""
    reward_spread: float
    """The same of the training reward, as exploration scored it."""

    @property
    def controls(self) -> list[float]:
        return [y for y, chosen in zip(self.fresh, self.control, strict=True) if chosen]

    def pairs(self) -> tuple[list[float], list[float]]:
        """Return (stale, fresh) in units of the prompt's spread; empty where it has none."""
        if self.rank_spread <= SAME or self.reward_spread <= SAME:
            return [], []
        both = [
            (x / self.rank_spread, y / self.reward_spread)
            for x, y in zip(self.stale, self.fresh, strict=True)
            if x is not None
        ]
        return [x for x, _ in both], [y for _, y in both]


class Realised(Struct):
    """Variance of whole groups beside that of their control seeds: does selecting help?"""

    group: float = 0.0
    control: float = 0.0
    """Discounted sums over groups."""
    difference: Running = field(default_factory=Running)
    """Of a group: (group - control) / (group + control), in [-1, 1] whatever its spread."""

    def observe(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Take the groups that have control seeds; unbiased variances, so that sizes compare."""
        for outcome in outcomes:
            if len(outcome.controls) < 2:
                continue
            group, control = variance(outcome.fresh), variance(outcome.controls)
            self.group = PER_GROUP * self.group + group
            self.control = PER_GROUP * self.control + control
            if group + control > SAME:
                self.difference.observe((group - control) / (group + control), PER_GROUP)

    def gain(self) -> float | None:
        """Return the variance of groups over that of random seeds; None where nothing is known."""
        return self.group / self.control if self.control > 0 else None

    def harms(self) -> bool:
        """Whether groups spread less than their control seeds by two standard errors."""
        known = self.difference
        if known.weight < FEWEST_GROUPS:
            return False
        return known.mean + 2 * math.sqrt(known.scatter) / known.weight < 0


def outcome_metrics(
    outcomes: Sequence[GroupOutcome], group_size: int, controls: int, rho: float
) -> dict[str, float]:
    """Measure an iteration: variance realised and predicted, empty groups, shift of the mean."""
    if not outcomes:
        return {}
    figures = {
        "planner.variance": fmean(pvariance(o.fresh) for o in outcomes),
        "planner.zero_spread_share": fmean(max(o.fresh) - min(o.fresh) <= SAME for o in outcomes),
    }
    explored = [o for o in outcomes if o.reward_spread > 0]
    if explored:
        figures["planner.variance_predicted"] = fmean(
            o.reward_spread**2 * group_gain(o.candidates, group_size, controls, rho)
            for o in explored
        )
        figures["planner.variance_explored"] = fmean(pvariance(o.fresh) for o in explored)
    shifts = [fmean(o.fresh) - fmean(o.controls) for o in outcomes if o.controls]
    if shifts:
        figures["planner.mean_shift"] = fmean(shifts)
    return figures
