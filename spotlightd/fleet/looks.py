"""When to look at whom again, by whole seconds. Pure."""

import heapq
from collections.abc import Iterator


class Looks:
    """Names by the second in which they are due; each has one.

    A heap of names would cost more the more there are, and be read all over memory; thousands that
    are due in the same second lie in one list here. Who is due later in the second that has begun
    is returned early.

    Invariant (see `validate`): every name lies in the row of its second, and every row in the heap.
    """

    def __init__(self) -> None:
        self._second: dict[str, int] = {}
        self._rows: dict[int, list[str]] = {}
        """Names that have moved to another second since are void in theirs."""
        self._heap: list[int] = []

    def __len__(self) -> int:
        """Names in rows, void ones included."""
        return sum(map(len, self._rows.values()))

    def at(self, name: str, due: float) -> None:
        """Look at `name` no later than the tick that follows `due`, instead of when it was due."""
        second = int(due)
        if self._second.get(name) == second:
            return
        self._second[name] = second
        row = self._rows.get(second)
        if row is None:
            self._rows[second] = [name]
            heapq.heappush(self._heap, second)
        else:
            row.append(name)

    def forget(self, name: str) -> None:
        self._second.pop(name, None)

    def pop(self, now: float) -> Iterator[str]:
        """Take out who is due in this second or before, also who is added meanwhile."""
        while self._heap and self._heap[0] <= now:
            second = heapq.heappop(self._heap)
            for name in self._rows.pop(second):
                if self._second.get(name) == second:
                    del self._second[name]
                    yield name

    def validate(self, name: str, latest: float) -> None:
        """Raise AssertionError unless `name` is due by the end of the second of `latest`."""
        second = self._second[name]
        assert second <= latest, (name, second, latest)
        assert name in self._rows[second] and second in self._heap, name
