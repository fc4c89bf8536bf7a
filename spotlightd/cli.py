"""`spotlightd`: the daemon's command line. Reads the configuration, sets up logs, runs."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from spotlightd import logs
from spotlightd.commands import ConfigFile, Sets, add_version, assignments, run_app
from spotlightd.config import Config, Origins, load, value_of
from spotlightd.config_checks import unused
from spotlightd.control.places import user_folder, user_socket
from spotlightd.install import command as installing
from spotlightd.keys_command import app as keys_app

app = typer.Typer(
    help="The daemon on the reserved node: plans the run, leases work, trains.",
    epilog="Example: spotlightd run --set run.iterations=10",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(
    help="Check the configuration, or show it with the origin of each value.",
    epilog="Example: spotlightd config show --origin",
    rich_markup_mode=None,
)
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")

File = Annotated[Path | None, typer.Option("--config", help="TOML file.", readable=False)]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Short for --set store.state_dir=DIR.")
]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]

add_version(app, "spotlightd")


@app.command(epilog="Example: spotlightd run --state-dir ./state --set run.iterations=10")
def run(
    config: File = None,
    set_: Sets = None,
    state_dir: StateDir = None,
    json_logs: JsonLogs = False,
    verbose: Verbose = False,
) -> None:
    """Run the daemon in the foreground until the run is done or it is told to stop."""
    settings, origins = _load(config, set_, state_dir)
    logs.configure(logging.DEBUG if verbose else logging.INFO, as_json=json_logs)
    from spotlightd import main as daemon

    raise typer.Exit(daemon.run(settings, origins))


@app.command(epilog="Example: spotlightd serve --config /etc/spotlight/spotlightd.toml")
def serve(
    config: File = None,
    set_: Sets = None,
    state_dir: StateDir = None,
    json_logs: JsonLogs = False,
    verbose: Verbose = False,
) -> None:
    """Wait for runs (spotlightctl runs submit), and work on one after another.

    A run that the configuration itself states, by any key in [run], begins at once.
    """
    settings, origins = _load(config, set_, state_dir)
    logs.configure(logging.DEBUG if verbose else logging.INFO, as_json=json_logs)
    from spotlightd.serve import serve as serve_runs

    raise typer.Exit(serve_runs(settings, origins))


@app.command("check", epilog="Example: spotlightd check configs/qwen-image-ocr.toml --gpu h200")
def plan(
    config: ConfigFile,
    set_: Sets = None,
    gpu: Annotated[str, typer.Option(help="h200, h100, a100, l40s or 4090.")] = "h200",
    reserved_gpus: Annotated[
        int | None, typer.Option(min=1, help="Default: as many as training needs.")
    ] = None,
    spot_gpus: Annotated[int, typer.Option(min=0)] = 8,
) -> None:
    """Say what a run would need: GPUs, memory, time and money, and on which assumptions."""
    settings, _ = _load(config, set_, None)
    from spotlightd.sizing.check import check_run

    for line in check_run(settings, gpu, reserved_gpus, spot_gpus):
        print(line)


@app.command(epilog="Example: spotlightd install --host reserved.example.net")
def install(
    host: Annotated[
        str, typer.Option(help="Address under which spot VMs reach this node; kept in the config.")
    ] = "",
    root: installing.Root = None,
    dry_run: installing.DryRun = False,
    start: installing.Start = False,
    uninstall: installing.Uninstall = False,
    purge: installing.Purge = False,
) -> None:
    """Put the daemon under systemd: user, folders, configuration, key, units and socket."""
    from spotlightd.install.daemon import install as do

    do(installing.Wanted(root, dry_run, start, uninstall, purge), host)


@app.command(
    epilog="Example: spotlightd simulate configs/qwen-image-ocr.toml --trace p3-trace.csv --seed 1"
)
def simulate(
    config: ConfigFile,
    trace: Annotated[Path, typer.Option(help="Spot trace that the VMs follow.")],
    seed: Annotated[int, typer.Option(help="Of everything random; same seed, same history.")] = 1,
    variant: Annotated[
        str, typer.Option(help="This system, a baseline, or a technique switched off.")
    ] = "spotlight",
    assumptions: Annotated[
        Path | None, typer.Option(help="TOML file with assumptions that differ.")
    ] = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play a run in virtual time, on modelled GPUs that follow a spot trace."""
    from spotlightd.simulate import command

    changes = assignments(set_)
    outcome = command.simulate(config, changes, trace, seed, variant, assumptions)
    print(outcome.to_json() if as_json else "\n".join(command.describe(outcome)))


@config_app.command("check", epilog="Example: spotlightd config check --config spotlight.toml")
def check(config: File = None, set_: Sets = None, state_dir: StateDir = None) -> None:
    """Say whether `run` would accept this configuration (exit code 78 if not)."""
    _load(config, set_, state_dir)
    print("the configuration is valid")


@config_app.command("show", epilog="Example: spotlightd config show --origin")
def show(
    config: File = None,
    set_: Sets = None,
    state_dir: StateDir = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value is from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every key with the value that `run` would use."""
    settings, origins = _load(config, set_, state_dir)
    values = {key: msgspec.to_builtins(value_of(settings, key)) for key in origins}
    if as_json:
        rows = {key: {"value": value, "origin": origins[key]} for key, value in values.items()}
        print(json.dumps(rows if origin else values))
        return
    without_effect = {found.key for found in unused(settings)}
    for key, value in values.items():
        # Valid TOML, so that it can be kept as a file; TOML has no null, and stating what has no
        # effect is an error.
        line = f"# {key} is not set" if value is None else f"{key} = {json.dumps(value)}"
        line = f"# {line}" if key in without_effect else line
        print(f"{line:<52} # {origins[key]}" if origin else line)


def _load(
    path: Path | None, sets: list[str] | None, state_dir: Path | None
) -> tuple[Config, Origins]:
    flags = assignments(sets)
    if state_dir is not None:
        flags["store.state_dir"] = json.dumps(str(state_dir))
    # systemd made the system's folders for its service, whoever that runs as.
    is_system = os.geteuid() == 0 or "STATE_DIRECTORY" in os.environ
    return user_defaults(*load(path, flags), is_system)


def user_defaults(config: Config, origins: Origins, is_system: bool) -> tuple[Config, Origins]:
    """Move what still has its default out of the system's folders for an ordinary user."""
    moved = {
        "store.state_dir": str(user_folder(os.environ)),
        "control.socket": str(user_socket(os.environ)),
    }
    if is_system:
        return config, origins
    for key, value in moved.items():
        if origins[key] == "default":
            section, name = key.split(".")
            changed = msgspec.structs.replace(getattr(config, section), **{name: value})
            config = msgspec.structs.replace(config, **{section: changed})
            origins = {**origins, key: "default for a user other than root"}
    return config, origins


def main() -> None:
    sys.exit(run_app(app, "spotlightd"))
