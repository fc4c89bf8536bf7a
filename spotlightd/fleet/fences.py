"""Fences: numbers of leases that only rise, across restarts too. Pure."""


class Fences:
    """`epoch << 32 | counter`, and which others a Hello may name.

    A lease is granted before the store has its fence. A daemon that was killed in between learns
    of it from the holder's Hello, and can believe it only as far as that: the fence is of an
    earlier epoch, and no other lease has it. One that was never given could be any number, and
    make every later grant of its request stale.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._counter = 0
        self._earlier: set[int] = set()
        """Fences of earlier epochs that belong to a request."""

    def next(self) -> int:
        self._counter += 1
        return (self._epoch << 32) | self._counter

    def restored(self, fence: int) -> None:
        """A request came back from the store with this fence; 0 for none."""
        self._earlier.add(fence)

    def claim(self, fence: int, latest: int) -> bool:
        """Return whether a Hello may go on with a request under `fence`.

        Args:
            latest: the fence of the request's latest lease that is known here.
        """
        if fence == latest:
            return True
        if fence < latest or fence >> 32 >= self._epoch or fence in self._earlier:
            return False
        self._earlier.add(fence)
        return True
