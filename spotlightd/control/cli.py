"""`spotlightctl`: the operator's command. It knows the control socket; `export` reads the state."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from spotlightd.commands import add_version, run_app, seconds
from spotlightd.control import api, render
from spotlightd.control.client import ControlClient
from spotlightd.control.places import find_socket, find_state
from spotlightd.fleets.command import app as fleet_app

app = typer.Typer(
    help="Look at a Spotlight daemon and steer it.",
    epilog="Example: spotlightctl status",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
agents_app = typer.Typer(
    help="List the agents, or ask one to leave.",
    epilog="Example: spotlightctl agents drain a-3 --deadline 2m",
    invoke_without_command=True,
    rich_markup_mode=None,
)
token_app = typer.Typer(
    help="Tokens with which agents join.",
    epilog="Example: spotlightctl token create --ttl 15m --uses 32",
    rich_markup_mode=None,
)
app.add_typer(agents_app, name="agents")
app.add_typer(token_app, name="token")
app.add_typer(fleet_app, name="fleet")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        help="The daemon's control socket. Default: $SPOTLIGHT_CONTROL_SOCKET, else "
        "/run/spotlight/control.sock, else the one in ~/.local/state/spotlight.",
    ),
]

FOLLOW_WAIT_S = 30.0


def _client(socket: Path | None) -> ControlClient:
    return ControlClient(find_socket(socket, os.environ))


def _print_json(answer: Any) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


add_version(app, "spotlightctl")


@app.command(epilog="Example: spotlightctl status --json")
def status(json: Json = False, socket: Socket = None) -> None:
    """How the run is doing: phase, reward, agents, requests, cost."""
    answer = _client(socket).status()
    if json:
        _print_json(answer)
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
    rows = _client(socket).agents()
    if json:
        _print_json(rows)
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
    _accepted(_client(socket).drain(agent_id, seconds(deadline)), json)


@app.command(epilog="Example: spotlightctl runs")
def runs(json: Json = False, socket: Socket = None) -> None:
    """The runs in the daemon's state directory."""
    rows = _client(socket).runs()
    if json:
        _print_json(rows)
    else:
        render.table(render.RUN_COLUMNS, [render.run_row(row) for row in rows])


@app.command(epilog="Example: spotlightctl plan")
def plan(
    last: Annotated[int, typer.Option(min=1, help="Iterations to show.")] = 10,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """What is explored and why, what the planner believes, and what came of its plans."""
    answer = _client(socket).plan()
    if json:
        _print_json(answer)
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
    created = _client(socket).create_token(seconds(ttl), uses, pool)
    if json:
        _print_json(created)
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
    for row in _all_events(_client(socket), after, follow):
        if json:
            _print_json(row)
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
    _accepted(_client(socket).stop(), json)


@app.command(epilog="Example: spotlightctl export ./my-adapter --version 120")
def export(
    out: Annotated[Path, typer.Argument(help="Folder to write; it is made where it is missing.")],
    version: Annotated[int | None, typer.Option(min=0, help="Default: the newest.")] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Write a whole model, with the adapter merged in.")
    ] = False,
    state_dir: Annotated[
        Path | None, typer.Option(help="Of the daemon, which may be running.")
    ] = None,
) -> None:
    """Write a trained version for diffusers, with a model card and a grid of samples."""
    from spotlightd.outputs.export import export as write

    for path in write(state_dir or find_state(os.environ), out, version, merged):
        print(path)


def _accepted(answer: api.Accepted, json: bool) -> None:
    if json:
        _print_json(answer)
    else:
        print(answer.accepted)


def main() -> None:
    sys.exit(run_app(app, "spotlightctl"))
