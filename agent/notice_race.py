"""Whether what is being denoised can be finished before a notice's deadline. Pure.

Committing upon a notice loses nothing, and somebody else goes on from there. Where the time left is
enough, finishing is better still: no state travels and nobody waits for a free worker. It is tried
only for all images together and by speeds that were measured here, never believed. What is not
finished `RESERVE_S` before the deadline is committed then, as it would have been at once.
"""

from collections.abc import Sequence
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
    commit_in_s: float
    """When to commit what is still not finished."""
    reason: str


COMMIT_NOW = Race(False, (), 0.0, "too little is known to finish before the deadline: committing")


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
    commit_in_s = max(deadline_s - RESERVE_S - 2 * step_s / curve.at(least_degree), 0.0)
    budget_s = commit_in_s - FINISH_S
    stays_s = CAUTION * step_s * until(now, left, curve)
    if stays_s <= budget_s:
        reason = f"all {len(left)} images end in {stays_s:.0f} s, in time"
        return Race(True, (), commit_in_s, reason)
    if budget_s > 0 and curve.degrees(workers, least_degree):
        groups = plan(left, workers, curve, regroup_s / step_s, least_degree).groups
        # Nothing is rearranged a second time while leaving.
        wide_s = CAUTION * step_s * until(groups, left, curve) + regroup_s
        if wide_s <= budget_s:
            degrees = "+".join(str(group.degree) for group in groups)
            reason = (
                f"all {len(left)} images end in {wide_s:.0f} s in groups of {degrees}, in time; "
                f"as they are, in {stays_s:.0f} s"
            )
            return Race(True, groups, commit_in_s, reason)
    reason = f"{len(left)} images need {stays_s:.0f} s, {max(budget_s, 0.0):.0f} s are left"
    return Race(False, (), 0.0, reason)
