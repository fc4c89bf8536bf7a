"""What a race comes to: pure arithmetic on the records that its runs leave behind.

A record is a finished run as JSON. Its times are seconds since 1970; GPU time and prices are the
accounts of the run's own ledger.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

import msgspec

from spotlightd.fleet.ledger import Account, Ledger
from spotlightd.simulate.traces import SeatChange, is_silent

Record = dict[str, Any]
Runs = Mapping[tuple[str, int], Record]
"""By variant and seed."""

BASE = "reserved"
CHEAP = 0.1
"""Spot price over the reserved one at the deepest discount of which the paper's range speaks."""


class Event(NamedTuple):
    """Something that happens to a spot VM, in seconds after the race began."""

    at: float
    seat: int
    kind: Literal["boot", "notice", "gone"]


def compress(
    changes: Iterable[SeatChange], speed: float, seed: int, notice_s: float, silent_share: float
) -> list[Event]:
    """Return a trace's changes `speed` times as fast, each loss with its notice or without one.

    Args:
        notice_s: length of a notice on the trace's own clock.
        silent_share: share of losses that come without a notice.
    """
    events: list[Event] = []
    since: dict[int, float] = {}
    for change in changes:
        at = change.at / speed
        if change.up:
            since[change.seat] = at
            events.append(Event(at, change.seat, "boot"))
            continue
        if not is_silent(change, seed, silent_share):
            noticed = max(at - notice_s / speed, since[change.seat])
            events.append(Event(noticed, change.seat, "notice"))
        events.append(Event(at, change.seat, "gone"))
    # Stable: what happens to a seat at one moment keeps its order.
    return sorted(events, key=lambda event: event.at)


class Crossing(NamedTuple):
    at: float
    """Seconds since 1970; the run's last evaluation where the target was not reached."""
    iterations: float
    reached: bool


def crossing(points: Sequence[Sequence[float]], target: float) -> Crossing:
    """Return when a held-out reward was first reached.

    Args:
        points: (version, time at which it existed, its reward). Between two of them the reward is
            taken to grow evenly.
    """
    for before, after in itertools.pairwise(points):
        if after[2] >= target:
            share = max((target - before[2]) / max(after[2] - before[2], 1e-9), 0.0)
            version = before[0] + share * (after[0] - before[0])
            return Crossing(before[1] + share * (after[1] - before[1]), version, True)
    return Crossing(points[-1][1], points[-1][0], False)


def cost_until(record: Record, at: float) -> dict[str, float]:
    """Return what each role had cost at a time: the ledger, with every account ended by then."""
    accounts = msgspec.convert(record["accounts"], dict[str, Account])
    ended = {
        name: msgspec.structs.replace(account, left_at=min(account.left_at or at, at))
        for name, account in accounts.items()
    }
    ledger = Ledger(ended)
    return {role: ledger.cost(at, role) for role in ("trainer", "agent")}


class Result(NamedTuple):
    """One run until its target. Start-up: until the first rollout of the first iteration."""

    reached: bool
    iterations: float
    seconds: float
    start_up_s: float
    reserved_cost: float
    spot_cost: float
    start_up_cost: float
    """Of both roles; not part of the two above."""

    @property
    def cost(self) -> float:
        return self.reserved_cost + self.spot_cost

    def cost_if(self, spot_factor: float) -> float:
        """Return the cost at a spot price of `spot_factor` times what was paid."""
        return self.reserved_cost + self.spot_cost * spot_factor


