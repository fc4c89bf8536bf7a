"""`spotlightctl`: the operator's command, over the control socket.

More of its commands: cli_runs.py (runs), cli_data.py (what came of them).
"""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from spotlightd.commands import add_version, run_app, seconds
from spotlightd.control import api, cli_data, cli_runs, render
from spotlightd.control.client import ControlClient
from spotlightd.control.command import (
    Json,
    Socket,
    client_of,
    group,
    print_accepted,
    print_json,
)
from spotlightd.control.top import show_top
from spotlightd.fleets.command import app as fleet_app

app = typer.Typer(
    help="Look at a Spotlight daemon and steer it.",
    epilog="Example: spotlightctl status",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
agents_app = group(
    "List the agents, or send one away.",
    "spotlightctl agents drain a-3 --deadline 2m",
    invoke_without_command=True,
)
token_app = group("Tokens with which agents join.", "spotlightctl token create --ttl 15m --uses 32")
app.add_typer(agents_app, name="agents")
app.add_typer(token_app, name="token")
app.add_typer(fleet_app, name="fleet")
app.add_typer(cli_runs.app, name="runs")
app.add_typer(cli_data.config_app, name="config")
cli_data.add_to(app)

FOLLOW_WAIT_S = 30.0


add_version(app, "spotlightctl")


@app.command(epilog="Example: spotlightctl status --json")
def status(json: Json = False, socket: Socket = None) -> None:
    """How the run is doing: phase, reward, agents, requests, cost."""
    answer = client_of(socket).status()
    if json:
        print_json(answer)
        return
    for label, value in render.status_lines(answer):
        print(f"{label:<12} {value}")


@agents_app.callback(epilog="Example: spotlightctl agents drain a-3 --deadline 2m")
def agents(context: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """List the agents, or ask one to leave."""
    if context.invoked_subcommand is None:
        list_agents(json, socket)


@agents_app.command("list", epilog="Example: spotlightctl agents list --json")
def list_agents(json: Json = False, socket: Socket = None) -> None:
    """One line per agent."""
    rows = client_of(socket).agents()
    if json:
        print_json(rows)
    else:
        render.table(render.AGENT_COLUMNS, [render.agent_row(row) for row in rows])


@agents_app.command("drain", epilog="Example: spotlightctl agents drain a-3 --deadline 2m")
def drain(
    agent_id: Annotated[str, typer.Argument(help="Id as `spotlightctl agents` shows it.")],
    deadline: Annotated[str, typer.Option(help="Time to finish or hand back.")] = "60s",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Ask an agent to finish or hand back what it holds, and to leave."""
    print_accepted(client_of(socket).drain(agent_id, seconds(deadline)), json)


@agents_app.command("revoke", epilog="Example: spotlightctl agents revoke a-3")
def revoke(
    agent_id: Annotated[str, typer.Argument(help="Id as `spotlightctl agents` shows it.")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Refuse an agent's key at once and for good; it must join again with a new token."""
    print_accepted(client_of(socket).revoke(agent_id), json)


@agents_app.command("forget", epilog="Example: spotlightctl agents forget a-3")
def forget(
    agent_id: Annotated[str, typer.Argument(help="Id as `spotlightctl agents` shows it.")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Take an agent that has left off the list; what it cost stays in the ledger."""
    print_accepted(client_of(socket).forget(agent_id), json)


@app.command(epilog="Example: spotlightctl top")
def top(
    interval: Annotated[str, typer.Option(help="Time between two looks.")] = "1s",
    count: Annotated[int, typer.Option(min=0, help="Looks; 0: until Ctrl-C.")] = 0,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Watch the run live: progress, agents, alarms, the newest events."""
    show_top(client_of(socket), seconds(interval), count, json)


@app.command(epilog="Example: spotlightctl plan")
def plan(
    last: Annotated[int, typer.Option(min=1, help="Iterations to show.")] = 10,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """What is explored and why, what the planner believes, and what came of its plans."""
    answer = client_of(socket).plan()
    if json:
        print_json(answer)
        return
    for label, value in render.plan_lines(answer):
        print(f"{label:<12} {value}")
    rows = [render.plan_row(row) for row in answer.iterations[-last:]]
    render.table(list(render.PLAN_COLUMNS), rows)


@token_app.command("create", epilog="Example: spotlightctl token create --ttl 15m --uses 32")
def create_token(
    ttl: Annotated[str, typer.Option(help="How long it may be used: 90s, 15m, 2h, 1d.")] = "15m",
    uses: Annotated[int, typer.Option(help="How many agents may join with it.")] = 1,
    pool: Annotated[str, typer.Option(help="Name of the pool that they join.")] = "default",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Print a token for `spotlight-agent join`. It is shown only this once."""
    created = client_of(socket).create_token(seconds(ttl), uses, pool)
    if json:
        print_json(created)
        return
    print(created.token)
    if sys.stdout.isatty():
        until = render.moment(created.expires_at)
        print(f"{created.uses} use(s) until {until}: spotlight-agent join TOKEN", file=sys.stderr)


@app.command(epilog="Example: spotlightctl events --follow")
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    after: Annotated[int, typer.Option(help="Only events with an id above this one.")] = 0,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """What has happened, oldest first."""
    for row in _all_events(client_of(socket), after, follow):
        if json:
            print_json(row)
        else:
            print(render.event_line(row), flush=True)


def _all_events(client: ControlClient, after: int, follow: bool) -> Iterator[api.EventRow]:
    while True:
        rows = client.events(after, FOLLOW_WAIT_S if follow else 0, api.MAX_EVENTS)
        yield from rows
        if rows:
            after = rows[-1].event_id
        elif not follow:
            return


@app.command(epilog="Example: spotlightctl stop")
def stop(json: Json = False, socket: Socket = None) -> None:
    """Stop the daemon cleanly. The run goes on from there at its next start."""
    print_accepted(client_of(socket).stop(), json)


def main() -> None:
    sys.exit(run_app(app, "spotlightctl"))
