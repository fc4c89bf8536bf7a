"""`spotlightctl runs`: pause, go on, end."""

import typer

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
    """End the run where it is: agents are sent home, and the daemon ends with exit code 0.

    What was trained so far can be exported. Starting the daemon again goes on with it.
    """
    print_accepted(client_of(socket).set_run("stop"), json)
