"""Which leases get a second holder near the end of a phase. Pure.

A phase waits for its slowest trajectory, and by then most workers are idle. A worker's
trajectories share its GPU, so an idle one of the same speed overtakes with up to half of them;
where nothing has come for half a lease, the holder may hang, and all that it has may be taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice

from spotlightd.fleet.entries import Entry
from spotlightd.fleet.pullers import Puller


def worth_a_look(
    leased: Iterable[Entry], pullers: Mapping[str, Puller], overdue_before: float
) -> list[Entry]:
    """Leave out, cheaply, whom `choose_backups` never would: a holder's only lease, on time."""
    found = []
    for entry in leased:
        holder = pullers.get(entry.holder or "")
        if entry.deadline < overdue_before or (holder is not None and len(holder.held) > 1):
            found.append(entry)
    return found


def choose_backups(
    candidates: Sequence[Entry],
    idle: Sequence[str],
    pullers: Mapping[str, Puller],
    entries: Mapping[str, Entry],
    overdue_before: float,
) -> list[tuple[Entry, str]]:
    """Pair leased entries with idle workers, the least advanced entry first, workers in turn.

    Args:
        candidates: leased entries without a backup.
        overdue_before: a lease whose deadline lies before it has not progressed for too long.
    """
    pairs: list[tuple[Entry, str]] = []
    credit = {agent_id: pullers[agent_id].credit for agent_id in idle}
    taken: dict[str, int] = {}
    """Leases with a backup by holder, with those of `pairs`."""
    turn = cycle(idle)
    for entry in sorted(candidates, key=lambda entry: entry.progress_step):
        holder = entry.holder or ""
        held = pullers[holder].held if holder in pullers else set()
        if holder not in taken:
            taken[holder] = sum(1 for r in held if entries[r].backup is not None)
        overdue = entry.deadline < overdue_before
        if entry.committing or not (overdue or 2 * (taken[holder] + 1) <= len(held)):
            continue
        version = entry.request.policy_version
        able = (
            agent_id
            for agent_id in islice(turn, len(idle))
            if credit[agent_id] and version in pullers[agent_id].versions and agent_id != holder
        )
        agent_id = next(able, None)
        if agent_id is not None:
            credit[agent_id] -= 1
            taken[holder] += 1
            pairs.append((entry, agent_id))
    return pairs
