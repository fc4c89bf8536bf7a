"""`spotlightctl top`: the run, live. On a terminal it redraws; elsewhere it prints each look."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from spotlightd.control import api, render, views
from spotlightd.control.client import ControlClient
from spotlightd.errors import UnreachableError

EVENTS_SHOWN = 8
AGENTS_SHOWN = 30
BAR = 30


class Look(msgspec.Struct):
    """All that one look shows."""

    status: api.Status
    agents: list[api.AgentRow]
    alarms: list[views.Alarm]
    events: list[api.EventRow]


def show_top(client: ControlClient, interval_s: float, count: int, as_json: bool) -> None:
    """Look until the daemon ends, Ctrl-C, or `count` looks were taken (0: no end)."""
    looks = _looks(client, interval_s, count)
    if as_json:
        for look in looks:
            print(msgspec.json.encode(look).decode(), flush=True)
    elif sys.stdout.isatty():
        _live(looks)
    else:
        for look in looks:
            print("\n".join(lines(look)), end="\n\n", flush=True)


def _looks(client: ControlClient, interval_s: float, count: int) -> Iterator[Look]:
    newest: deque[api.EventRow] = deque(maxlen=EVENTS_SHOWN)
    after = max(client.status().last_event - EVENTS_SHOWN, 0)
    taken = 0
    while True:
        began = time.monotonic()
        try:
            while rows := client.events(after, limit=api.MAX_EVENTS):
                newest.extend(rows)
                after = rows[-1].event_id
            yield Look(client.status(), client.agents(), client.alarms(), list(newest))
        except UnreachableError:
            if not taken:
                raise
            # It was there: the run has ended, or its daemon is being started again.
            return
        taken += 1
        if taken == count:
            return
        left = interval_s - (time.monotonic() - began)
        if left > 0:
            time.sleep(left)


def lines(look: Look) -> list[str]:
    """Return one look as plain lines."""
    status = look.status
    shown = [f"{label:<12} {value}" for label, value in render.status_lines(status)[3:]]
    shown += [f"ALARM {alarm.name}: {alarm.text}" for alarm in look.alarms]
    shown += [row.agent_id + " " + " ".join(render.agent_row(row)[2:]) for row in look.agents]
    return shown + [render.event_line(row) for row in look.events]


def _live(looks: Iterator[Look]) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(_screen(look), refresh=True)


def _screen(look: Look) -> Any:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    status = look.status
    share = status.iteration / status.iterations if status.iterations else 1.0
    bar = "█" * round(share * BAR) + "░" * (BAR - round(share * BAR))
    head = Text(f"{status.run}  {bar} {status.iteration}/{status.iterations}  {status.phase}")
    head.stylize("bold")
    facts = Table.grid(padding=(0, 2))
    for label, value in render.status_lines(status)[4:]:
        facts.add_row(Text(label, style="dim"), Text(value))
    agents = Table(box=box.SIMPLE_HEAD)
    for column in render.AGENT_COLUMNS:
        agents.add_column(column, overflow="fold")
    for row in look.agents[:AGENTS_SHOWN]:
        agents.add_row(*map(Text, render.agent_row(row)))
    alarms = [Text(f"! {alarm.text}", style="bold yellow") for alarm in look.alarms]
    colours = {"info": "", "warning": "yellow", "error": "red"}
    events = [Text(render.event_line(row), style=colours[row.level]) for row in look.events]
    return Group(head, facts, *alarms, agents, *events)
