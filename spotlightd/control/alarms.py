"""When an operator should look: pure judgements of recent figures, each with what was seen.

Bounds are wide on purpose: an alarm that cries at every noisy iteration is not read.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from spotlightd.control.views import Alarm

Figures = Mapping[str, float]
"""One iteration's metrics by name."""

RECENT = 5
"""Iterations that "now" is the mean of."""
WITHOUT_SPREAD = 0.5
"""Share of groups whose rewards were all equal: nothing is learned from those."""
RATIO_SHARE = 0.1
"""Of the clip range: log-probs that differ by more are not the same policy's."""
RISE = 0.02
"""Least rise of the training reward that can be a hack of it."""
FALL = 0.1
"""Share that another reward loses meanwhile, when the training reward is suspected."""
GROWTH = 1.5
"""Growth of an alarm figure, such as background grain, that raises suspicion."""


def judge(
    recent: Sequence[Figures],
    first: Figures,
    train: str,
    reports: Sequence[str],
    lost: int = 0,
    agents_present: int | None = None,
) -> tuple[Alarm, ...]:
    """Return what is wrong now.

    Args:
        recent: the newest iterations' metrics, oldest first.
        first: the same of the run's first measured iterations, averaged.
        train: name of the reward that trains.
        reports: rewards that are only scored.
        lost: trajectories that were acknowledged and then lost.
        agents_present: None where nobody can tell, as without a daemon.
    """
    now = means(recent[-RECENT:])
    found = [_lost(lost), _nobody(agents_present), _spread(now), _overrun(now)]
    found += [_ratio(recent[-1:]), _hacking(first, now, train, reports)]
    return tuple(alarm for alarm in found if alarm is not None)


def means(rows: Sequence[Figures]) -> dict[str, float]:
    """Return the mean of each figure over the iterations that have it."""
    names = {name for row in rows for name in row}
    return {name: fmean(row[name] for row in rows if name in row) for name in names}


def _lost(lost: int) -> Alarm | None:
    if not lost:
        return None
    text = f"{lost} acknowledged trajectories have no result: the store is damaged; see the log"
    return Alarm(name="lost", severity="error", text=text)


def _nobody(agents_present: int | None) -> Alarm | None:
    if agents_present != 0:
        return None
    text = "no agent is there: the trainer samples alone, and nothing is explored"
    return Alarm(name="no_agents", severity="warning", text=text)


def _spread(now: Figures) -> Alarm | None:
    share = now.get("planner.zero_spread_share", 0.0)
    if share < WITHOUT_SPREAD:
        return None
    text = (
        f"{share:.0%} of the groups of the last iterations had equal rewards (alarm from "
        f"{WITHOUT_SPREAD:.0%}): they teach nothing; use harder or easier prompts, or larger groups"
    )
    return Alarm(name="zero_spread", severity="warning", text=text)


def _overrun(now: Figures) -> Alarm | None:
    share = now.get("planner.overran", 0.0)
    if share < WITHOUT_SPREAD:
        return None
    text = f"exploration was cut off by the end of training in {share:.0%} of the last iterations"
    return Alarm(name="overrun", severity="warning", text=text)


def _ratio(last: Sequence[Figures]) -> Alarm | None:
    if not last or not last[0].get("train.clip_range"):
        return None
    clip_range = last[0]["train.clip_range"]
    bound = RATIO_SHARE * clip_range
    off = {
        name.partition(".")[2]: value
        for name, value in last[0].items()
        if name.startswith("log_prob_difference.") and value > bound
    }
    if not off:
        return None
    worst = max(off, key=lambda name: off[name])
    text = (
        f"log-probs of {worst} differ from the trainer's by {off[worst]:.1e} before the update "
        f"(alarm from {bound:.1e}, a tenth of the clip range): other weights, dtype or kernels"
    )
    severe = off[worst] > clip_range
    return Alarm(name="ratio_off", severity="error" if severe else "warning", text=text)


def _hacking(first: Figures, now: Figures, train: str, reports: Sequence[str]) -> Alarm | None:
    """The training reward rises on random seeds while what does not train gets worse."""
    name = f"control.{train}"
    if name not in first or name not in now or now[name] - first[name] < RISE:
        return None
    signs = []
    for report in reports:
        before, after = first.get(f"control.{report}"), now.get(f"control.{report}")
        if before is None or after is None:
            continue
        if report == "grain":
            if before > 0 and after > GROWTH * before:
                signs.append(f"{report} grew from {before:.3g} to {after:.3g}")
        elif after < before - FALL * abs(before):
            signs.append(f"{report} fell from {before:.3g} to {after:.3g}")
    if not signs:
        return None
    text = (
        f"{train} rose from {first[name]:.3g} to {now[name]:.3g} while {' and '.join(signs)}: "
        f"look at the images; run.early_stop ends a run that goes on so"
    )
    return Alarm(name="reward_hacking", severity="warning", text=text)
