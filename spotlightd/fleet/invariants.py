"""What must hold of requests and leases after every event; tests ask after each."""

from collections.abc import Mapping, Sequence

from spotlightd.fleet.entries import Entry
from spotlightd.fleet.pullers import Pullers


def check_entries(
    entries: Mapping[str, Entry],
    pullers: Pullers,
    queued: Sequence[str],
    due: set[tuple[int, str]],
) -> None:
    """Raise AssertionError where entries, their holders and the queues contradict each other.

    Args:
        queued: every request that waits in a line.
        due: (fence, request) of every lease whose end is watched.
    """
    in_line = set(queued)
    assert len(queued) == len(in_line), "a request is queued twice"
    assert in_line <= entries.keys(), "a request is queued that nobody knows"
    fences = [e.fence for e in entries.values() if e.fence]
    fences += [e.backup.fence for e in entries.values() if e.backup]
    assert len(fences) == len(set(fences)), "two leases share a fence"
    held = [(r, agent_id) for agent_id, puller in pullers.items() for r in puller.held]
    backed = [(r, agent_id) for agent_id, puller in pullers.items() for r in puller.backups]
    for request_id, agent_id in held:
        assert entries[request_id].holder == agent_id, entries[request_id]
        assert entries[request_id].state == "leased", entries[request_id]
    for request_id, agent_id in backed:
        backup = entries[request_id].backup
        assert backup is not None and backup.holder == agent_id, entries[request_id]
    backups = set(backed)
    for request_id, entry in entries.items():
        assert (entry.state == "queued") == (request_id in in_line), entry
        if entry.state == "leased":
            assert (entry.fence, request_id) in due, entry
            assert entry.committing or pullers.holds(entry.holder, request_id), entry
        else:
            assert entry.holder is None, entry
        if entry.backup is not None:
            assert entry.state == "leased", entry
            assert (request_id, entry.backup.holder) in backups, entry
