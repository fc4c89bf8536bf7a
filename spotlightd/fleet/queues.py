"""Requests that wait, in the order in which they are leased, and leases that may run out. Pure.

Rollout before evaluate before explore (the caller asks in this order), the newest version first,
resumed before fresh, then as added; but what was leased already and given up goes to the front:
somebody has waited for it longest.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from spotlightd.fleet.entries import Entry
from spotlightd.fleet.pullers import Line
from spotlightd.wire.sampling import RequestKind


class Queues:
    """One pair of lines, resumed and fresh, for each kind and policy version."""

    def __init__(self) -> None:
        self._lines: dict[tuple[RequestKind, int], tuple[Line, Line]] = defaultdict(
            lambda: (Line(), Line())
        )

    def __iter__(self) -> Iterator[str]:
        return (r for lines in self._lines.values() for line in lines for r in line)

    def any_of(self, kinds: Collection[RequestKind]) -> bool:
        """Return whether a request of these kinds waits."""
        return any(any(lines) for (kind, _), lines in self._lines.items() if kind in kinds)

    def add(self, entry: Entry, first: bool = False) -> None:
        line = self._line_of(entry)
        line[entry.request.request_id] = None
        if first:
            line.move_to_end(entry.request.request_id, last=False)

    def remove(self, entry: Entry) -> None:
        del self._line_of(entry)[entry.request.request_id]

    def pop(self, kinds: Iterable[RequestKind], versions: Iterable[int]) -> tuple[str, str] | None:
        """Take the first request of these kinds, in this order, that can be sampled with one of
        these versions; return its id, and `resumed` or `fresh`.
        """
        newest_first = sorted(versions, reverse=True)
        for kind in kinds:
            for version in newest_first:
                lines = self._lines.get((kind, version), ())
                for line, reason in zip(lines, ("resumed", "fresh"), strict=False):
                    if line:
                        return line.popitem(last=False)[0], reason
        return None

    def forget_empty(self) -> None:
        """Drop the lines of versions that nobody asks for any more."""
        for key in [key for key, lines in self._lines.items() if not any(lines)]:
            del self._lines[key]

    def _line_of(self, entry: Entry) -> Line:
        resumed, fresh = self._lines[(entry.request.kind, entry.request.policy_version)]
        return resumed if entry.progress_step else fresh


class Deadlines:
    """Leases by the time at which they run out, as it stood at the grant; progress moves the real
    one on, so whoever asks compares again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((fence, request_id) for _, fence, request_id in self._heap)

    def watch(self, deadline: float, fence: int, request_id: str) -> None:
        heapq.heappush(self._heap, (deadline, fence, request_id))

    def pop_before(self, now: float) -> Iterator[tuple[int, str]]:
        """Take out (fence, request id) of all that run out before `now`, also what is added
        meanwhile.
        """
        while self._heap and self._heap[0][0] < now:
            _, fence, request_id = heapq.heappop(self._heap)
            yield fence, request_id
