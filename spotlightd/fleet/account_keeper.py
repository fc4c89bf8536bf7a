"""Keeps the accounts on disk, a moment behind: only those that change are written."""

from concurrent.futures import Future

from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.trainer_account import TRAINER
from spotlightd.store.store import Store


class AccountKeeper:
    """Asked at every tick. One write is under way at a time: what changes meanwhile goes with the
    next, and what the disk has refused is written again with all the rest.
    """

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._saving: Future[None] | None = None

    def tick(self, now: float) -> None:
        """Write what has changed. Args: now: seconds since 1970."""
        if self._saving is not None and not self._saving.done():
            return
        if self._saving is not None and self._saving.exception() is not None:
            self.save(now)
        else:
            self._saving = self._store.save_accounts(self._ledger.dump_changed(now, TRAINER))

    def save(self, now: float) -> "Future[None]":
        """Write every account; the future resolves when they are durable."""
        self._saving = self._store.save_accounts(self._ledger.dump(now))
        return self._saving
