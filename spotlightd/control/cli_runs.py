"""`spotlightctl runs`: begin, pause, go on, end."""

import json as stdlib_json
from pathlib import Path
from typing import Annotated

import typer

from spotlightd.commands import ConfigFile, Sets, assignments
from spotlightd.control import render
from spotlightd.control.command import Json, Socket, client_of, group, print_accepted, print_json

app = group("List the runs, or steer one.", "spotlightctl runs pause", invoke_without_command=True)


@app.callback(epilog="Example: spotlightctl runs")
def runs(context: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """List the runs in the daemon's state directory, or steer the one that goes on."""
    if context.invoked_subcommand is None:
        list_runs(json, socket)


@app.command("list", epilog="Example: spotlightctl runs list --json")
def list_runs(json: Json = False, socket: Socket = None) -> None:
    """One line per run."""
    rows = client_of(socket).runs()
    if json:
        print_json(rows)
    else:
        render.table(render.RUN_COLUMNS, [render.run_row(row) for row in rows])


@app.command(
    "submit", epilog="Example: spotlightctl runs submit spotlight.toml --set run.name=words-2"
)
def submit(
    config: ConfigFile,
    set_: Sets = None,
    prompts: Annotated[
        str | None, typer.Option(help="Short for --set run.prompts=FILE.", metavar="FILE")
    ] = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Begin a run, or go on with one that ended, on a daemon that waits (spotlightd serve).

    Relative paths in the file start from its folder, those after options from this one. The daemon
    must be able to read what they name. While a run goes on, another is refused (exit code 75).
    """
    from spotlightd.submission import read_request

    flags = assignments(set_)
    if prompts is not None:
        flags["run.prompts"] = stdlib_json.dumps(prompts)
    answer = client_of(socket).submit(read_request(config, flags, Path.cwd()))
    if json:
        print_json(answer)
    else:
        print(render.submitted_line(answer))


@app.command("pause", epilog="Example: spotlightctl runs pause")
def pause(json: Json = False, socket: Socket = None) -> None:
    """Give out no new work, also after a restart; what is leased or trains is finished."""
    print_accepted(client_of(socket).set_run("pause"), json)


@app.command("resume", epilog="Example: spotlightctl runs resume")
def resume(json: Json = False, socket: Socket = None) -> None:
    """Go on with a run that was paused."""
    print_accepted(client_of(socket).set_run("resume"), json)


@app.command("stop", epilog="Example: spotlightctl runs stop")
def stop(json: Json = False, socket: Socket = None) -> None:
    """End the run where it is: agents are sent home, and the daemon waits for the next.

    One that was started for this run alone (spotlightd run) ends with exit code 0. What was trained
    so far can be exported. Submitting the run, or starting that daemon, again goes on with it.
    """
    print_accepted(client_of(socket).set_run("stop"), json)
