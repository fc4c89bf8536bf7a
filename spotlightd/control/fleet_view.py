"""The fleet over time: strips of what GPUs did, and what it all cost."""

from collections import defaultdict

import msgspec

from spotlightd.config import Config
from spotlightd.control import views
from spotlightd.fleet.ledger import Account
from spotlightd.store.history import History, UsageRow

CLASSES = ("useful", "wasted", "loading", "idle")
ROLE_ORDER = {"trainer": 0, "agent": 1}


def window(history: History, since: float | None, seconds: float) -> tuple[float, float]:
    """Return (begin, seconds) of the time to show: as asked, or the newest there is.

    Args:
        since: None for the last `seconds` that were measured, or all where it is less; `seconds` 0
            for the whole run.
    """
    span = history.usage_span()
    if span is None:
        return since or 0.0, seconds or 1.0
    low, high = span
    if not seconds:
        begin = float(low) if since is None else since
        return begin, max(high - begin + 1.0, 1.0)
    if since is not None:
        return since, seconds
    begin = max(float(low), high + 1.0 - seconds)
    return begin, high + 1.0 - begin


def accounts(history: History) -> dict[str, Account]:
    """Return the agents' accounts as they were last stored."""
    return {
        str(agent_id): msgspec.json.decode(str(body), type=Account)
        for agent_id, body in history.read("SELECT agent_id, body FROM account")
    }


def strips(
    history: History, since: float | None, seconds: float, slots: int, most: int
) -> views.Strips:
    """Return who did what in each slice of time.

    Args:
        since, seconds: as in `window`.
        most: agents to return; those that were there last come first.
    """
    begin, seconds = window(history, since, seconds)
    slot_s = seconds / slots
    by_agent: defaultdict[str, list[UsageRow]] = defaultdict(list)
    for row in history.usage(begin, slot_s, slots):
        by_agent[row.agent_id].append(row)
    present = {agent: rows for agent, rows in by_agent.items() if rows[-1].slot >= 0}
    known = accounts(history)

    def order(agent_id: str) -> tuple[int, int, str]:
        role = known[agent_id].role if agent_id in known else "agent"
        return ROLE_ORDER.get(role, 2), -present[agent_id][-1].slot, agent_id

    chosen = sorted(present, key=order)[:most]
    return views.Strips(
        since=begin,
        slot_s=slot_s,
        slots=slots,
        agents=len(present),
        strips=tuple(
            views.Strip(
                agent_id=agent_id,
                name=known[agent_id].name if agent_id in known else agent_id,
                role=known[agent_id].role if agent_id in known else "agent",
                cells=_cells(present[agent_id]),
            )
            for agent_id in chosen
        ),
    )


def _cells(rows: list[UsageRow]) -> tuple[views.StripCell, ...]:
    """Turn cumulative seconds into shares of each slot.

    What is credited late, as work that is committed after it was done, may take from what was
    idle before: a share below zero is shown as none.
    """
    cells = []
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        if row.slot < 0:
            continue
        gained = [
            max(getattr(row, name) - (getattr(before, name) if before else 0.0), 0.0)
            for name in CLASSES
        ]
        total = sum(gained)
        if not total:
            continue
        shares = [value / total for value in gained]
        cells.append(
            views.StripCell(
                slot=row.slot,
                state=row.state,
                **{name: round(share, 4) for name, share in zip(CLASSES, shares, strict=True)},
            )
        )
    return tuple(cells)


def ledger_view(history: History, config: Config, points: int) -> views.LedgerView:
    """Return the accounts as they were last stored, and the spending until then."""
    rows, reserved_price = accounts(history), config.ledger.reserved_price
    totals = dict.fromkeys(CLASSES, 0.0)
    shown = []
    for agent_id, account in rows.items():
        classes = account.classes(0.0)
        for name, value in classes.items():
            totals[name] += value
        shown.append(
            views.Account(
                agent_id=agent_id,
                name=account.name,
                role=account.role,
                workers=account.workers,
                price_per_hour=account.price_per_hour,
                joined_at=account.joined_at,
                left_at=None if account.interrupted else account.left_at,
                gpu_seconds=classes,
                cost=account.cost(0.0),
            )
        )
    reserved = sum(a.cost for a in shown if a.role == "trainer")
    spot = sum(a.cost for a in shown if a.role != "trainer")
    on_demand = sum(totals.values()) / 3600 * reserved_price
    return views.LedgerView(
        currency=config.ledger.currency,
        gpu_seconds=totals,
        reserved=reserved,
        spot=spot,
        all_on_demand=on_demand,
        saved_fraction=1 - (reserved + spot) / on_demand if on_demand else 0.0,
        accounts=tuple(sorted(shown, key=lambda account: -account.cost)),
        spending=_spending(history, rows, reserved_price, points),
    )


def _spending(
    history: History, rows: dict[str, Account], reserved_price: float, points: int
) -> tuple[views.SpendingPoint, ...]:
    """Return the money over time: each agent's time held so far, at its account's price."""
    begin, seconds = window(history, None, 0.0)
    slot_s = seconds / points
    by_slot: defaultdict[int, list[UsageRow]] = defaultdict(list)
    for row in history.usage(begin, slot_s, points):
        by_slot[row.slot].append(row)
    if len(by_slot) < 2:
        return ()
    held: dict[str, float] = {}
    reserved = spot = gpu_s = 0.0
    found = []
    for slot in sorted(by_slot):
        for row in by_slot[slot]:
            more = row.held - held.get(row.agent_id, 0.0)
            held[row.agent_id] = row.held
            account = rows.get(row.agent_id)
            price = account.price_per_hour if account else 0.0
            gpu_s += more
            if account is not None and account.role == "trainer":
                reserved += more / 3600 * price
            else:
                spot += more / 3600 * price
        found.append(
            views.SpendingPoint(
                time=begin + (slot + 1) * slot_s,
                reserved=reserved,
                spot=spot,
                all_on_demand=gpu_s / 3600 * reserved_price,
            )
        )
    return tuple(found)
