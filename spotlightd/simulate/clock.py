"""Virtual time: what happens next, and nothing in between."""

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Events in order of time; at the same time, in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Events so far."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what(*arguments)` at that time; never before now."""
        self._number += 1
        heapq.heappush(self._heap, (max(when, self.now), self._number, what, arguments))

    def run(self, going: Callable[[], bool], until: float) -> None:
        """Let events happen while `going()` and time is left; then it is `until`, or the last."""
        heap = self._heap
        while heap and going() and heap[0][0] <= until:
            self.now, _, what, arguments = heapq.heappop(heap)
            self.events += 1
            what(*arguments)
