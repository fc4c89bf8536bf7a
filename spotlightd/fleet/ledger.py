"""Where each GPU-second went, and what it cost: a pure account of events and time.

Held time is workers x seconds from joining to leaving. It is split into four classes whose sum
is the held time exactly (DESIGN: what always holds, line 7):

    useful   went into something that was committed
    wasted   was busy, but with what was withdrawn, superseded, failed or lost
    loading  model and adapter loading, as the agent reports it
    idle     the rest
"""

import msgspec

Classes = dict[str, float]
"""Seconds by class name."""


class Account(msgspec.Struct):
    """One agent's GPU time. All times in seconds; clock times since 1970."""

    name: str
    role: str
    price_per_hour: float
    workers: int
    joined_at: float
    left_at: float | None = None
    interrupted: bool = False
    """It ended without a word: the agent was lost, or the daemon was; it may turn out to have been
    there all along.
    """
    held_before: float = 0.0
    """GPU-seconds of earlier sessions."""
    useful_s: float = 0.0
    vain_s: float = 0.0
    """Known to be spent on nothing: stale, withdrawn, failed."""
    busy_s: float = 0.0
    loading_s: float = 0.0
    reported: tuple[float, float] = (0.0, 0.0)
    """Last cumulative (busy, loading) of the agent's current process."""
    heard_at: float | None = None
    """When this session's Hello or its latest heartbeat came; None for the trainer, whose end does
    not go unseen.
    """

    def held(self, now: float) -> float:
        end = now if self.left_at is None else self.left_at
        return self.held_before + self.workers * max(end - self.joined_at, 0.0)

    def report(self, busy_s: float, loading_s: float) -> None:
        """Take cumulative figures; a process that started anew counts from zero again."""
        if (busy_s, loading_s) == self.reported:
            return
        before = self.reported if busy_s >= self.reported[0] else (0.0, 0.0)
        self.busy_s += busy_s - before[0]
        self.loading_s += max(loading_s - before[1], 0.0)
        self.reported = (busy_s, loading_s)

    def classes(self, now: float) -> Classes:
        """Split the held time. Reports beyond it are cut in the order of the classes."""
        rest = self.held(now)
        useful = min(self.useful_s, rest)
        rest -= useful
        wasted = min(max(self.busy_s - self.useful_s, self.vain_s, 0.0), rest)
        rest -= wasted
        loading = min(self.loading_s, rest)
        return {"useful": useful, "wasted": wasted, "loading": loading, "idle": rest - loading}

    def cost(self, now: float) -> float:
        return self.held(now) / 3600 * self.price_per_hour


