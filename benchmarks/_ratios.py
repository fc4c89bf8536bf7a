"""Figures of cells and how they compare: spreads, ratios paired by seed, costs, sentences. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from spotlightd.simulate.outcome import Outcome, Usage

DISCOUNTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Spread:
    """A figure over seeds (or settings)."""

    mean: float
    sd: float
    """Population standard deviation."""
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        return f"{self.mean:.{digits}f} ± {self.sd:.{digits}f}"

    def percent(self) -> str:
        return f"{self.mean:.0%} ± {self.sd:.0%}"


def spread(values: Iterable[float]) -> Spread:
    """Raises ValueError where there is no value."""
    found = list(values)
    if not found:
        raise ValueError("a spread needs at least one value")
    return Spread(fmean(found), pstdev(found), min(found), max(found))


def paired(base: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Return base over other by seed, for the seeds that both have: above 1, other is better."""
    return [base[seed] / other[seed] for seed in sorted(base.keys() & other.keys())]


def cost_at(outcome: Outcome, reserved_price: float, discount: float) -> float:
    """Return what the held GPU-hours cost where spot ones are so much cheaper, booting included.

    No decision reads a price, so that one run serves every discount.
    """
    spot = outcome.spot.held * (1 - discount)
    return (outcome.reserved.held + spot) / 3600 * reserved_price


def iteration_s(outcome: Outcome) -> float:
    return outcome.time_s / outcome.iterations


def median_run(outcomes: Mapping[int, Outcome]) -> Outcome:
    """Return the run of median time: sentences speak of one."""
    ordered = sorted(outcomes.values(), key=lambda outcome: outcome.time_s)
    return ordered[len(ordered) // 2]


@dataclass(frozen=True)
class Gain:
    """Why a run takes less time than another: fewer iterations, and shorter ones."""

    time: float
    convergence: float
    """Iterations of the base over those of the other."""
    utilisation: float
    """Seconds of an iteration of the base over those of the other; the product is `time`."""


def gain_of(base: Outcome, other: Outcome) -> Gain:
    return Gain(
        base.time_s / other.time_s,
        base.iterations / other.iterations,
        iteration_s(base) / iteration_s(other),
    )


def lost_share(outcome: Outcome) -> float:
    """Return the share of the spot GPUs' held time that was denoised and lost."""
    return outcome.lost_gpu_s / outcome.spot.held if outcome.spot.held else 0.0


def recoveries(outcomes: Iterable[Outcome]) -> list[float]:
    return sorted(seconds for outcome in outcomes for seconds in outcome.recovery_s)


def show_recoveries(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    return f"{median(seconds):.1f} s, {max(seconds):.0f} s ({len(seconds)})"


def shares(usage: Usage) -> dict[str, float]:
    """Return what the held time went into; the shares add up to 1."""
    names = ("useful", "wasted", "loading", "boot", "idle")
    return {name: getattr(usage, name) / usage.held if usage.held else 0.0 for name in names}


# --- sentences --------------------------------------------------------------------------------


def times(value: float) -> str:
    return f"{value:.2f}x"


def range_of(values: Sequence[float], show: str = ".2f") -> str:
    low, high = f"{min(values):{show}}", f"{max(values):{show}}"
    return low if low == high else f"{low} to {high}"


def against(reached: Sequence[float], least: float, most: float | None = None) -> str:
    """Say how ratios of several settings stand to what is aimed at.

    Args:
        reached: one for each setting.
        least: what is aimed at, at least.
        most: the paper's best, where it gives a range.
    """
    met = sum(value >= least for value in reached)
    if met == len(reached):
        verdict = f"reached in all {met} settings"
    else:
        worst, best = min(reached), max(reached)
        head = f"missed in {len(reached) - met} of {len(reached)} settings"
        if best < least:
            verdict = f"{head}: the best falls short by {least - best:.2f}, the worst by"
            verdict += f" {least - worst:.2f}"
        else:
            verdict = f"{head}, by up to {least - worst:.2f}"
    if most is not None and max(reached) < most:
        verdict += f"; the paper's best of {most:g} is {most / max(reached):.1f} times ours"
    return verdict


def why_time(base: Outcome, system: Outcome) -> str:
    """Say where the time of this system goes, and what that bounds."""
    gain = gain_of(base, system)
    fewer = gain.convergence >= 1
    iterations = gain.convergence if fewer else 1 / gain.convergence
    bound = iteration_s(base) / system.train_s
    return (
        f"An iteration takes {iteration_s(system):.0f} s in place of {iteration_s(base):.0f}: "
        f"rollouts take {system.rollout_s:.0f} s in place of {base.rollout_s:.0f}, and training "
        f"{system.train_s:.0f} s in place of {base.train_s:.0f}. That is {gain.utilisation:.2f} "
        f"times shorter; with {iterations:.2f} times {'fewer' if fewer else 'more'} iterations it "
        f"makes {gain.time:.2f} times less time. Rollouts in no time at all would make iterations "
        f"{bound:.2f} times shorter."
    )


def why_cost(base: Outcome, system: Outcome, reserved_price: float, spot_price: float) -> str:
    """Say what the spot GPUs add to each hour's cost, and what they must save for that."""
    hours_base, hours = base.time_s / 3600, system.time_s / 3600
    dearer = 1 + system.spot.held * spot_price / (system.reserved.held * reserved_price)
    return (
        f"The spot GPUs make an hour {dearer:.2f} times as dear as the reserved ones alone, so "
        f"that {hours_base / hours:.2f} times less time makes "
        f"{hours_base / hours / dearer:.2f} times less cost."
    )