def result_of(record: Record) -> Result:
    end = crossing(record["points"], record["settings"]["target"])
    began = record["points"][0][1]
    until, before = cost_until(record, end.at), cost_until(record, began)
    return Result(
        end.reached,
        end.iterations,
        end.at - began,
        began - record["started"],
        until["trainer"] - before["trainer"],
        until["agent"] - before["agent"],
        sum(before.values()),
    )


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def compare(runs: Runs) -> dict[str, float]:
    """Return each variant's figures, and its ratios against reserved GPUs alone, paired by seed.

    Above 1: sooner, cheaper, fewer. A run that misses its target counts with its whole length.
    """
    results = {key: result_of(record) for key, record in runs.items()}
    figures: dict[str, float] = {}
    for variant in dict.fromkeys(variant for variant, _ in runs):
        own = {seed: found for (name, seed), found in results.items() if name == variant}
        figures[f"{variant}.runs"] = len(own)
        figures[f"{variant}.not_reached"] = sum(not found.reached for found in own.values())
        figures[f"{variant}.iterations"] = median(found.iterations for found in own.values())
        figures |= spread(f"{variant}.seconds", [found.seconds for found in own.values()])
        figures[f"{variant}.start_up_s"] = median(found.start_up_s for found in own.values())
        figures |= spread(f"{variant}.cost", [found.cost for found in own.values()])
        held = [share for seed in own if (share := idle_share(runs[variant, seed])) is not None]
        if held:
            figures[f"{variant}.spot_idle_share"] = fmean(held)
        pairs = [(results[BASE, s], found) for s, found in own.items() if (BASE, s) in results]
        if variant != BASE and pairs:
            prices = runs[variant, next(iter(own))]["settings"]
            figures |= _ratios(variant, pairs, prices)
    return figures


def _ratios(
    variant: str, pairs: Sequence[tuple[Result, Result]], settings: Mapping[str, Any]
) -> dict[str, float]:
    cheap = CHEAP * settings["reserved_price"] / settings["spot_price"]
    return {
        **spread(f"{variant}.sooner", [a.seconds / b.seconds for a, b in pairs]),
        **spread(f"{variant}.cheaper", [a.cost / b.cost for a, b in pairs]),
        **spread(f"{variant}.fewer_iterations", [a.iterations / b.iterations for a, b in pairs]),
        f"{variant}.sooner_with_start_up": median(
            (a.seconds + a.start_up_s) / (b.seconds + b.start_up_s) for a, b in pairs
        ),
        f"{variant}.cheaper_with_start_up": median(
            (a.cost + a.start_up_cost) / (b.cost + b.start_up_cost) for a, b in pairs
        ),
        f"{variant}.cheaper_at_90_percent_off": median(a.cost / b.cost_if(cheap) for a, b in pairs),
        f"{variant}.cheaper_if_each_vm_is_a_gpu": median(
            a.cost / b.cost_if(settings["vms"]) for a, b in pairs
        ),
    }


def idle_share(record: Record) -> float | None:
    """Return the share of the spot VMs' held time that was idle; None where there was none."""
    accounts = msgspec.convert(record["accounts"], dict[str, Account])
    rows = [account.classes(0.0) for account in accounts.values() if account.role == "agent"]
    held = sum(sum(row.values()) for row in rows)
    return sum(row["idle"] for row in rows) / held if held else None


def phase_means(records: Iterable[Record]) -> dict[str, float]:
    """Return the mean length of each phase."""
    found: dict[str, list[float]] = {}
    for record in records:
        for _, phase, _, seconds in record["phases"]:
            found.setdefault(phase, []).append(seconds)
    return {phase: fmean(values) for phase, values in found.items()}


class Bounds(NamedTuple):
    """What two cores allow, from the reserved runs' own phases and the prices."""

    sooner: float
    """At equal iterations: the spot core takes half of each rollout, at no cost whatever."""
    fewer_needed: float
    """Times fewer iterations that twice as soon would take beside that."""
    cheaper: float
    """At twice as soon, with the spot core held all the time."""
    cheaper_free: float
    """The same with a spot core that costs nothing."""
    sooner_needed: float
    """Times sooner that three times cheaper would take."""


def bounds(
    rollout_s: float, train_s: float, spot_over_reserved: float, sooner: float, cheaper: float
) -> Bounds:
    """Args:
    spot_over_reserved: price of the spot core over that of the reserved one.
    sooner, cheaper: the targets.
    """
    most = (rollout_s + train_s) / (rollout_s / 2 + train_s)
    paid = 1 + spot_over_reserved
    return Bounds(most, sooner / most, sooner / paid, sooner, cheaper * paid)
