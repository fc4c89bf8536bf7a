"""GenEval's question of an image: are the right objects there, in number, colour and place?

Records are GenEval's metadata (`records.py`). Grading is as public reward servers do it for
training, with two of their slips left out: a count far off never counts below 0, and a failed
position earns nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from spotlightd.rewards.records import Record

POSITION_TOLERANCE = 0.1
"""Share of both boxes' sizes by which centres must differ to count as apart (GenEval)."""


class Detection(NamedTuple):
    """An object, as any detector tells of it."""

    kind: str
    color: str
    box: tuple[float, float, float, float]
    """Left, top, right, bottom in pixels."""
    confidence: float


def grade(record: Record, found: Sequence[Detection]) -> tuple[float, bool]:
    """Return (graded reward in [0, 1], whether everything is exactly right)."""
    terms: list[float] = []
    for clause in record.include:
        same = [d for d in found if d.kind == clause.kind]
        exact = len(same) == clause.count
        terms.append(_closeness(clause.count, len(same)))
        if clause.color is not None:
            right = sum(d.color == clause.color for d in same)
            terms.append(_closeness(clause.count, right) if exact else 0.0)
        if clause.position is not None:
            place, index = clause.position
            others = [d for d in found if d.kind == record.include[index].kind]
            placed = exact and any(place in places(a, b) for a in same for b in others if a != b)
            terms.append(float(placed))
    refused = any(
        sum(d.kind == clause.kind for d in found) >= clause.count for clause in record.exclude
    )
    strict = all(term == 1.0 for term in terms) and not refused
    return sum(terms) / len(terms), strict


def places(a: Detection, b: Detection) -> set[str]:
    """Return where `a` is relative to `b`, as GenEval decides it; empty where they overlap."""
    offsets = []
    for low, high in ((0, 2), (1, 3)):
        between = (a.box[low] + a.box[high] - b.box[low] - b.box[high]) / 2
        sizes = a.box[high] - a.box[low] + b.box[high] - b.box[low]
        beyond = max(abs(between) - POSITION_TOLERANCE * sizes, 0.0)
        offsets.append(beyond if between > 0 else -beyond)
    length = (offsets[0] ** 2 + offsets[1] ** 2) ** 0.5
    if length == 0:
        return set()
    across, down = (offset / length for offset in offsets)
    told = {"left of": across < -0.5, "right of": across > 0.5, "above": down < -0.5,
            "below": down > 0.5}  # fmt: skip
    return {place for place, holds in told.items() if holds}


def _closeness(wanted: int, found: int) -> float:
    return max(0.0, 1 - abs(wanted - found) / wanted)
