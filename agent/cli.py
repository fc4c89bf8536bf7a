"""`spotlight-agent`: join a daemon from a spot VM, and work."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent.options import WorkOptions, spread
from agent.settings import AgentSettings
from spotlightd import logs
from spotlightd.commands import add_version, run_app
from spotlightd.errors import InputError, UsageError
from spotlightd.install import command as installing
from spotlightd.wire.token import Token, parse_token

app = typer.Typer(
    help="The agent on a spot VM: pulls work and weights from a spotlightd, and samples.",
    epilog="Example: spotlight-agent join --token-file token.txt",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Install = Annotated[
    bool,
    typer.Option("--install", help="Enrol, then write and start a systemd unit that works."),
]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- [OPTIONS OF JOIN]", help="What the unit passes to join."),
]


add_version(app, "spotlight-agent")


@app.command(epilog="Example: spotlight-agent join --token-file token.txt --name vm-1")
@spread
def join(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Argument(help="Join token; better in a file or in SPOTLIGHT_TOKEN than here."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token.")] = None,
    work: WorkOptions = WorkOptions(),
    install_: Install = False,
) -> None:
    """Enrol with a token made by `spotlightctl token create`, then work until told to leave."""
    settings = work.settings()
    found = _find_token(token, token_file, settings.state_dir)
    if not install_:
        _start(settings, found, work.json_logs)
    from agent.install import join_and_install, options_given

    if found is None:
        raise UsageError("join --install needs a token: --token-file FILE, or SPOTLIGHT_TOKEN")
    join_and_install(settings, found, options_given(context))


@app.command(epilog="Example: spotlight-agent install -- --workers 8 --zone us-east-1a")
def install(
    options: Options = None,
    root: installing.Root = None,
    dry_run: installing.DryRun = False,
    start: installing.Start = False,
    uninstall: installing.Uninstall = False,
    purge: installing.Purge = False,
) -> None:
    """Put the agent under systemd; it joins with the token in /etc/spotlight/token."""
    from agent.install import check_options
    from agent.install import install as do

    check_options(options or [], typer.main.get_command(app))
    do(installing.Wanted(root, dry_run, start, uninstall, purge), options or [])


@app.command(epilog="Example: spotlight-agent run --state-dir /var/lib/spotlight-agent")
@spread
def run(work: WorkOptions = WorkOptions()) -> None:
    """Work again with the key of an earlier join; needs no token."""
    _start(work.settings(), None, work.json_logs)


def _start(settings: AgentSettings, token: Token | None, json_logs: bool) -> None:
    logs.configure(logging.INFO, as_json=json_logs)
    # Help and errors of usage need none of it.
    from agent import main as agent

    raise typer.Exit(agent.run(settings, token))


def _find_token(text: str | None, file: Path | None, state_dir: Path) -> Token | None:
    """Return the token; None where there is none, and none is needed: it has joined before."""
    # Children need not inherit it.
    given = os.environ.pop("SPOTLIGHT_TOKEN", "")
    if text is not None and file is not None:
        raise UsageError("give the token once: as an argument, by --token-file or SPOTLIGHT_TOKEN")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the token file {file}: {error}") from None
    text = text or given or _credential()
    if not text and (state_dir / "agent.json").exists():
        return None
    if not text:
        raise UsageError(
            "a join token is needed: spotlight-agent join --token-file FILE, or SPOTLIGHT_TOKEN "
            "(make one with spotlightctl token create)"
        )
    return parse_token(text)


def _credential() -> str:
    """Return the token that systemd hands to the unit; empty where there is none."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    path = Path(folder) / "token"
    return path.read_text(encoding="utf-8").strip() if folder and path.exists() else ""


def main() -> None:
    sys.exit(run_app(app, "spotlight-agent"))
