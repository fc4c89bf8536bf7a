"""How long something took, counted in buckets: no list grows, no clock is read here."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of all buckets but the last, which has none."""


@dataclass
class Latency:
    total_s: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return how many took no longer than each bound, and then all."""
        return list(accumulate(self.counts))
