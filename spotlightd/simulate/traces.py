"""Spot traces as they are published, and the seats of a fleet that follows one.

Three formats are read: `milliseconds,add|remove,name`, `YYYY-MM-DD, HH:MM:SS, live count` and
`time,live count` (step corners). Losses stay as bursty as they were: a seat follows one instance
of the trace, and when that is taken away it waits for the next one that the trace adds.
"""

import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from spotlightd.errors import InputError
from spotlightd.planner.seeds import keyed_hash

MOST_CORNERS_S = 200.0
"""A file of step corners whose last time is below this is in hours, else in seconds."""


@dataclass(frozen=True)
class Change:
    """One instance of the trace appears or is taken away."""

    at: float
    """Seconds since the trace began."""
    name: str
    added: bool


@dataclass(frozen=True)
class Trace:
    name: str
    changes: tuple[Change, ...]
    duration: float

    @property
    def peak(self) -> int:
        live = most = 0
        for change in self.changes:
            live += 1 if change.added else -1
            most = max(most, live)
        return most

    @property
    def losses_per_hour(self) -> float:
        """Instances lost per instance-hour."""
        live, area, before = 0, 0.0, 0.0
        for change in self.changes:
            area += live * (change.at - before)
            before, live = change.at, live + (1 if change.added else -1)
        area += live * (self.duration - before)
        return sum(not c.added for c in self.changes) / max(area / 3600, 1e-9)


def load_trace(path: Path) -> Trace:
    """Raises InputError where the file is none of the three formats."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [[part.strip() for part in line.split(",")] for line in lines if line]
        changes = _read(rows)
    except (OSError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise InputError(
            f"{path} is no spot trace ({error}): expected lines 'ms,add|remove,name', "
            f"'YYYY-MM-DD, HH:MM:SS, count' or 'time,count'"
        ) from None
    if not changes or changes[-1].at <= 0:
        raise InputError(f"{path}: the trace has no change in it: nothing is ever lost")
    return Trace(path.stem, tuple(changes), changes[-1].at)


def _read(rows: list[list[str]]) -> list[Change]:
    if len(rows[0]) == 3 and rows[0][1] in ("add", "remove"):
        named = [Change(float(at) / 1000, name, kind == "add") for at, kind, name in rows]
        return sorted(named, key=lambda change: change.at)
    if len(rows[0]) == 3:
        moments = [datetime.fromisoformat(f"{day}T{time}").timestamp() for day, time, _ in rows]
        return _from_counts(moments, [int(count) for _, _, count in rows])
    times, counts = [float(at) for at, _ in rows], [int(count) for _, count in rows]
    unit = 3600.0 if max(times) < MOST_CORNERS_S else 1.0
    return _from_counts([at * unit for at in times], counts)


def _from_counts(times: list[float], counts: list[int]) -> list[Change]:
    """Give counts instances: who goes is drawn, as a count does not tell."""
    rng, first = random.Random(0), min(times)
    live: list[str] = []
    changes: list[Change] = []
    # Stable, so that corners of one time keep their order.
    for at, count in sorted(zip(times, counts, strict=True), key=lambda row: row[0]):
        while len(live) < count:
            live.append(f"i{len(changes)}")
            changes.append(Change(at - first, live[-1], True))
        while len(live) > count:
            name = live.pop(rng.randrange(len(live)))
            changes.append(Change(at - first, name, False))
    return changes


@dataclass(frozen=True)
class SeatChange:
    at: float
    seat: int
    up: bool


def seat_changes(trace: Trace, seats: int, seed: int, until: float) -> list[SeatChange]:
    """Return when each of `seats` VMs is there, from a random place in the trace on.

    Past its end the trace begins again. Where a fleet is larger than the trace ever was, each
    instance stands for several VMs, which go together.
    """
    rng = random.Random(f"{trace.name}:{seed}")
    start = rng.uniform(0, trace.duration)
    copies = -(-seats // trace.peak)
    live: dict[str, None] = {}
    for change in trace.changes:
        if change.at <= start:
            live[change.name] = None
            if not change.added:
                del live[change.name]
    names = [(name, copy) for name in live for copy in range(copies)]
    rng.shuffle(names)
    holder: dict[tuple[str, int], int] = dict(zip(names, range(seats), strict=False))
    empty = list(range(len(holder), seats))
    found = [SeatChange(0.0, seat, True) for seat in holder.values()]
    kept: list[int] = []
    for lap in range(int((start + until) / trace.duration) + 1):
        if lap:
            # Who is there when the trace ends stays, as one of those with whom it begins.
            kept, holder = [*kept, *holder.values()], {}
        for change in trace.changes:
            at = lap * trace.duration + change.at - start
            if not 0 < at < until:
                continue
            for copy in range(copies):
                key = (f"{change.name}", copy)
                if change.added and kept:
                    holder[key] = kept.pop(0)
                elif change.added and empty:
                    holder[key] = empty.pop(0)
                    found.append(SeatChange(at, holder[key], True))
                elif not change.added and key in holder:
                    seat = holder.pop(key)
                    empty.append(seat)
                    found.append(SeatChange(at, seat, False))
    return found


def is_silent(loss: SeatChange, seed: int, share: float) -> bool:
    """Whether a loss comes without a notice, as `share` of them do: the same for all variants."""
    return keyed_hash("silent", seed, loss.seat, repr(loss.at)) / 2**64 < share
