"""Whether what is being denoised can be finished before a notice's deadline. Pure.

Committing upon a notice loses nothing, and somebody else goes on from there. Where the time left is
enough, finishing is better still: no state travels and nobody waits for a free worker. It is tried
only for all images together and by speeds that were measured here, never believed. What is not
finished `RESERVE_S` before the deadline is committed then, as it would have been at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotlightd.dit.degrees import Curve, Group, plan, until

RESERVE_S = 10.0
"""Before the deadline, for commits and their acknowledgements; the longest step comes on top."""
FINISH_S = 2.0
"""From an image's last step to its acknowledgement: decoding, scoring, sending."""
CAUTION = 1.25
"""Steps may take so many times as long as they did."""


class Race(NamedTuple):
    finish: bool
    """Go on with what is held; otherwise commit it now."""
    groups: tuple[Group, ...]
    """The arrangement that it takes; empty: as it is."""
    reserve_s: float
    """So long before the deadline what is still not finished is committed."""
    reason: str


COMMIT_NOW = Race(False, (), 0.0, "too little is known to finish before the deadline: committing")


@dataclass
class Leaving:
    """A host that leaves and does not commit everything at once. Times are of one clock."""

    deadline: float
    """When it must be gone; may come nearer."""
    decide_by: float
    """Without a decision until then, everything is committed."""
    reserve_s: float | None = None
    """Before the deadline, for commits; None until it was decided to finish."""

    @property
    def commit_at(self) -> float:
        if self.reserve_s is None:
            return min(self.decide_by, self.deadline - RESERVE_S)
        return self.deadline - self.reserve_s


def race(
    left: Sequence[float],
    now: Sequence[Group],
    workers: int,
    curve: Curve,
    step_s: float,
    regroup_s: float,
    deadline_s: float,
    least_degree: int = 1,
) -> Race:
    """Decide upon a notice.

    Args:
        left: denoising steps of each image.
        now: the groups as they are; images are indexes into `left`.
        curve: measured speedups alone, of every degree in `now` as well.
        step_s: of one image at degree 1.
        regroup_s: what a change of arrangement costs.
        deadline_s: time until this host must be gone.
    """
    reserve_s = _reserve_s(now, curve, step_s)
    budget_s = deadline_s - reserve_s - FINISH_S
    stays_s = CAUTION * step_s * until(now, left, curve)
    if stays_s <= budget_s:
        reason = f"all {len(left)} images end in {stays_s:.0f} s, in time"
        return Race(True, (), reserve_s, reason)
    if budget_s > 0 and curve.degrees(workers, least_degree):
        groups = plan(left, workers, curve, regroup_s / step_s, least_degree).groups
        # Nothing is rearranged a second time while leaving.
        reserve_s = max(reserve_s, _reserve_s(groups, curve, step_s))
        budget_s = deadline_s - reserve_s - FINISH_S
        wide_s = CAUTION * step_s * until(groups, left, curve) + regroup_s
        if wide_s <= budget_s:
            degrees = "+".join(str(group.degree) for group in groups)
            reason = (
                f"all {len(left)} images end in {wide_s:.0f} s in groups of {degrees}, in time; "
                f"as they are, in {stays_s:.0f} s"
            )
            return Race(True, groups, reserve_s, reason)
    reason = f"{len(left)} images need {stays_s:.0f} s, {max(budget_s, 0.0):.0f} s are left"
    return Race(False, (), 0.0, reason)


def _reserve_s(groups: Sequence[Group], curve: Curve, step_s: float) -> float:
    """Return `RESERVE_S` and two of the longest steps: a batch takes as many times as long."""
    slowest = max(len(group.images) / curve.at(group.degree) for group in groups)
    return RESERVE_S + 2 * step_s * slowest
