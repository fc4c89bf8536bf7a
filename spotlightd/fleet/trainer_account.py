"""The trainer's GPU time. It sends no heartbeats: what it was busy with is what it reports."""

import time

from spotlightd.fleet.ledger import Ledger

TRAINER = "trainer"
"""Agent id of the trainer, and its name."""


class TrainerAccount:
    """Keeps the trainer's row of the ledger, across restarts of its process."""

    def __init__(self, ledger: Ledger, price_per_hour: float) -> None:
        self._ledger = ledger
        self._price = price_per_hour
        self._busy_s = self._loading_s = 0.0
        self._started: float | None = None
        """When its process was started, while it loads."""

    def started(self) -> None:
        """Its process starts: from now on its GPUs are held, and it is loading."""
        self._started = time.time()
        self._ledger.join(TRAINER, TRAINER, "trainer", 1, self._price, self._started)

    def ready(self) -> None:
        """It has loaded."""
        if self._started is not None:
            self._loading_s += time.time() - self._started
            self._started = None

    def spent(self, seconds: float, committed: bool = False) -> None:
        """Book time that it was busy; `committed`: the ledger has it as useful already."""
        self._busy_s += seconds
        if not committed:
            self._ledger.committed(TRAINER, seconds)
        self._ledger.heartbeat(TRAINER, self._busy_s, self._loading_s)
