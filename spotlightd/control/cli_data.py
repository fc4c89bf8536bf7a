"""Commands of `spotlightctl` about what came of a run, and about its configuration."""

import json as stdlib_json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from spotlightd.commands import ConfigFile, seconds
from spotlightd.control import render
from spotlightd.control.command import (
    Json,
    Socket,
    StateDir,
    client_of,
    group,
    print_json,
    state_of,
    write_out,
)
from spotlightd.control.endpoints import KINDS
from spotlightd.control.unpack import unpack
from spotlightd.errors import ExitCode, InputError, SpotlightError, UsageError

config_app = group("The configuration: checked, or as the daemon has it.",
                   "spotlightctl config show --origin")  # fmt: skip
SHELLS = ("bash", "zsh", "fish")


def add_to(app: typer.Typer) -> None:
    """Add this file's commands to `spotlightctl`."""
    for command, example in (
        (weights, "spotlightctl weights"),
        (ledger, "spotlightctl ledger --json"),
        (samples, "spotlightctl samples --iteration 12 --kind rollout"),
        (export, "spotlightctl export ./my-adapter --version 120"),
        (replay, "spotlightctl replay ID"),
        (timeline, "spotlightctl timeline --last 10m --out run.json"),
        (completion, "spotlightctl completion bash"),
    ):
        app.command(epilog=f"Example: {example}")(command)


def weights(json: Json = False, socket: Socket = None) -> None:
    """Which versions are served, who holds them, and which can be exported."""
    answer = client_of(socket).weights()
    if json:
        print_json(answer)
        return
    render.table(render.WEIGHTS_COLUMNS, [render.weights_row(row) for row in answer.published])
    print(f"kept: {', '.join(map(str, answer.kept)) or 'none'}")


def ledger(json: Json = False, socket: Socket = None) -> None:
    """Where the GPU-seconds and the money went, by agent."""
    answer = client_of(socket).ledger()
    if json:
        print_json(answer)
        return
    rows = [render.account_row(row, answer.currency) for row in answer.accounts]
    render.table(render.ACCOUNT_COLUMNS, rows)
    print(render.ledger_line(answer))


def samples(
    iteration: Annotated[int | None, typer.Option(min=0, help="Only of this iteration.")] = None,
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join(KINDS)}.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Only of this prompt id.")] = None,
    after: Annotated[int, typer.Option(min=0, help="`next` of the page before.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
    image: Annotated[
        str | None, typer.Option(metavar="ID", help="Write this trajectory's picture instead.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="PNG file; default: stdout.")] = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Trajectories, a page at a time: what was asked for, and what came of it."""
    if image is not None:
        write_out(client_of(socket).image(image), out)
        return
    page = client_of(socket).samples(
        iteration=iteration, kind=kind, prompt=prompt, after=after, limit=limit
    )
    if json:
        print_json(page)
        return
    render.table(render.SAMPLE_COLUMNS, [render.sample_row(row) for row in page.samples])
    if page.next_after is not None:
        print(f"next: --after {page.next_after}")


def export(
    out: Annotated[Path, typer.Argument(help="Folder to write; it is made where it is missing.")],
    version: Annotated[int | None, typer.Option(min=0, help="Default: the newest.")] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Write a whole model; reads the state directory.")
    ] = False,
    state_dir: StateDir = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Write a trained version for diffusers, with a model card and a grid of samples."""
    if merged or state_dir is not None:
        from spotlightd.outputs.export import export as write

        written = write(state_of(state_dir), out, version, merged)
    else:
        written = unpack(client_of(socket).export(version), out)
    if json:
        print_json([str(path) for path in written])
        return
    for path in written:
        print(path)


def replay(
    trajectory: Annotated[str, typer.Argument(help="Id as `spotlightctl samples` shows it.")],
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Produce a trajectory again from its seed, on this machine's CPU, and compare.

    Reads the state directory, which may belong to a running daemon. Exit code 1: it differs.
    """
    from spotlightd.control.run_view import RunView

    folder = state_of(state_dir)
    run = RunView(folder)
    run.sample(trajectory)
    run.close()
    # Only sampling needs torch, and this process goes on without it.
    command = [sys.executable, "-m", "spotlightd.replay_command", str(folder)]
    result = subprocess.run([*command, trajectory], capture_output=True, text=True)
    if result.returncode not in (ExitCode.OK, ExitCode.FAILURE) or not result.stdout:
        last = (result.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        sentence = last.removeprefix("replay: ")
        # Any other code, a signal's too, is a failure that has no kind.
        kinds: dict[int, type[SpotlightError]] = {
            ExitCode.INPUT: InputError,
            ExitCode.USAGE: UsageError,
        }
        raise kinds.get(result.returncode, SpotlightError)(sentence)
    if json:
        print(result.stdout.strip())
    else:
        print(render.replay_line(msgspec.json.decode(result.stdout)))
    if result.returncode:
        raise typer.Exit(ExitCode.FAILURE)


def timeline(
    last: Annotated[str, typer.Option(help="How long before the newest; 0: all.")] = "1h",
    out: Annotated[Path | None, typer.Option(help="File; default: stdout.")] = None,
    json: Json = True,
    socket: Socket = None,
) -> None:
    """A trace of the run for Perfetto (ui.perfetto.dev): phases, agents, trajectories. JSON."""
    write_out(client_of(socket).timeline(seconds(last)), out)


def completion(
    shell: Annotated[str, typer.Argument(help=f"One of {', '.join(SHELLS)}.")],
    json: Json = False,
) -> None:
    """Print a completion script: source it, or put it where the shell looks."""
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UsageError(f"no completion for '{shell}': there is one for {', '.join(SHELLS)}")
    script = get_completion_script(
        prog_name="spotlightctl", complete_var="_SPOTLIGHTCTL_COMPLETE", shell=shell
    )
    print(stdlib_json.dumps({"shell": shell, "script": script}) if json else script)


@config_app.command("check", epilog="Example: spotlightctl config check spotlight.toml")
def check(file: ConfigFile, json: Json = False) -> None:
    """Say whether the daemon would accept a configuration (exit code 78 if not)."""
    from spotlightd.config import load

    load(file)
    print(stdlib_json.dumps({"valid": True}) if json else "the configuration is valid")


@config_app.command("show", epilog="Example: spotlightctl config show --origin")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value is from.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Print every key with the value that the daemon has."""
    rows = client_of(socket).config()
    if json:
        print_json({row.key: {"value": row.value, "origin": row.origin} for row in rows})
        return
    for row in rows:
        line = f"{row.key} = {stdlib_json.dumps(row.value)}"
        print(f"{line:<52} # {row.origin}" if origin else line)