class Ledger:
    """Accounts by agent id. Leaving closes an account, joining again reopens it.

    Nobody can tell whether an agent that falls silent is held on. Its account ends when it was last
    heard; if the same process comes back, the silence is billed after all.

    Invariant (see `validate`): an agent's open account says when it was heard. What is stored of
    one on which nothing was booked is therefore the same whenever it is stored.
    """

    def __init__(self, accounts: dict[str, Account] | None = None) -> None:
        self.accounts = accounts or {}
        self._changed: set[str] = set()
        """Accounts that `dump_changed` has not returned since something was booked on them."""

    @classmethod
    def restore(cls, stored: dict[str, str]) -> "Ledger":
        """Read what `dump` wrote: accounts end with it until their agents say Hello again."""
        return cls({i: msgspec.json.decode(body, type=Account) for i, body in stored.items()})

    def dump(self, now: float) -> dict[str, str]:
        """Return every account as JSON; open ones as if they ended when they were last heard.

        That is what holds should the daemon end now and somebody never come back.
        """
        self._changed.clear()
        return {agent_id: _encoded(account, now) for agent_id, account in self.accounts.items()}

    def dump_changed(self, now: float, *always: str) -> dict[str, str]:
        """Return the accounts on which something was booked since the last call or `dump`.

        Args:
            always: accounts without heartbeats, which are open until now.
        """
        changed, self._changed = self._changed.union(always), set()
        found = {agent_id: self.accounts.get(agent_id) for agent_id in changed}
        return {agent_id: _encoded(one, now) for agent_id, one in found.items() if one is not None}

    def join(
        self,
        agent_id: str,
        name: str,
        role: str,
        workers: int,
        price: float,
        now: float,
        up_s: float = 0.0,
    ) -> None:
        """Open an account, or open it again.

        Args:
            up_s: for how long the agent's process has been running.
        """
        account = self.accounts.get(agent_id)
        self._changed.add(agent_id)
        if account is None:
            self.accounts[agent_id] = Account(name, role, price, workers, now)
        elif account.left_at is not None:
            was_there = account.interrupted and now - up_s <= account.left_at
            if not was_there:
                account.held_before = account.held(account.left_at)
                account.joined_at = now
            account.left_at, account.interrupted = None, False
            account.workers, account.price_per_hour = workers, price
        self.accounts[agent_id].heard_at = now if role == "agent" else None

    def heartbeat(
        self, agent_id: str, busy_s: float, loading_s: float, heard_at: float | None = None
    ) -> None:
        """Take cumulative figures since a process started.

        Args:
            heard_at: when they came; None where that says nothing about its end.
        """
        account = self.accounts.get(agent_id)
        if account is not None:
            account.report(busy_s, loading_s)
            if heard_at is not None:
                account.heard_at = heard_at
            self._changed.add(agent_id)

    def committed(self, agent_id: str, gpu_s: float) -> None:
        if agent_id in self.accounts:
            self.accounts[agent_id].useful_s += gpu_s
            self._changed.add(agent_id)

    def spent_in_vain(self, agent_id: str, gpu_s: float) -> None:
        if agent_id in self.accounts:
            self.accounts[agent_id].vain_s += gpu_s
            self._changed.add(agent_id)

    def left(self, agent_id: str, at: float, lost: bool = False) -> None:
        """Close an account; `lost`: it was last heard at `at`, and may come back."""
        account = self.accounts.get(agent_id)
        if account is not None and account.left_at is None:
            account.left_at, account.interrupted = max(at, account.joined_at), lost
            self._changed.add(agent_id)

    def classes(self, agent_id: str, now: float) -> Classes:
        account = self.accounts.get(agent_id)
        return account.classes(now) if account else {}

    def totals(self, now: float) -> dict[str, float]:
        totals = {"useful": 0.0, "wasted": 0.0, "loading": 0.0, "idle": 0.0}
        for account in self.accounts.values():
            for name, seconds in account.classes(now).items():
                totals[name] += seconds
        return totals

    def cost(self, now: float, role: str) -> float:
        """Return the money spent on one role's GPUs, in the configured currency."""
        return sum(a.cost(now) for a in self.accounts.values() if a.role == role)

    def cost_all_reserved(self, now: float, reserved_price: float) -> float:
        """Return what the same GPU-hours would have cost at the reserved price."""
        return sum(a.held(now) for a in self.accounts.values()) / 3600 * reserved_price

    def validate(self, now: float) -> None:
        """Raise AssertionError where classes do not add up to the time held."""
        for agent_id, account in self.accounts.items():
            if account.left_at is None and account.role == "agent":
                assert account.heard_at is not None, account
            classes = account.classes(now)
            assert all(seconds >= 0 for seconds in classes.values()), (agent_id, classes)
            held = account.held(now)
            assert abs(sum(classes.values()) - held) <= 1e-6 * max(held, 1.0), (agent_id, classes)


def _encoded(account: Account, now: float) -> str:
    return msgspec.json.encode(_closed(account, now)).decode()


def _closed(account: Account, now: float) -> Account:
    if account.left_at is not None:
        return account
    end = now if account.heard_at is None else max(account.heard_at, account.joined_at)
    return msgspec.structs.replace(account, left_at=end, interrupted=True)
