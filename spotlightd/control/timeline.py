"""A run as a trace that Perfetto opens: phases, each agent's leases, GPU use, events.

The Chrome JSON format (Perfetto's trace-event importer): times in microseconds, slices of one track
must nest. Trajectories of one agent overlap, since a worker samples several at once; they are
asynchronous slices ("b" and "e"), which may.
"""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec

from spotlightd.control.fleet_view import CLASSES, accounts, window
from spotlightd.store.history import History, UsageRow

RUN, RUN_PHASES, RUN_EVENTS = 1, 1, 2
"""Process and thread numbers of the run's own tracks; agents follow."""
USAGE_POINTS = 500

Entry = dict[str, Any]


def chrome_trace(history: History, since: float | None, seconds: float, limit: int) -> bytes:
    """Return the trace as JSON.

    Args:
        since, seconds: as in `fleet_view.window`.
        limit: trajectories to show, and events.
    """
    begin, seconds = window(history, since, seconds)
    until = begin + seconds
    names = {agent_id: account.name for agent_id, account in accounts(history).items()}
    numbers: dict[str, int] = defaultdict(lambda: len(numbers) + RUN + 1)
    entries = [
        _name("process_name", RUN, 0, "run"),
        _name("thread_name", RUN, RUN_PHASES, "phases"),
        _name("thread_name", RUN, RUN_EVENTS, "events"),
    ]
    for iteration, phase, began, lasted in history.phases(begin, until):
        entries.append(
            {
                "name": phase,
                "cat": "phase",
                "ph": "X",
                "ts": began * 1e6,
                "dur": lasted * 1e6,
                "pid": RUN,
                "tid": RUN_PHASES,
                "args": {"iteration": iteration},
            }
        )
    for at, level, component, text in history.events_between(begin, until, limit):
        entries.append(
            {
                "name": text,
                "cat": f"{component},{level}",
                "ph": "i",
                "s": "t",
                "ts": at * 1e6,
                "pid": RUN,
                "tid": RUN_EVENTS,
            }
        )
    for row in history.committed_between(begin, until, limit):
        if row.committed_at is None or not row.leased_at:
            continue
        request = row.request
        common = {
            "name": f"{request.kind} {request.prompt_id}",
            "cat": request.kind,
            "id": request.request_id,
            "pid": numbers[row.agent_id],
            "tid": 1,
        }
        args = {
            "request": request.request_id,
            "iteration": request.iteration,
            "policy_version": request.policy_version,
            "seed": str(request.seed),
            "resumed_from": row.resumed_from,
            "gpu_s": row.gpu_s,
            "scores": row.scores,
        }
        entries.append({**common, "ph": "b", "ts": row.leased_at * 1e6, "args": args})
        entries.append({**common, "ph": "e", "ts": row.committed_at * 1e6})
    for agent_id, points in _usage(history, begin, seconds).items():
        entries += _counters(numbers[agent_id], points)
    for agent_id, number in list(numbers.items()):
        entries.append(_name("process_name", number, 0, names.get(agent_id, agent_id)))
    return msgspec.json.encode({"traceEvents": entries, "displayTimeUnit": "ms"})


def _name(kind: str, process: int, thread: int, name: str) -> Entry:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _usage(history: History, begin: float, seconds: float) -> dict[str, list[UsageRow]]:
    rows: defaultdict[str, list[UsageRow]] = defaultdict(list)
    for row in history.usage(begin, seconds / USAGE_POINTS, USAGE_POINTS):
        rows[row.agent_id].append(row)
    return rows


def _counters(process: int, rows: list[UsageRow]) -> list[Entry]:
    """Return how many of an agent's GPUs were in each class between two measurements."""
    found = []
    for before, row in pairwise(rows):
        seconds = row.time - before.time
        if seconds <= 0:
            continue
        args = {
            name: max(getattr(row, name) - getattr(before, name), 0.0) / seconds for name in CLASSES
        }
        found.append(
            {"name": "GPUs", "ph": "C", "ts": before.time * 1e6, "pid": process, "args": args}
        )
    return found
